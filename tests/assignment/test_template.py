"""Templates of the original assignment in which nothing is written yet, or something is."""

import time

import pytest

from grader.assignment.record import ROOT
from grader.assignment.submission import read
from grader.assignment.template import unwritten

ONLY_AN_END = '''\
def row_sum_kernel(x_ptr, w_ptr, y_ptr, stride, N, BLOCK: tl.constexpr):
    """A row a program."""
    row = tl.program_id(0)
    # Walk the row, BLOCK columns at a time.
    pass
    # --- END OF STUDENT IMPLEMENTATION ---
'''
TWO_PARTS = '''\
def flash_kernel(q_ptr, k_ptr, N, BLOCK_N: tl.constexpr):
    for start_n in range(0, N, BLOCK_N):
        k = tl.load(k_ptr + start_n)
        # --- Student implementation required (part 1: below the diagonal) ---
        # s = q k^T, then the online softmax.
        pass
        # --- STUDENT IMPLEMENTATION REQUIRED (Part 2: the diagonal) ---
        p = None
        # --- END OF SOFTMAX IMPLEMENTATION ---
    tl.store(o_ptr, acc)
'''
NO_END = '''\
class FlashAttention2Function(torch.autograd.Function):
    def forward(ctx, q, k, v, is_causal=True, softmax_scale=None):
        # STUDENT IMPLEMENTATION REQUIRED
        o = torch.empty_like(q)
        M = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
        return o

    def backward(ctx, do):
        # STUDENT IMPLEMENTATION REQUIRED
        return torch.empty_like(do), None, None, None, None
'''
EMPTY_LOOP = '''\
def flash_attention_forward(q, k, v, is_causal=False):
    for start_n in range(0, 64):
        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
        # nothing, which Python refuses
        # --- END OF STUDENT IMPLEMENTATION ---
    return q
'''
TEMPLATES = {"only an end": (ONLY_AN_END, ((4, 6),)), "no end": (NO_END, ((3, 6), (9, 10))),
             "two parts": (TWO_PARTS, ((4, 6), (7, 9)))}
TEMPLATES |= {name: ((ROOT / f"attacks/unfinished/original_{name}.py").read_text("utf-8"), blocks)
              for name, blocks in (
                  ("3_empty_block", ((40, 43),)), ("4_second_phase_empty", ((40, 42),)),
                  ("6_launch_to_come", ((14, 15),)))}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("saved", [str, lambda text: "\ufeff" + text.replace("\n", "\r\n")])
def test_an_unfilled_template_is_not_started(tmp_path, name, saved):
    text, blocks = TEMPLATES[name]
    (tmp_path / "problem.py").write_bytes(saved(text).encode())
    found = read(tmp_path, "problem.py", "flash_attention_forward")
    assert (found.state, found.unwritten, found.line) == ("not_started", blocks, None)
    where = ", ".join(f"{first}-{last}" for first, last in blocks)
    assert found.sentence == f"nothing is written here yet: problem.py, lines {where}."


def read_as_text(folder, text):
    (folder / "problem.py").write_text(text)
    return read(folder, "problem.py", "flash_attention_forward")


def test_a_template_that_python_refuses_for_an_empty_block_is_not_started(tmp_path):
    found = read_as_text(tmp_path, EMPTY_LOOP)
    assert found.state == "not_started" and found.located == (
        "nothing is written here yet: problem.py, lines 3-5. problem.py:6: IndentationError: "
        "expected an indented block after 'for' statement on line 2")


@pytest.mark.parametrize(("text", "line"), [
    (ONLY_AN_END.replace("program_id(0)", "program_id(0"), 3),
    (EMPTY_LOOP.replace("range(0, 64)", "range(0, 64"), 2),
    (ONLY_AN_END.replace("    pass\n", f"    x = {'-' * 20_000}1\n"), 5)])
def test_a_template_that_python_refuses_for_another_line_is_begun(tmp_path, text, line):
    found = read_as_text(tmp_path, text)
    assert (found.state, found.line, found.unwritten) == ("syntax_error", line, ())


@pytest.mark.parametrize("written", [
    "s = q @ k.mT", "acc += 1", "m_new = torch.maximum(m_i, s)", "for i in range(3):\n    acc += i",
    "return given(q)", "tl.store(o_ptr, acc)", "if causal:\n    s = mask(s)\nelse:\n    pass",
    "if causal:\n    pass\nelse:\n    s = mask(s)",
    "l_i = torch.zeros(4)\nl_i = l_i + 1", "x = 1", "return q", "m_i = q",
])
@pytest.mark.parametrize("end", ["# --- END OF STUDENT IMPLEMENTATION ---\n", ""])
def test_markers_around_written_code_say_nothing(written, end):
    block = "".join(f"        {row}\n" for row in written.split("\n"))
    text = ("def kernel(q):\n    while True:\n        # --- STUDENT IMPLEMENTATION REQUIRED ---\n"
            f"{block}        {end}    return acc\n")
    assert unwritten(text) == ((), False)


@pytest.mark.parametrize("nothing", [
    "", "pass", "...", "# a trace", '"""a trace"""', "raise NotImplementedError", "p = None",
    "a, b = None, 0.0", "dq = torch.zeros_like(q)\nreturn dq, None", "for i in range(3):\n    pass",
    "acc: tl.tensor = tl.zeros([16], tl.float32)", "if causal:\n    pass\nelse:\n    s = None",
    "def helper(x):\n    pass",
])
@pytest.mark.parametrize("end", ["# --- END OF STUDENT IMPLEMENTATION ---\n", ""])
def test_every_way_to_write_nothing_counts(nothing, end):
    block = "".join(f"    {row}\n" for row in nothing.split("\n"))
    text = f"def kernel(q):\n    # student_implementation: here\n{block}    {end}"
    blocks, are_all = unwritten(text)
    assert len(blocks) == 1 and are_all


def test_one_written_block_makes_a_file_begun():
    text = TWO_PARTS.replace("        pass\n", "        s = tl.dot(q, k)\n")
    assert unwritten(text) == (((7, 9),), False)


def test_an_end_after_written_code_is_no_empty_block():
    text = ONLY_AN_END.replace("    pass\n", "    tl.store(y_ptr + row, 0.0)\n")
    assert unwritten(text) == ((), False)


def test_a_file_without_such_markers_has_no_blocks():
    assert unwritten("def f():\n    pass  # the implementation of a student\n") == ((), False)


def test_a_line_full_of_ends_takes_no_longer_than_another_of_its_size():
    def seconds(word):
        start = time.thread_time()
        assert unwritten(f"# {word * 3000}\n") == ((), False)
        return time.thread_time() - start

    ends, others = (min(seconds(word) for _ in range(3)) for word in ("end ", "bend "))
    assert ends < 20 * others  # it is 700 times as long if every `end` is tried
