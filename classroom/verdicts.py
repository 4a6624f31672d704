"""Lists a student's stages as tests, from which the formats of all systems are made."""

from typing import NamedTuple

from classroom.book import explanation, named
from grader.assignment.record import grader_of


class Verdict(NamedTuple):
    """A stage of a student.  name: "p4"; passed: None if undecided; said: all that the autograder
    said, "" if it passed; mistake: the named mistake, or the first line of what was said; help: the
    command that says more."""

    name: str
    title: str
    passed: bool | None
    points: float
    max_points: float
    said: str
    mistake: str
    help: str

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
