"""python -m attacks.named [--stage N] [--kind K] [--only TEXT] [--every N] [--results FILE]

Runs mutants up to the first wrong case and compares the diagnosis with the planted mistake, from
names.toml.  Prints one line per mutant and a table by stage: named rightly, named wrongly, only
located by line, not named, and the seconds of the whole grading.

--results FILE appends one line of JSON per mutant.  Mutants in it are not run again, so that an
interrupted run can be resumed.  Several processes share the work with --share 1/2 and 2/2, each
with a file of its own.  --again none reruns what was not named, --again wrongly what was named
wrongly; the newer line counts.  --table FILE ... only prints the table.
"""

import argparse
import json
import statistics
import sys
import tomllib
from pathlib import Path

import torch

from attacks.__main__ import share
from attacks.catalogue import HERE, ROOT, Attack, _mutant, attacks
from attacks.run import run
from grader.course.stages import STAGES
from grader.step_checks.repair import PLACE, WORDS

KINDS = ("mutants", "students", "honest")
VERDICTS = ("rightly", "wrongly", "placed", "none")
SEED = 0
PASSED = "passed every case"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.named")
    parser.add_argument("--kind", choices=KINDS, default="mutants")
    parser.add_argument("--stage", type=int, action="append")
    parser.add_argument("--only", default="", help="mutants with this text in their name")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--share", type=share, default=(0, 1), metavar="I/N",
                        help="every Nth of them, from the Ith on")
    parser.add_argument("--results", type=Path, help="a file of JSON lines to go on with")
    parser.add_argument("--again", action="append", default=[], choices=VERDICTS)
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files")
    arguments = parser.parse_args()
    if arguments.table:
        table([row for path in arguments.table for row in read(path)])
        return 0
    torch.set_num_threads(1)
    expected = tomllib.loads((HERE / "names.toml").read_text("utf-8"))
    known = {row["mutant"]: row for row in read(arguments.results)} if arguments.results else {}
    first, count = arguments.share
    chosen = [one for one in entries(arguments.kind)
              if (not arguments.stage or one.stage in arguments.stage)
              and arguments.only in one.name and one.device in ("any", "cpu")
              and (arguments.kind == "honest" or one.outcomes != ("pass",))]
    rows = []
    for attack in chosen[::arguments.every][first::count]:
        row = known.get(attack.name)
        if row is None or row["verdict"] in arguments.again:
            row = result(attack, names_of(attack, expected, arguments.kind), arguments.kind)
            print(f"{attack.name:<44} {row['verdict']:<9} {' + '.join(row['got']) or '-':<34} "
                  f"{row['seconds']:4.1f}  "
                  f"{'' if row['verdict'] == 'rightly' else '/'.join(row['want'])}", flush=True)
            if arguments.results:
                with arguments.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        rows.append(row)
    table(rows)
    return 0


def result(attack: Attack, want: list[str], kind: str) -> dict:
    """Diagnose one mutant.  -> its line of results."""
    got, seconds, said = diagnose(attack)
    verdict = compare(got, want)
    return {"mutant": attack.name, "stage": attack.stage, "want": want, "got": got,
            "verdict": verdict, "seconds": round(seconds, 2), "said": said}


def read(path: Path) -> list[dict]:
    """The newest line of each mutant in a file of results; empty if there is no file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return list({row["mutant"]: row for row in rows}.values())


def entries(kind: str) -> list[Attack]:
    """The entries of a kind: mutants, a new student's mistakes, or what must not get a
    diagnosis."""
    if kind in ("honest", "mutants"):
        return attacks((kind,))
    rows = tomllib.loads((HERE / f"{kind}.toml").read_text("utf-8"))["mutant"]
    solved = {n: (ROOT / f"problem_{n}.py").read_text("utf-8") for n in STAGES}
    return [_mutant(row["stage"], row, solved[row["stage"]]) for row in rows]


def names_of(attack: Attack, expected: dict, kind: str) -> list[str]:
    """The ids of the planted mistake."""
    if kind == "students":
        rows = tomllib.loads((HERE / f"{kind}.toml").read_text("utf-8"))["mutant"]
        return next(row["names"] for row in rows
                    if row["id"] == attack.id and row["stage"] == attack.stage)
    own = expected.get(f"stage_{attack.stage}", {})
    names = own.get(attack.id, expected["any"].get(attack.id, []))
    return [names] if isinstance(names, str) else names


def compare(got: list[str], want: list[str]) -> str:
    """-> "rightly": all ids given are wanted; "wrongly": one is not; "placed": only the line was
    given; "none": nothing.

    An id a/b means "a or else b", for two mistakes that give the same numbers.
    """
    if not got:
        return "none"
    if all(one in {*WORDS, PLACE} for one in got):
        return "placed"
    return "rightly" if all(set(one.split("/")) & set(want) for one in got) else "wrongly"


def diagnose(attack: Attack) -> tuple[list[str], float, str]:
    """Grade it up to the first wrong case.  -> the ids given; seconds; what was said instead of a
    name."""
    outcome = run(attack, "cpu", SEED, explains=True)
    result = outcome.result
    failed = next((check for check in result.checks
                   if check.outcome not in ("pass", "needless work")), None)
    if red := [step for step in result.steps if step["light"] == "wrong"]:
        names = [step["mistake"] for step in red if step["mistake"]]
        return names, result.seconds, "; ".join(f"{step['id']}: {step['text']}" for step in red)
    if failed is None:
        return [], result.seconds, result.sentence or PASSED
    found = failed.diagnosis or {"kind": "none", "id": failed.outcome}
    if found["kind"] == "observed":
        return [found["id"]], result.seconds, failed.message
    return [], result.seconds, f"{found['id']}: {failed.message}"


def table(rows: list[dict]) -> None:
    """Print shares and times by stage.  A mutant that passes every case is not counted."""
    print(f"\n{'stage':>5} {'mutants':>8}" + "".join(f" {verdict:>8}" for verdict in VERDICTS)
          + f" {'share':>7} {'median s':>9} {'largest s':>10}")
    counted = [row for row in rows if row["said"] != PASSED]
    for stage in (*sorted({row["stage"] for row in counted}), "all"):
        some = [row for row in counted if stage in (row["stage"], "all")]
        count = {v: sum(row["verdict"] == v for row in some) for v in VERDICTS}
        times = [row["seconds"] for row in some] or [0.0]
        good = (count["rightly"] + count["placed"]) / max(len(some), 1)
        print(f"{stage:>5} {len(some):>8}" + "".join(f" {n:>8}" for n in count.values())
              + f" {good:>7.0%} {statistics.median(times):>9.1f} {max(times):>10.1f}")
    print(f"{len(rows) - len(counted)} passed every case and are not counted")


if __name__ == "__main__":
    sys.exit(main())
