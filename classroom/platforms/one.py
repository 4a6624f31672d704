"""Grades one submission by a deadline of its own, of which every stage has its share, and writes
the results so far after every stage: the platform may end this at any time."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from classroom import grades
from classroom.batch import fault
from classroom.child import Child
from classroom.gather import Asked, one
from classroom.reports import stage_report
from classroom.store import Unit
from grader.assignment.record import ROOT, sha256, version

CASES = ROOT / "cases.toml"  # the instructor's own, if the kit was packed with some
TRIES = 2  # if the grader itself fails
CALL_SECONDS = 60.0  # at most, for one call
MEMORY_GIB = 0.5  # for the files, without a GPU


@dataclass(frozen=True)
class Kit:
    """The instructor's settings, from when the kit was packed.  seconds: for all stages."""

    stages: tuple[int, ...]
    seconds: float
    worth: grades.Policy


def packed() -> Kit:
    """The kit that this file is in."""
    given = json.loads((ROOT / "kit.json").read_bytes())
    path = ROOT / "policy.toml"
    return Kit(tuple(given["stages"]), given["seconds"],
               grades.read(path if path.is_file() else None))


def grade(folder: Path, kit: Kit, write: Callable[[dict], None], hidden: list[Path],
          device: str = "cpu") -> dict:
    """Grade the problem files in a folder.  write(report): called at once and after every stage,
    with those keys of a student's JSON that say what was found ("stages", "unsettled", "points",
    "max_points", "grader", "notes", "seconds").  hidden: folders that the files must not read.
    -> the last report."""
    start, student = time.monotonic(), one(folder, Asked(kit.stages, kit.worth.ignore))
    records: dict[int, dict] = {}  # by stage

    def is_over() -> bool:
        return time.monotonic() - start > kit.seconds

    def left() -> list[int]:
        """The stages to grade yet, or once more."""
        return [number for number in kit.stages
                if number in student.files and number not in student.refused
                and (number not in records
                     or records[number]["stage"]["outcome"] == "grader_fault")]

    def report() -> dict:
        stages = [stage_report(student, number, records.get(number)) for number in kit.stages]
        for stage in stages:
            if stage["outcome"] == "pending":
                stage["message"] = (
                    f"Not graded: the {kit.seconds / 60:g} minutes for all stages were over. "
                    "Nothing is lost by it: hand in again, or ask for it." if is_over() else
                    "Not graded yet.")
        made = {"stages": stages, "grader": version(), "notes": list(student.notes),
                "handed_in": None, "marked_late": False, "seconds": time.monotonic() - start}
        grades.apply(made, kit.worth)
        write(made)
        return made

    report()
    each = kit.seconds / len(kit.stages)
    options = ["--device", device, "--no-benchmark", "--timeout",
               f"{min(CALL_SECONDS, each / 2):.3g}", "--stage-timeout", f"{each:.3g}",
               "--assignment", kit.worth.assignment]
    options += ["--memory", str(MEMORY_GIB)] if device == "cpu" else []
    options += ["--cases", str(CASES)] if CASES.is_file() else []
    for place in (folder, *hidden):
        options += ["--hide", str(place.resolve())]
    with tempfile.TemporaryDirectory(prefix="graded-") as working:
        for number, data in student.files.items():
            (Path(working) / f"problem_{number}.py").write_bytes(data)
        for _ in range(TRIES):
            if is_over() or not left():
                break
            child = Child(left(), Path(working), Path(working) / "run", options, each, 1)
            for found in child.reports(is_over):
                where = {name: found[name] for name in ("device", "torch", "triton", "seed")}
                records.update((stage["stage"], {
                    "stage": stage, **where, "alone": True, "timing": None})
                    for stage in found["stages"])
                report()
            for number in [] if is_over() else left():  # they failed for reasons of ours
                records.setdefault(number, {"alone": True, "stage": fault(
                    Unit(number, sha256(student.files[number])), child.last_words())})
    return report()


def summary(report: dict) -> list[str]:
    """The points, where it was graded, and what else there is to know."""
    left = ", ".join(f"P{number}" for number in report["unsettled"])
    points = f"{sum(stage['points'] for stage in report['stages']):g} of {report['max_points']:g}"
    device = next((stage["device"] for stage in report["stages"] if stage.get("device")), "cpu")
    return [f"{points} points" + (f" by now; not settled: {left}." if left else "."),
            "Graded without a GPU: the kernels ran in Triton's interpreter, and nothing was timed."
            if device == "cpu" else f"Graded on {device}; nothing was timed.", *report["notes"]]


def ends_tidily() -> None:
    """Have SIGTERM end the autograder, too, and remove what it made."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
