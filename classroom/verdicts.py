"""Lists a student's stages as tests, from which the formats of all systems are made."""

from typing import NamedTuple

from classroom.reports import explanation, named
from grader.assignment.record import grader_of


class Verdict(NamedTuple):
    """A stage of a student."""

    name: str  # "p4"
    title: str
    passed: bool | None  # None: undecided
    points: float
    max_points: float
    said: str  # all that the autograder said, "" if it passed
    mistake: str  # the named one, or the first line of what was said
    help: str  # the command that says more

    @property
    def output(self) -> str:
        """The mistake first, then all that was said, and what to type."""
        said = self.said if self.said.startswith(self.mistake) else f"{self.mistake}\n\n{self.said}"
        return f"{said}\n\nnext, in your folder: {self.help}" if said else "passed"


def verdicts(report: dict) -> list[Verdict]:
    """The stages of a student's report."""
    found = []
    for stage in report["stages"]:
        number, outcome = stage["stage"], stage["outcome"]
        said, mistake, help = "", "", ""
        if outcome != "pass":
            said = explanation(stage)
            mistake = next(iter(named(stage).values()), said.partition("\n")[0] or outcome)
            red = next((step["id"] for step in stage.get("steps", ())
                        if step["light"] == "wrong"), "")
            help = f"python {grader_of(number)} " + (f"--hint {red}" if red else f"--p{number}")
        found.append(Verdict(
            f"p{number}", stage["title"],
            None if number in report["unsettled"] else outcome == "pass",
            stage["points"], stage["max_points"], said, mistake, help))
    return found
