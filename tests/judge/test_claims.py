"""What a file without step markers claims: by an answer, never by its comments."""

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grader.assignment.submission import Submission
from grader.course.cases import (
    DEFAULTS,
    GRADIENTS,
    LAST,
    MANY,
    ODD_D,
    SINK_LOGITS,
    SMALL_D,
    Case,
)
from grader.course.stages import STAGES
from grader.judge import claims
from grader.report.results import Check, StageResult
from grader.sandbox.wire import CUT_OFF

TEXT = '''
def flash_attention_forward(q, k, v):
    if q.shape[3] > 64:
        raise NotImplementedError("D")
    assert q.is_contiguous()
    assert (
        q.shape ==
        k.shape)
    return q + k
'''
RAISES, CRASHES = 4, 9  # lines
FITS, OFF = ({"fro": size, "fro_limit": 1.0, "row": size, "row_limit": 1.0} for size in (0.5, 2.0))
PLAIN = Case(3, "robust", 97)
LOGITS = Case(9, "beyond", 40, is_causal=True, window=9, sinks=1, sink_logits=True)
DEFAULT = Case(3, "beyond", 40, bare=True)
ODD, STRIDED = Case(3, "beyond", 40, 17), Case(3, "beyond", 40, layout="last")
HUGE = Case(7, "beyond", 40, is_causal=True, window=9, sinks=2**31 - 1)
HUGE_BORDER = replace(HUGE, group="robust", by_contract=True)
BORDER = Case(3, "robust", 32, layout="dense.last.dense", by_contract=True)


def file(text: str = TEXT) -> Submission:
    return Submission(Path("problem_3.py"), text.encode(), "", tree=ast.parse(text))


def check(outcome: str, errors: dict | None = None, line: int | None = None, id: str = "",
          what: str = "no.") -> Check:
    where = "" if line is None else f"problem_3.py:{line}"
    return Check("beyond/x", "beyond", outcome, errors=errors or {}, what=what, where=where,
                 diagnosis={"id": id} if id else None)


@pytest.mark.parametrize("case, seen, claimed, decides", [
    (ODD, check("wrong", {"o": OFF}), (), True),
    (ODD, check("pass", {"o": FITS}), (), True),
    (ODD, check("crashed", line=RAISES), (), False),
    (ODD, check("crashed", line=RAISES), (ODD_D,), False),  # of one size only, say
    (ODD, check("crashed", line=7), (ODD_D,), False),  # an assert over three lines
    (ODD, check("crashed", line=CRASHES), (), False),
    (ODD, check("crashed", line=CRASHES), (ODD_D,), True),
    (ODD, check("crashed", line=CRASHES, id="does-not-compile"), (ODD_D,), False),
    (ODD, check("crashed"), (ODD_D,), False),  # never got into the file
    (ODD, check("crashed", line=CRASHES, id="out-of-bounds-read"), (), True),
    (ODD, check("timeout"), (ODD_D,), False),
    (HUGE, check("pass", {"o": FITS}), (), True),
    (HUGE, check("wrong", {"o": OFF}), (), False),  # an offset overflows
    (HUGE, check("wrong", {"o": FITS, "d_k": OFF}), (), True),
    (HUGE_BORDER, check("wrong", {"o": OFF}), (), False),
    (HUGE_BORDER, check("wrong", {"o": OFF}), (MANY,), True),
    (ODD, check("grader_fault"), (ODD_D,), False),
    (ODD, check("crashed", line=CRASHES, id="race"), (), True),
    (ODD, check("crashed", line=CRASHES, id="out-of-shared-memory"), (ODD_D,), False),
    (DEFAULT, check("crashed", line=CRASHES, id="out-of-shared-memory"), (DEFAULTS,), True),
    (PLAIN, check("crashed", line=RAISES), (), True),  # what every file is asked
    (PLAIN, check("timeout"), (), True),
    (LOGITS, check("crashed", line=RAISES), (SINK_LOGITS,), False),
    (LOGITS, check("crashed", line=CRASHES), (SINK_LOGITS,), True),
    (STRIDED, check("wrong", {"o": OFF}), (), False),
    (STRIDED, check("crashed", line=CRASHES, id="out-of-bounds-read"), (), False),
    (STRIDED, check("crashed", line=CRASHES, id="out-of-bounds-read"), (LAST,), True),
    (STRIDED, check("wrong", {"o": FITS, "d_q": OFF}), (), True),
    (STRIDED, check("wrong", {"o": FITS | {"row": 2.0}}), (), False),  # one row of it is wrong
    # A file that knows the layout is asked the contract's lengths in it, too.
    (BORDER, check("wrong", {"o": OFF}), (LAST,), True),
    (BORDER, check("wrong", {"o": OFF}), (), False)])
def test_wrong_numbers_decide_a_refusal_does_not(case, seen, claimed, decides):
    assert claims.decides(file(), case, seen, frozenset(claimed)) == decides


@pytest.mark.parametrize("seen, decides", [
    (check("wrong", what="dk: want a gradient; got None from backward"), True),
    (check("wrong", what=f"o: want an output with a gradient; got {CUT_OFF}"), False),
    (check("crashed", line=CRASHES, id="does-not-compile"), True)])
def test_a_gradient_that_is_none_is_wrong_where_gradients_are_claimed(seen, decides):
    case = Case(3, "beyond", 40, grads=("k",))
    assert claims.decides(file(), case, seen, case.kinds) == decides
    assert not claims.decides(file(), case, seen, frozenset())


@pytest.mark.parametrize("body, claimed", [
    ("raise NotImplementedError", False), ('"""later"""\n        raise RuntimeError("no")', False),
    ("return do", True), ("q, = ctx.saved_tensors\n        raise ValueError", True)])
def test_a_backward_claims_gradients_unless_it_only_raises(body, claimed):
    text = f"class F:\n    def backward(ctx, do):\n        {body}\n"
    assert claims.from_text(STAGES[3], file(text)) == ({GRADIENTS} if claimed else set())


def test_the_signature_claims_sink_logits():
    text = "def flash_swda_with_sink(q, k, v, window_size, *, sink_logits=None): pass\n"
    assert claims.from_text(STAGES[9], file(text)) == {SINK_LOGITS}


def test_an_answer_claims_its_kind_and_the_report_says_which():
    checks = {ODD: check("wrong", {"o": OFF}), STRIDED: check("wrong", {"o": OFF}),
              Case(3, "beyond", 40, 8): check("crashed", line=RAISES)}
    claimed = claims.from_answers(checks)
    assert claimed == {ODD_D}
    said = claims.in_words(file(), checks, claimed)
    assert f"tests with these count: {ODD_D}." in said
    assert said.endswith(f"does not handle them: {SMALL_D}, {LAST}.")


def test_the_layout_of_an_output_gradient_claims_no_layout_of_inputs():
    case = Case(2, "beyond", 300, M=70, grads=("x", "w"), dout="last")
    assert case.kinds == {GRADIENTS, LAST}
    assert claims.from_answers({case: check("pass", {"y": FITS})}) == {GRADIENTS}


def test_what_the_file_refuses_is_not_said_to_be_tested():
    checks = {LOGITS: check("crashed", line=RAISES)}
    said = claims.in_words(file(), checks, frozenset({SINK_LOGITS}))
    assert said.endswith(f"does not handle them: {SINK_LOGITS}.") and "with these count" not in said


def test_every_case_of_the_course_alone_is_of_a_kind():
    from grader.course import case_table

    for number in STAGES:
        for case in case_table.listed(number, "cpu", False):
            assert bool(case.kinds) == case.course, case.name
            assert case.dtype != torch.float64


@pytest.mark.parametrize("number, excused, said", [
    (1, 0, []), (1, 1, ["1 test passes only because the grader lets scores or sums be rounded to "
                        "16 bits: a line that the original assignment gives rounds them."]),
    (2, 2, ["2 tests pass only because the grader lets products be rounded to 16 bits: a line "
            "that the original assignment gives rounds them."])])
def test_rounding_that_a_given_line_makes_is_remarked_on(number, excused, said):
    result = StageResult(number, "", 100, checks=[
        check("pass", dict.fromkeys(("o", "lse"), FITS | {"excused": i < excused}))
        for i in range(3)])
    claims.note_rounding(SimpleNamespace(stage=STAGES[number], result=result))
    assert result.remarks == said


def test_a_wrong_file_hears_nothing_of_rounding_that_is_allowed():
    result = StageResult(1, "", 100, checks=[check("pass", {"o": FITS | {"excused": True}}),
                                             check("wrong", {"o": FITS})])
    claims.note_rounding(SimpleNamespace(stage=STAGES[1], result=result))
    assert not result.remarks
