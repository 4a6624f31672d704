"""Reading a stage's file before its cases: what Python cannot parse is settled by reading it."""

import ast
import io
import re
from pathlib import Path

import pytest

from grader import blank
from grader.assignment.record import ROOT
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.judge import choose_cases
from grader.judge.context import GradingContext
from grader.judge.grade import grade_stage
from grader.report.results import Check
from grader.report.screen import Reporter

# In the manner of the original's template: an end without a beginning, lines of `...`, one of them
# half written.
HALF_WRITTEN = '''\
import torch
import triton
import triton.language as tl


@triton.jit
def weighted_sum_kernel(x_ptr, w_ptr, out_ptr, num_cols, BLOCK: tl.constexpr):
    """One program per row."""
    row = tl.program_id(0)
    # 1. Where does this row begin?
    first = x_ptr + row * num_cols
    out =

    # 2. Accumulate, BLOCK columns at a time.
    acc = ...
    for begin in range(0, ...):
        tile = ...

    # 3. Store the sum.
    ...

# --- END OF STUDENT IMPLEMENTATION ---


def weighted_row_sum_forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
    weighted_sum_kernel[(x.shape[0],)](x, w, out, x.shape[1], BLOCK=128)
    return out
'''
# Each kind for three stages: what reads a file does not know its stage.
FILES = [(number, f"{('solved', 'starter', 'original')[number % 3]} {number}")
         for number in STAGES] + [(2, "half written")]


def text_of(number: int, name: str) -> str:
    if name == "half written":
        return HALF_WRITTEN
    solved = (ROOT / f"problem_{number}.py").read_text("utf-8")
    if name.startswith("original"):
        file, = (ROOT / "attacks/unfinished").glob(f"original_{number}_*.py")
        return file.read_text("utf-8")
    return blank.blank(solved) if name.startswith("starter") else solved


def damaged(text: str):
    """The text cut at every tenth line; without the first bracket, colon or quote from there on."""
    rows = text.splitlines(keepends=True)
    for at in range(0, len(rows), 10):
        above, below = "".join(rows[:at]), "".join(rows[at:])
        yield above + rows[at].rstrip("\n")
        for lost in ("[()\\[\\]]", ":", "[\"']"):
            yield above + re.sub(lost, "", below, count=1)


def outcome_of(folder: Path, number: int, text: str) -> tuple[str, str]:
    """-> the outcome and what is said of it, of a file that must not be run."""
    (folder / f"problem_{number}.py").write_text(text, "utf-8")
    result = grade_stage(STAGES[number], Options(folder, "cpu", 1, 60.0), Reporter(io.StringIO()))
    return result.outcome, result.sentence


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    monkeypatch.setattr(choose_cases, "run_apart", lambda *what: pytest.fail("it was run"))


@pytest.mark.parametrize(("number", "name"), FILES, ids=[name for _, name in FILES])
def test_a_file_that_python_cannot_parse_is_told_its_line_and_is_not_run(tmp_path, number, name):
    refused = 0
    for text in damaged(text_of(number, name)):
        try:
            ast.parse(text)
        except SyntaxError as error:
            refused += 1
            outcome, said = outcome_of(tmp_path, number, text)
            assert outcome in ("crashed", "not_started"), (said, text)
            assert f"problem_{number}.py:{error.lineno}: {type(error).__name__}: " in said, text
    assert refused > 1


def test_a_line_half_written_among_empty_blocks_is_told(tmp_path):
    assert outcome_of(tmp_path, 2, HALF_WRITTEN) == (
        "crashed", "problem_2.py:12: SyntaxError: invalid syntax")


@pytest.mark.parametrize("deep", ["-" * 200_000 + "1", "+".join("1" * 20_000)])
def test_what_is_nested_too_deeply_is_told_its_line(tmp_path, deep):
    outcome, said = outcome_of(tmp_path, 2, f"a = 1\nx = {deep}\nb = (a,\n     x)\n")
    assert outcome == "crashed"
    assert re.fullmatch(r"problem_2\.py:2: \w+Error: nested too deeply for Python to read", said)


def chosen(number: int, source: str = "# BEGIN SOLUTION 1.1", **options):
    """-> the cases that decide, and those that are only reported."""
    file = choose_cases.submission.Submission(
        Path("problem.py"), source.encode(), "", tree=ast.parse(source),
        steps=(choose_cases.submission.steps(source + "\n# END SOLUTION 1.1\n"))
        if source.startswith("#") else ())
    return choose_cases.choose_cases(GradingContext(
        STAGES[number], file, Options(Path("."), "cpu", 1, 60.0, **options), None, None))


@pytest.mark.parametrize("options, groups, has_others", [
    ({}, {"standard", "robust"}, True), ({"quick": True}, {"standard"}, False),
    ({"stop_early": True}, {"standard", "robust"}, False)])
def test_which_groups_decide_and_whether_others_are_reported(options, groups, has_others):
    decisive, informational = chosen(9, **options)
    assert {case.group for case in decisive} == groups
    assert {case.group for case in informational} == ({"beyond"} if has_others else set())


def test_without_markers_what_only_the_course_promises_does_not_decide_at_once():
    marked, unmarked = chosen(3)[0], chosen(3, "x = 1")[0]
    assert any(case.course for case in marked) and not any(case.course for case in unmarked)
    assert any(case.course for case in chosen(3, "x = 1")[1])
    assert chosen(3, "x = 1", promises_all=True)[0] == marked


def test_an_instructors_own_cases_are_asked_in_their_stage():
    own = tuple(Case(number, "robust", 77) for number in (3, 4))
    assert [case for case in chosen(3, own=own)[0] if case in own] == [own[0]]


def test_one_case_is_found_by_its_name_listed_or_of_the_contract():
    for name in (chosen(3)[0][0].name, "robust/H1-N65-D16-float16-odd.odd.odd"):
        (case,), others = chosen(3, case=name)
        assert case.name == name and others == []
    assert chosen(3, case="robust/nothing") == ([], [])


@pytest.mark.parametrize("outcome, state", [("pass", "ready"), ("wrong", "not_started")])
def test_a_template_whose_blocks_are_empty_is_graded_if_it_answers(tmp_path, monkeypatch, outcome,
                                                                   state):
    text = (ROOT / "attacks/unfinished/original_3_empty_block.py").read_text("utf-8")
    (tmp_path / "problem_3.py").write_text(text, "utf-8")
    monkeypatch.setattr(choose_cases, "run_apart", lambda *what: Check("a", "standard", outcome))
    file = choose_cases.read(STAGES[3], Options(tmp_path, "cpu", 1, 60.0))
    assert file.state == state and file.unwritten
