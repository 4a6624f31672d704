"""Triton's errors: the student's line and column, what Triton wants, what to try."""

import textwrap

import pytest

from grader.inside import crashes
from grader.inside.interpreter import OutOfBounds
from grader.inside.wire import OBSERVED


@pytest.mark.parametrize("said, id, wants", [
    ("arange's range must be a power of 2", "arange-not-a-power-of-two", "power of two"),
    ("input and other must have equal reduction dimensions", "dot-shapes", "tl.trans"),
    ("Both operands must be same dtype. Got fp32 and fp16", "dot-dtypes", "p.to(v.dtype)"),
    ("Cannot make_shape_compatible: incompatible dimensions at index 1: 16 and 64",
     "shapes-do-not-broadcast", "x[:, None]"),
    ("accumulator shape is incompatible", "dot-shapes", "tl.zeros([M, N]"),
    ("Shape element 0 must have type `constexpr[int]`, got `constexpr[tensor]", "not-constexpr",
     "tl.constexpr"),
    ("Input shapes should have M >= 1, N >= 1 and K >= 16", "dot-too-small", "16 or more"),
    ("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", "not-on-the-gpu",
     "device=q.device"),
])
def test_what_triton_says_is_followed_by_what_it_wants(tmp_path, said, id, wants):
    path = tmp_path / "problem_3.py"
    path.write_text(textwrap.dedent(f"""\
        def kernel():
            x = 1
            y = [x, error()]

        def error():
            raise ValueError({said!r})
        kernel()
        """))
    with pytest.raises(ValueError) as caught:
        exec(compile(path.read_text(), str(path), "exec"), {})
    found = crashes.explain(caught.value, str(path), "when it was called")
    assert found["line"] == 6 and found["outcome"] == "crashed" and found["id"] == id
    assert found["sentence"].startswith("line 6, column 5: ") and wants in found["sentence"]


def test_an_error_of_the_students_own_gets_no_advice(tmp_path):
    path = tmp_path / "problem_3.py"
    path.write_text("raise KeyError('k')\n")
    with pytest.raises(KeyError) as caught:
        exec(compile(path.read_text(), str(path), "exec"), {})
    sentence = crashes.explain(caught.value, str(path), "while being imported")["sentence"]
    assert "Try:" not in sentence and sentence.startswith("KeyError")


@pytest.mark.parametrize("raised, where, id", [
    (OutOfBounds("reads", 944), "when it was called", "out-of-bounds-read"),
    (OutOfBounds("writes", 1), "when it was called", "out-of-bounds-write"),
    (NameError("name 'x' is not defined"), "when it was called", "name-not-defined"),
    (NotImplementedError("step 4.5"), "when it was called", "blank-step"),
    (TypeError("want q in float16"), "when it was called", "input-refused"),
    (TypeError("want q in float16"), "while being imported", ""),
    (RuntimeError("_FlashBackward returned an invalid gradient at index 1 - got [2] but expected "
                  "shape compatible with [3]"), "when it was called", "gradient-shape"),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "when it was called",
     "outside-its-tensors"),
    (KeyError("k"), "when it was called", ""),
])
def test_what_was_raised_has_an_id_where_it_needs_no_search(tmp_path, raised, where, id):
    path = tmp_path / "problem_3.py"
    path.write_text("")
    assert crashes.explain(raised, str(path), where)["id"] == id


def test_every_id_is_one_that_the_grader_knows():
    assert {id for _, id, _ in crashes.WANTS} | crashes.TELLING <= set(OBSERVED)
