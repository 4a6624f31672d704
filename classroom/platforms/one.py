"""Grades one submission, and writes the results so far after every stage.

The platform may end this at any time, and then reads what was written last.  So it has a deadline
of its own, of which every stage has its share: a file that hangs takes no time from the others.
"""

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
from classroom.gather import Asked, Submitted, one
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
    """Grade the problem files in a folder.  -> the last report.

    write(report): called at once and after every stage; the report has those keys of a student's
    JSON that say what was found ("stages", "unsettled", "points", "max_points", "grader", "notes",
    "seconds").  hidden: folders that the files must not read.
    """
    start, student = time.monotonic(), one(folder, Asked(kit.stages, kit.worth.ignore))
    grading = _Grading(student, kit, start, write)
    grading.report()
    each = kit.seconds / len(kit.stages)
    options = ["--device", device, "--no-benchmark", "--timeout",
               f"{min(CALL_SECONDS, each / 2):.3g}", "--stage-timeout", f"{each:.3g}",
               "--assignment", kit.worth.assignment]
    options += ["--memory", str(MEMORY_GIB)] if device == "cpu" else []
    if CASES.is_file():
        options += ["--cases", str(CASES)]
    for place in (folder, *hidden):
        options += ["--hide", str(place.resolve())]
    with tempfile.TemporaryDirectory(prefix="graded-") as working:
        for number, data in student.files.items():
            (Path(working) / f"problem_{number}.py").write_bytes(data)
        for _ in range(TRIES):
            asked = grading.left()
            if not asked or grading.is_over():
                break
            child = Child(asked, Path(working), Path(working) / "run", options, each, 1)
            for found in child.reports(grading.is_over):
                grading.take(found)
                grading.report()
            if not grading.is_over():
                grading.ended_early(child.last_words())
    return grading.report()


class _Grading:
    """The results so far.  start: time.monotonic() at the beginning."""

    def __init__(self, student: Submitted, kit: Kit, start: float, write: Callable[[dict], None]):
        self.student, self.kit, self.start, self.write = student, kit, start, write
        self.records: dict[int, dict] = {}  # by stage

    def is_over(self) -> bool:
        return time.monotonic() - self.start > self.kit.seconds

    def left(self) -> list[int]:
        """The stages to grade yet, or once more."""
        return [number for number in self.kit.stages
                if number in self.student.files and number not in self.student.refused
                and (number not in self.records
                     or self.records[number]["stage"]["outcome"] == "grader_fault")]

    def take(self, found: dict) -> None:
        """The autograder's JSON."""
        where = {name: found[name] for name in ("device", "torch", "triton", "seed")}
        for stage in found["stages"]:
            self.records[stage["stage"]] = {"stage": stage, **where, "alone": True, "timing": None}

    def ended_early(self, why: str) -> None:
        """What has no result has failed for reasons of ours."""
        for number in self.left():
            unit = Unit(number, sha256(self.student.files[number]))
            self.records.setdefault(
                number, {"stage": fault(unit, why), "alone": True})

    def report(self) -> dict:
        stages = [stage_report(self.student, number, self.records.get(number))
                  for number in self.kit.stages]
        for stage in stages:
            if stage["outcome"] == "pending":
                stage["message"] = (
                    f"Not graded: the {self.kit.seconds / 60:g} minutes for all stages were over. "
                    "Nothing is lost by it: hand in again, or ask for it." if self.is_over() else
                    "Not graded yet.")
        made = {"stages": stages, "grader": version(), "notes": list(self.student.notes),
                "handed_in": None, "marked_late": False, "seconds": time.monotonic() - self.start}
        grades.apply(made, self.kit.worth)
        self.write(made)
        return made


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
