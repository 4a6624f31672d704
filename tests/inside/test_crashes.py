"""Triton's errors: the student's line and column, what Triton wants, what to try."""

import textwrap

import pytest

from grader.inside import crashes


@pytest.mark.parametrize("said, wants", [
    ("arange's range must be a power of 2", "power of two"),
    ("input and other must have equal reduction dimensions", "tl.trans"),
    ("Both operands must be same dtype. Got fp32 and fp16", "p.to(v.dtype)"),
    ("Cannot make_shape_compatible: incompatible dimensions at index 1: 16 and 64", "x[:, None]"),
    ("accumulator shape is incompatible", "tl.zeros([M, N]"),
    ("Shape element 0 must have type `constexpr[int]`, got `constexpr[tensor]", "tl.constexpr"),
    ("Input shapes should have M >= 1, N >= 1 and K >= 16", "16 or more"),
    ("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", "device=q.device"),
])
def test_what_triton_says_is_followed_by_what_it_wants(tmp_path, said, wants):
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
    assert found["line"] == 6 and found["outcome"] == "crashed"
    assert found["sentence"].startswith("line 6, column 5: ") and wants in found["sentence"]


def test_an_error_of_the_students_own_gets_no_advice(tmp_path):
    path = tmp_path / "problem_3.py"
    path.write_text("raise KeyError('k')\n")
    with pytest.raises(KeyError) as caught:
        exec(compile(path.read_text(), str(path), "exec"), {})
    sentence = crashes.explain(caught.value, str(path), "while being imported")["sentence"]
    assert "Try:" not in sentence and sentence.startswith("KeyError")
