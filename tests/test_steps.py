"""A blank step turns its stage red and is named, be it to be written or to be copied."""

import io
from pathlib import Path

import pytest

from grader.assignment import submission
from grader.course.stages import STAGES
from grader.judge.grade import Options, grade_stage
from grader.report.screen import Reporter

ROOT = Path(__file__).parent.parent
STEPS = [
    (number, step)
    for number, stage in STAGES.items()
    for steps in [submission.steps((ROOT / stage.filename).read_text("utf-8"))]
    # The first one to be written, and the first one that is copied.
    for step in [next((step for step in steps if bool(step.origin) == copied), None)
                 for copied in (False, True)]
    if step is not None
]


@pytest.mark.interpreter
@pytest.mark.parametrize(("number", "step"), STEPS, ids=[step.id for _, step in STEPS])
def test_blanking_one_step_turns_its_stage_red_and_names_it(number, step, tmp_path):
    stage = STAGES[number]
    rows = (ROOT / stage.filename).read_text("utf-8").splitlines()
    marker = rows[step.first_line - 1]
    indent = marker[: len(marker) - len(marker.lstrip())]
    rows[step.first_line : step.last_line - 1] = [
        f'{indent}raise NotImplementedError("step {step.id}")  # TODO: your code here'
    ]
    (tmp_path / stage.filename).write_text("\n".join(rows) + "\n", "utf-8")
    options = Options(tmp_path, "cpu", seed=1, timeout=60.0, quick=True, stop_early=True)
    result = grade_stage(stage, options, Reporter(io.StringIO()))
    assert result.outcome == "crashed"
    told = [result.sentence, *(check.message for check in result.checks)]
    assert any(f"step {step.id} is still blank" in text for text in told), told
    remedy = f"python -m grader.carry {number}" if step.origin else f"still to write: {step.id}"
    assert any(remedy in text for text in told), told
