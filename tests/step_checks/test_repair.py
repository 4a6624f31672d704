"""A remedy of a step's text is told without a search: it is proven by running the changed step."""

import pytest

from grader.report.results import StepCheck
from tests.step_checks.blanks import lights, solved


def light(stage: int, step: str, old: str, new: str) -> StepCheck:
    """Of the solved step with this change."""
    before, begin, rest = solved(stage).partition(f"# BEGIN SOLUTION {step}\n")
    body, end, after = rest.partition("# END SOLUTION")
    assert old in body
    return lights(before + begin + body.replace(old, new) + end + after, stage)[step]


@pytest.mark.parametrize("stage, step, old, new, said", [
    (1, "1.1", "start_m + torch.arange(q.shape[-2]", "torch.arange(start_m, start_m + BLOCK_M",
     "BLOCK_M is the size of a whole tile, and the last tile is smaller: here q.shape[-2] is 5."),
], ids=lambda value: str(value)[:40])
def test_a_mistake_is_named_without_a_search(stage, step, old, new, said, monkeypatch):
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)
    found = light(stage, step, old, new)
    assert found.light == "wrong" and said in found.lines[0], found.lines
