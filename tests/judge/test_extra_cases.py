"""The cases that run on a file which is right so far."""

from types import SimpleNamespace

import pytest

from grader.course import contract
from grader.course.stages import STAGES
from grader.judge import extra_cases
from grader.judge.run_cases import CasesRun
from grader.report.results import Check
from tests.judged import PLAIN


@pytest.mark.parametrize("outcome, tiles, explained, sizes", [
    ("pass", {128, 64}, False, "your tile sizes (64, 128)"),
    ("wrong", set(), True, "a usual tile size (64)")])
def test_the_first_wrong_case_at_a_border_is_explained(monkeypatch, outcome, tiles, explained,
                                                       sizes):
    """Cases that only the course promises leave it open whether one that decides was explained."""
    seen, run = [], CasesRun(None, True)
    run.explained, run.tiles = True, tiles
    context = SimpleNamespace(
        stage=STAGES[4], runs_every_case=True, claimed=None, options=SimpleNamespace(
            device="cpu", seed=0), step_checks=SimpleNamespace(result=lambda: []),
        result=SimpleNamespace(checks=[Check("robust/a", "robust", outcome),
                                       Check("beyond/a", "beyond", "wrong")]))

    class Waiting:
        left = 0

        def __init__(self, context, cases):
            seen.append(run.explained)

        def help_after_step_checks(self, run):
            pass

        def next(self):
            return None

    recorded = []
    monkeypatch.setattr(contract, "cases", lambda *what: [PLAIN] * 2)
    monkeypatch.setattr(extra_cases, "Waiting", Waiting)
    monkeypatch.setattr(extra_cases, "_revive", lambda *what: None)
    monkeypatch.setattr(extra_cases, "record", lambda context, check: recorded.append(check.label))
    extra_cases.run_at_tile_borders(context, run)
    assert seen == [explained]
    assert recorded == [f"(2 cases with lengths just below and above {sizes})"]
