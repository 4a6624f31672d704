"""An assert that fails is told with its condition and its numbers."""

import pytest

from grader.course.calls import SubmissionError
from grader.host.processes import Worker
from grader.host.session import Session
from tests.sandbox.worker.test_crashes import raised
from tests.sessions import double_call


@pytest.mark.parametrize("statement, said", [
    ("assert D in {32, 64}", "assert D in {32, 64} does not hold: D is 16"),
    ("assert D == shape[1]", "assert D == shape[1] does not hold: D is 16, shape[1] is 4"),
    ("assert q.is_contiguous() and D > 16",
     "assert q.is_contiguous() and D > 16 does not hold: D is 16"),
    ("assert q.shape == shape", "assert q.shape == shape does not hold: q.shape is (2, 3), shape "
                                "is (2, 4)"),
    ("assert q.dtype == torch.float16",
     "assert q.dtype == torch.float16 does not hold: q.dtype is torch.float32"),
    ("assert (D <\n        8), 'want less'", "assert D < 8 does not hold: D is 16 (want less)"),
    ("assert False", "assert False does not hold"),
])
def test_an_assert_of_python_says_its_condition_and_its_numbers(tmp_path, statement, said):
    found = raised(f"""\
import torch
def call(q, D, shape):
    {statement}
call(torch.zeros(2, 3), 16, (2, 4))
""", tmp_path / "problem_3.py")
    assert found["sentence"] == said
    assert found["line"] in (3, 4) and found["id"] == "input-refused"


KERNEL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def deep(x, D: tl.constexpr, WIDE: tl.constexpr):
    {deep}
    return x


@triton.jit
def kernel(x_ptr, y_ptr, N, D: tl.constexpr, WIDE: tl.constexpr):
    {statement}
    tl.store(y_ptr, deep(tl.load(x_ptr), D * 2, WIDE))


def call(x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, 5, D=16, WIDE=64)
    return y
"""


def _said(statement: str, deep: str, compile_for: int | None = None):
    source = KERNEL.format(statement=statement, deep=deep).encode()
    with Session(Worker(source, "kernels.py", device="cpu", interpret=True,
                        compile_for=compile_for), 60.0) as session:
        session.load("call", None, ("x",))
        with pytest.raises(SubmissionError) as caught:
            session.run(double_call()) if compile_for is None else session.compile(double_call())
    return caught.value


@pytest.mark.parametrize("compile_for", [None, 90], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("statement, deep, line, said", [
    ("tl.static_assert(WIDE <= D)", "pass", 14,
     "tl.static_assert(WIDE <= D) does not hold: WIDE is 64, D is 16. Try: "),
    ("tl.static_assert(WIDE <= D, 'too wide')", "pass", 14,
     "tl.static_assert(WIDE <= D) does not hold: WIDE is 64, D is 16 (too wide). Try: "),
    ("tl.static_assert(x_ptr.dtype.element_ty == tl.float16)", "pass", 14,
     "tl.static_assert(x_ptr.dtype.element_ty == tl.float16) does not hold: "
     "x_ptr.dtype.element_ty is fp32. Try: "),
    ("pass", "tl.static_assert(WIDE <= D)", 8,
     "tl.static_assert(WIDE <= D) does not hold: WIDE is 64, D is 32. Try: "),
])
def test_a_static_assert_says_its_condition_and_its_numbers(statement, deep, line, said,
                                                            compile_for):
    error = _said(statement, deep, compile_for)
    assert error.located("kernels.py").startswith(f"kernels.py:{line}:5: {said}")
    assert error.line == line and error.id == "does-not-compile"


def test_a_number_that_the_interpreter_holds_in_a_tile_of_one_is_said():
    error = _said("tl.static_assert(N % 2 == 0)", "pass")
    assert "tl.static_assert(N % 2 == 0) does not hold: N is 5. Try: " in error.sentence


def test_a_static_assert_of_what_is_no_constexpr_is_told_what_it_may_ask():
    error = _said("tl.static_assert(N > 0)", "pass", 90)
    assert error.id == "not-constexpr" and "can only check constexprs" in error.sentence


@pytest.mark.parametrize("compile_for", [None, 90], ids=["interpreted", "compiled"])
def test_an_error_inside_of_tritons_own_functions_is_told_at_the_deepest_line(compile_for):
    error = _said("pass", "x = x + tl.max(tl.arange(0, 16), dim=0)", compile_for)
    assert (error.line, error.column) == (8, 13) and "axis= for dim=" in error.sentence
