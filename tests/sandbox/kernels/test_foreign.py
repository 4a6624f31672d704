"""Python, PyTorch and NumPy in a kernel: the line, and what to write instead."""

import pytest

from grader.course.calls import SubmissionError
from grader.host.processes import Worker
from grader.host.session import Session
from tests.sandbox.worker.test_asserts import KERNEL, double_call
from tests.step_checks.blanks import lights, solved

MAX = "tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)"
LOAD = "tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)"
MASKED = 's = tl.where(keep, s, float("-inf"))'


@pytest.mark.interpreter
@pytest.mark.parametrize("step, old, new, said", [
    ("3.5", MAX, MAX.replace("tl.maximum(", "max("),
     f"`max{MAX[10:]}` is Python's and returns one of the two as a whole. Write {MAX}"),
    ("3.5", "tl.max(s, axis=1)", "max(s)", "Write tl.max(s, axis=1), the largest of each row"),
    ("3.5", "tl.sum(p, axis=1)", "sum(p)", "Write tl.sum(p, axis=1), the sum of each row"),
    ("3.5", "tl.max(s, axis=1)", "tl.max(abs(s), axis=1)", "Write tl.abs(s)"),
    ("3.5", "tl.math.exp2(m_i - m_new)", "2 ** (m_i - m_new)", "Write tl.exp2(x) for 2 to the x"),
    ("3.5", "tl.math.exp2(m_i - m_new)", "torch.exp2(m_i - m_new)", "Write tl.exp2(m_i - m_new)"),
    ("3.5", "tl.math.exp2(m_i - m_new)", "exp2(m_i - m_new)", "`exp2` is not defined here"),
    ("3.4", 'tl.where(keep, s, float("-inf"))', "tl.where(keep, s, -inf)", "Write float("),
    ("3.4", MASKED, "s = tl.where(keep, s, -math.inf)",
     "`math.inf`: math is not defined, because this file does "
     'not import it. Write float("inf"), or float("-inf")'),
    ("3.4", MASKED, "s = tl.where(keep, s, -np.inf)", "`np.inf`: np is not defined, because"),
    ("3.3", "(m_i + tl.math.log2(l_i)) * LN2", "(m_i + tl.math.log2(l_i)) * np.log(2)",
     "`np.log(2)` works on NumPy's arrays, and a kernel has tiles. Write tl.log(2)"),
    ("3.2", "in range(0, whole, BLOCK_N)", "in tl.arange(0, whole, BLOCK_N)",
     "Write range(0, whole, BLOCK_N)"),
    ("3.5", "acc * alpha[:, None]", "acc * alpha.unsqueeze(1)", "Write alpha[:, None] for a"),
    ("3.5", "tl.sum(p, axis=1)", "tl.sum(p[:, 0:16], axis=1)", "a tile cannot be indexed"),
    ("3.6", "keep = key < N", "keep = (key < N) if key < N else (key >= N)",
     "`x if condition else y` needs a single condition, but this is a tile (1, 32)"),
    ("3.6", "keep = key < N", "keep = key > -1\n    if key > N:\n        keep = key < N",
     "`if key > N` needs a single condition, but this is a tile (1, 32)"),
    ("3.6", "keep = key < N", "while key < N:\n        key += 1\n    keep = key < N",
     "Write one whose condition is a number"),
    ("3.7", LOAD, "ptr[i * stride_n + j * stride_d]",
     "a pointer is not an array. Write tl.load(ptr + i * stride_n + j * stride_d, mask="),
    ("3.3", "tl.store(lse_ptr + bh * N + query, lse, mask=query < N)",
     "lse_ptr[bh * N + query] = lse", "Write tl.store(lse_ptr + bh * N + query, value, mask="),
    ("3.4", MASKED, 's[keep == 0] = float("-inf")', "Write s = tl.where(condition, value, s)"),
    ("3.4", MASKED, 's = s.masked_fill(keep, float("-inf"))', "tl.where(condition, value, s)"),
    ("3.4", "tl.trans(k)", "k.transpose(0, 1)", "Write tl.trans(k)"),
    ("3.4", "tl.dot(q, tl.trans(k))", "tl.matmul(q, tl.trans(k))", "Write tl.dot(x, ...)"),
    ("3.1", "query = start_m + tl.arange(0, BLOCK_M)", "query = start_m + torch.arange(0, BLOCK_M)",
     "Write tl.arange(0, BLOCK_M)"),
    ("3.1", "start_m + tl.arange(0, BLOCK_M)", "[start_m + i for i in range(BLOCK_M)]",
     "query is a Python list: want a tile"),
    ("3.6", "keep = key < N", "for i in range(len(key)):\n        keep = key < N",
     "`for i in range(len(key))`: a kernel cannot loop over a tile"),
    ("3.1", "tl.cdiv(N, BLOCK_M)", "N / BLOCK_M",
     "`N / BLOCK_M` is a fraction, and a whole number is needed. Write // instead of /"),
    ("3.2", "whole = N // BLOCK_N", "whole = N / BLOCK_N", "Write // instead of /"),
], ids=lambda value: str(value)[:40])
def test_the_line_and_what_to_write_instead_are_said(step, old, new, said):
    assert old in solved(3)
    found = lights(solved(3).replace(old, new), 3)[step]
    line = solved(3)[:solved(3).index(old)].count("\n") + 1
    text = " ".join(found.lines)
    assert found.light == "wrong" and found.mistake == "python-in-a-kernel"
    assert said in text and (f"problem_3.py:{line}: " in text or "list" in said or "while" in new
                             or "if key" in new)


@pytest.mark.interpreter
@pytest.mark.parametrize("old, new", [
    ("keep = key < N", "keep = key < 0\n    if N > 0 and not N < 0:\n        keep = key < N"),
    ("keep = key < N", "keep = key < max(N, min(N, 1))"),
    ("whole = N // BLOCK_N * BLOCK_N", "whole = max(N // BLOCK_N, 0) * BLOCK_N"),
])
def test_what_works_on_single_numbers_is_nobodys_mistake(old, new):
    assert {one.light for one in lights(solved(3).replace(old, new), 3).values()} == {"right"}


@pytest.mark.interpreter
@pytest.mark.parametrize("call, where", [
    ("print(keep)", "compiles for no GPU"), ('print("keep", keep)', "in every program")])
def test_a_step_that_prints_is_right_with_a_note(call, where):
    found = lights(solved(3).replace("keep = key < N", f"keep = key < N\n    {call}"), 3)
    assert found["3.6"].light == "right" and where in found["3.6"].lines[0]


@pytest.mark.parametrize("statement, said", [
    ("print(N)", "kernels.py:14: `print(N)`: print works in the interpreter only."),
    ("N = int(N)", "kernels.py:14: `int(N)` is Python's and does not work on a tile. Write"),
])
def test_what_compiles_for_no_gpu_is_told_alike(statement, said):
    source = KERNEL.format(statement=statement, deep="pass").encode()
    with Session(Worker(source, "kernels.py", device="cpu", interpret=True, compile_for=90), 60.0
                 ) as session:
        session.load("call", None, ("x",))
        with pytest.raises(SubmissionError) as caught:
            session.compile(double_call())
    assert caught.value.located("kernels.py").startswith(said)
    assert caught.value.id == "python-in-a-kernel"
