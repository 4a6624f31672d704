"""Makes the leaderboard, one static page with a board per stage and GPU, and reruns the leaders."""

import json
import secrets
import tempfile
from datetime import datetime
from pathlib import Path

from classroom import roster
from classroom.batch import standard_case
from classroom.child import Child
from classroom.machine import Machine
from classroom.pages import rendered
from classroom.reports import plain, read_reports
from grader.host import files

QUIET = ("amber brisk calm clear deep early fair green keen lunar merry noble quiet rapid silver "
         "steady sunny tidal vivid warm").split()
NOUNS = ("badger cedar comet crane delta ember falcon fjord harbor heron island lantern maple "
         "meadow otter pebble raven river tiger willow").split()
LEFT_OUT = "-"  # the alias of who does not want to be on a board
VERIFIED = "verified.json"  # in RESULTS


def entries(results: Path) -> list[dict]:
    """All stages that passed and were timed, with the student's name.  Raises ValueError: there are
    no students in the folder."""
    found = []
    for report in read_reports(results):
        for stage in report["stages"]:
            times = stage["benchmark"]
            if stage["outcome"] == "pass" and times and times["ms"] and stage.get("timing"):
                found.append({
                    "student": report["student"], "key": report["key"], "stage": stage["stage"],
                    "title": stage["title"], "gpu": stage["timing"]["device"],
                    "sha256": stage["sha256"], "case": standard_case({"stage": stage}), **times})
    return found


def boards(found: list[dict], aliases: dict[str, str], verified: dict[str, dict]) -> list[dict]:
    """One board per GPU and stage, with places, the fastest first."""
    groups: dict[tuple[str, int], list[dict]] = {}
    for entry in found:
        groups.setdefault((entry["gpu"], entry["stage"]), []).append(entry)
    made = []
    for (gpu, stage), group in sorted(groups.items()):
        rows, first, place = [], None, 0
        for number, entry in enumerate(sorted(group, key=lambda entry: entry["ms"]), start=1):
            half = (entry["spread_ms"] + first["spread_ms"]) / 2 if first else 0
            if first is None or entry["ms"] - first["ms"] > half:
                first, place = entry, number
            rows.append({**entry, "place": place, "alias": aliases[entry["student"]],
                         "verified": verified.get(f"{stage}-{entry['sha256']}-{gpu}"), **{
                             f"over_{peer}": (ms := entry[f"{peer}_ms"]) and ms / entry["ms"]
                             for peer in ("naive", "sdpa")}})
        made.append({"gpu": gpu, "stage": stage, "title": group[0]["title"], "rows": rows})
    return made


def read_aliases(results: Path, students: list[str]) -> dict[str, str]:
    """Student -> alias, from RESULTS/aliases.csv; new aliases are added there.  Raises ValueError:
    the table is damaged, or two students have the same alias."""
    path, aliases = results / "aliases.csv", {}
    if path.is_file():
        _, rows = roster.table(path, "aliases.csv", ("student", "alias"))
        aliases = {_bare(row["student"]): _bare(row["alias"]) for row in rows if row["alias"]}
    shown = [alias for alias in aliases.values() if alias != LEFT_OUT]
    if len(set(shown)) < len(shown):
        raise ValueError(f"{path}: want an alias for one student each; got one twice")
    free = [f"{quiet} {noun}" for quiet in QUIET for noun in NOUNS]
    secrets.SystemRandom().shuffle(free)
    taken = set(aliases.values())
    names = (name for name in free + [f"{name} {i}" for i in range(2, 100) for name in free]
             if name not in taken)
    aliases |= {student: next(names) for student in sorted(set(students) - set(aliases))}
    files.replace(path, roster.written([("student", "alias"), *(
        map(plain, pair) for pair in sorted(aliases.items()))]), 0o600)
    return aliases


def _bare(cell: str) -> str:
    """Undo plain()."""
    return cell[1:] if cell.startswith("'") and plain(cell[1:]) != cell[1:] else cell


def read_verified(results: Path) -> dict[str, dict]:
    """What verify() found earlier.  Raises ValueError: its file is damaged."""
    path = results / VERIFIED
    try:
        verified = json.loads(path.read_bytes()) if path.is_file() else {}
        return {name: dict(each) for name, each in verified.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{path}: want what --verify wrote; got something else") from None


def verify(results: Path, found: list[dict], count: int, machine: Machine, say) -> dict[str, dict]:
    """Grade and time the leaders of every board again: alone, on fresh inputs, with every case
    replayed, and with an added comment, so that no kernel comes from the cache.  -> all that were
    ever verified: "stage-sha256-GPU" -> outcome, ms, and whether it moved."""
    path, verified = results / VERIFIED, read_verified(results)
    asked = [row for board in boards(found, {e["student"]: "" for e in found}, {})
             if board["gpu"] == machine.gpu_name for row in board["rows"] if row["place"] <= count]
    with tempfile.TemporaryDirectory(prefix=".verify-", dir=results) as working:
        for number, entry in enumerate(asked, start=1):
            say(f"{number} of {len(asked)}: P{entry['stage']} of {entry['student']}")
            name = f"problem_{entry['stage']}.py"
            folder = Path(working) / str(number)
            folder.mkdir()
            source = (results / "submissions" / entry["key"] / name).read_bytes()
            (folder / name).write_bytes(source + f"\n# {secrets.token_hex(8)}\n".encode())
            child = Child([entry["stage"]], folder, folder.with_name(f"of-{number}"),
                          ["--device", "cuda", "--replay-all",
                           "--hide", str(results.resolve())], 600.0,
                          machine.cores, machine.gpus[0])
            stage = {"outcome": "grader_fault", "benchmark": None}
            for report in child.reports():
                stage = next(iter(report["stages"]), stage)
            times = stage["benchmark"] or {"ms": None, "spread_ms": 0.0}
            half = (entry["spread_ms"] + times["spread_ms"]) / 2
            moved = times["ms"] is not None and abs(times["ms"] - entry["ms"]) > half
            verified[f"{entry['stage']}-{entry['sha256']}-{entry['gpu']}"] = {
                "outcome": stage["outcome"], "was": entry["ms"], "ms": times["ms"], "moved": moved}
            files.replace(path, (json.dumps(verified, indent=1) + "\n").encode(), 0o600)
    return verified


def page(made: list[dict], now: datetime) -> bytes:
    """The page, without any student's name."""
    return rendered("leaderboard.html", boards=made, now=now)
