"""Makes a class to try the class tools on: python -m attacks.made_class make DIR --students 40

writes DIR/class/, with one folder per student, and DIR/expected.json.  The files are blank or come
from this catalogue: solved, half finished, wrong, crashing, hanging and dishonest, in shares as in
a real class.  After `python -m classroom grade DIR/class --out RESULTS`,

    python -m attacks.made_class compare DIR RESULTS --sample 60

counts unexpected outcomes, and grades a sample of files one by one with the autograder, which must
give the same verdicts.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from attacks.catalogue import ROOT, Attack, attacks
from grader.starter import blank

SHARES = {"honest": 56, "mutants": 16, "unfinished": 10, "blank": 10, "missing": 4, "crashes": 2,
          "dishonest": 1.5, "hangs": 0.5}  # per hundred files
CRASH = "raise ValueError('to do: {who}')\n"
HANG = "while True:  # {who}\n    pass\n"


def choices(device: str) -> dict[tuple[str, int], list[Attack]]:
    """Entries of the catalogue by kind and stage, for this device and without options."""
    found: dict[tuple[str, int], list[Attack]] = {}
    for attack in attacks(("mutants", "unfinished", "dishonest", "honest")):
        if attack.device in ("any", device) and not (attack.options or attack.timed) \
                and attack.form == "file" and not attack.beyond:
            found.setdefault((attack.kind, attack.stage), []).append(attack)
    return found


def make(folder: Path, students: int, seed: int, device: str) -> None:
    """Write folder/class and folder/expected.json."""
    by_lot, entries, expected = random.Random(seed), choices(device), {}
    for i in range(students):
        name = f"student_{i:03d}"
        (folder / "class" / name).mkdir(parents=True)
        for stage in range(1, 10):
            (kind,) = by_lot.choices([*SHARES], [*SHARES.values()])
            wanted, source = made(kind, stage, entries, by_lot, name)
            expected[f"{name}/{stage}"] = {"kind": kind, "outcomes": wanted}
            if source is not None:
                (folder / "class" / name / f"problem_{stage}.py").write_bytes(source)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def made(kind: str, stage: int, entries: dict, by_lot: random.Random,
         who: str) -> tuple[list[str], bytes | None]:
    """-> the right outcomes; the file, or None for a missing one."""
    solved = (ROOT / f"problem_{stage}.py").read_text("utf-8")
    if kind == "missing":
        return ["missing"], None
    if kind == "blank":
        return ["not_started"], blank(solved).encode()
    if kind in ("crashes", "hangs"):
        text = (CRASH if kind == "crashes" else HANG).format(who=who)
        return ["crashed" if kind == "crashes" else "timeout"], (solved + text).encode()
    attack = by_lot.choice(entries[kind, stage])
    return list(attack.outcomes), attack.source + f"\n# {who}\n".encode()


def compare(folder: Path, results: Path, sample: int, seed: int) -> int:
    """-> how many verdicts are unexpected, or differ when the file is graded by itself."""
    expected = json.loads((folder / "expected.json").read_text())
    found = {}
    for path in sorted((results / "students").glob("*.json")):
        report = json.loads(path.read_bytes())
        for stage in report["stages"]:
            if stage["outcome"] == "unfinished":  # an outcome of the class tools only
                stage["outcome"] = "crashed"
            found[f"{report['student']}/{stage['stage']}"] = stage
    bad = 0
    for key, stage in found.items():
        if stage["outcome"] not in expected[key]["outcomes"]:
            bad += 1
            print(f"{key} ({expected[key]['kind']}): want {' or '.join(expected[key]['outcomes'])};"
                  f" got {stage['outcome']} {stage['message']}")
    print(f"{len(found) - bad} of {len(found)} outcomes are as expected.")
    graded = sorted(key for key, stage in found.items() if stage["sha256"])
    drawn, differ = random.Random(seed).sample(graded, min(sample, len(graded))), 0
    for number, key in enumerate(drawn):
        if number % 10 == 0:
            print(f"{number} of {len(drawn)} graded alone, {differ} differ ...", flush=True)
        name, stage = key.split("/")
        alone = grade_alone(folder / "class" / name, int(stage), results)
        if (alone["outcome"], alone["points"]) != (found[key]["outcome"], found[key]["points"]):
            differ += 1
            print(f"{key}: alone {alone['outcome']}, {alone['points']:g} points; in the class "
                  f"{found[key]['outcome']}, {found[key]['points']:g}")
    print(f"{len(drawn) - differ} of {len(drawn)} verdicts are those of the file alone.")
    return bad + differ


def grade_alone(folder: Path, stage: int, results: Path) -> dict:
    """The stage in the autograder's JSON, graded with the class's settings."""
    student = json.loads(next((results / "students").glob("*.json")).read_bytes())
    program = "autograder.py" if stage < 8 else "autograder_optional.py"
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, str(ROOT / program), f"--p{stage}", "--submission", str(folder),
             "--json", f"{scratch}/out.json", "--no-benchmark", "--device", student["device"],
             "--timeout", str(student["timeout"]), "--stage-timeout",
             str(student["stage_timeout"])], cwd=ROOT, capture_output=True)
        return json.loads(Path(scratch, "out.json").read_bytes())["stages"][0]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.made_class")
    commands = parser.add_subparsers(dest="command", required=True)
    making, comparing = commands.add_parser("make"), commands.add_parser("compare")
    for command in (making, comparing):
        command.add_argument("folder", metavar="DIR", type=Path)
        command.add_argument("--seed", type=int, default=1)
    making.add_argument("--students", metavar="N", type=int, default=40)
    making.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    comparing.add_argument("results", metavar="RESULTS", type=Path)
    comparing.add_argument("--sample", metavar="N", type=int, default=60)
    options = parser.parse_args(argv)
    if options.command == "make":
        make(options.folder, options.students, options.seed, options.device)
        return 0
    return int(compare(options.folder, options.results, options.sample, options.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
