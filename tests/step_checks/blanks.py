"""What the tests of the lights share: a file's steps asked in the worker of its solved file."""

from functools import cache
from pathlib import Path

import torch

from grader.assignment import submission
from grader.assignment.record import ROOT
from grader.assignment.submission import Submission
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.step_checks.blanks import Blanks
from grader.step_checks.checks import Runner, StepCheck

torch.set_num_threads(1)


def solved(stage: int) -> str:
    return (ROOT / f"problem_{stage}.py").read_text("utf-8")


def with_change(stage: int, step: str, old: str, new: str) -> str:
    """The solved file with another text in this step."""
    before, begin, rest = solved(stage).partition(f"# BEGIN SOLUTION {step}\n")
    body, end, after = rest.partition("# END SOLUTION")
    assert old in body
    return before + begin + body.replace(old, new) + end + after


def submitted(source: str, stage: int) -> Submission:
    return Submission(Path(f"problem_{stage}.py"), source.encode(), None, "ready", "", None,
                      submission.blank_steps(source), tuple(submission.steps(source)))


@cache
def runner(stage: int) -> Runner:
    """Of the solved file; its worker is kept, for other texts of its steps."""
    options = Options(ROOT, "cpu", 1, 60.0)
    return Runner(STAGES[stage], options, submitted(solved(stage), stage))


def lights(source: str, stage: int) -> dict[str, StepCheck]:
    """Of a file that is the solved one but for what stands in its steps."""
    known, one = _solved_lights(stage), runner(stage)
    texts = _texts(source)
    changed = {id for id, text in _texts(solved(stage)).items() if texts[id] != text}
    file = submitted(source, stage)
    one.blanks = Blanks(source, file.steps)
    same = {id: light for id, light in known.items() if id not in changed}
    return {light.id: light for light in one.lights(known=same)}


@cache
def _solved_lights(stage: int) -> dict[str, StepCheck]:
    return run_anew(solved(stage), stage)


def run_anew(source: str, stage: int = 3) -> dict[str, StepCheck]:
    """As lights(), with every step run again."""
    one = runner(stage)
    one.blanks = Blanks(source, submitted(source, stage).steps)
    return {light.id: light for light in one.lights()}


def colours(found: dict[str, StepCheck], light: str) -> list[str]:
    return [id for id, one in found.items() if one.light == light]


def _texts(source: str) -> dict[str, list[str]]:
    rows = submission.lines(source)
    return {step.id: rows[step.first_line:step.last_line - 1] for step in submission.steps(source)}

