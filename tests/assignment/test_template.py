"""Templates of the original assignment in which nothing is written yet, or something is."""

import time

import pytest

from grader.assignment.submission import read
from grader.assignment.template import unwritten

STAGE_1 = '''\
import torch


class FlashAttention2Function(torch.autograd.Function):
    """Tiled attention in PyTorch."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        B, H, N, D = q.shape
        o, lse = torch.empty_like(q), torch.empty(B, H, N, device=q.device)
        for start_m in range(0, N, 64):
            q_tile = q[:, :, start_m:start_m + 64]
            m_i = torch.full(q_tile.shape[:3], float("-inf"))
            for start_n in range(0, N, 64):
                k_tile, v_tile = k[:, :, start_n:start_n + 64], v[:, :, start_n:start_n + 64]
                # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
                # 1. The scores of this tile.
                # 2. The online softmax.

                # --- END OF STUDENT IMPLEMENTATION ---
            lse[:, :, start_m:start_m + 64] = m_i
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        raise NotImplementedError("not asked for here")
'''
STAGE_2 = '''\
import torch
import triton
import triton.language as tl


@triton.jit
def row_sum_kernel(x_ptr, w_ptr, y_ptr, stride, N, BLOCK: tl.constexpr):
    """A row a program."""
    row = tl.program_id(0)
    # Walk the row, BLOCK columns at a time.
    pass
    # --- END OF STUDENT IMPLEMENTATION ---


def weighted_row_sum_forward(x, w):
    y = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
    row_sum_kernel[(x.shape[0],)](x, w, y, x.stride(0), x.shape[1], BLOCK=256)
    return y
'''
STAGE_3 = '''\
import torch
import triton
import triton.language as tl


@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, o_ptr, stride_h, N, scale,
                 D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, D)
    head = tl.program_id(1) * stride_h
    q = tl.load(q_ptr + head + rows[:, None] * D + columns[None, :], mask=rows[:, None] < N)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for start_n in range(0, N, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + head + keys[None, :] * D + columns[:, None], mask=keys[None, :] < N)
        # --- Student implementation required (part 1: below the diagonal) ---
        # s = q k^T, then the online softmax.
        pass
        # --- STUDENT IMPLEMENTATION REQUIRED (Part 2: the diagonal) ---
        p = None
        # --- END OF SOFTMAX IMPLEMENTATION ---
    tl.store(o_ptr + head + rows[:, None] * D + columns[None, :], acc.to(o_ptr.dtype.element_ty),
             mask=rows[:, None] < N)


def flash_attention_forward(q, k, v, is_causal=False):
    o = torch.empty_like(q)
    B, H, N, D = q.shape
    flash_kernel[(triton.cdiv(N, 64), B * H)](q, k, v, o, q.stride(1), N, D**-0.5, D=D,
                                              BLOCK_M=64, BLOCK_N=64)
    return o
'''
STAGE_8 = '''\
import torch


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=True, softmax_scale=None):
        # STUDENT IMPLEMENTATION REQUIRED
        o = torch.empty_like(q)
        M = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
        return o

    @staticmethod
    def backward(ctx, do):
        # STUDENT IMPLEMENTATION REQUIRED
        return torch.empty_like(do), None, None, None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    return FlashAttention2Function.apply(q, k, v, is_causal, softmax_scale)
'''
EMPTY_LOOP = '''\
def flash_attention_forward(q, k, v, is_causal=False):
    for start_n in range(0, 64):
        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
        # nothing, which Python refuses
        # --- END OF STUDENT IMPLEMENTATION ---
    return q
'''
TEMPLATES = {1: (STAGE_1, ((16, 20),)), 2: (STAGE_2, ((10, 12),)),
             3: (STAGE_3, ((17, 19), (20, 22))), 5: (EMPTY_LOOP, ((3, 5),)),
             8: (STAGE_8, ((7, 10), (14, 15)))}


@pytest.mark.parametrize("number", TEMPLATES)
@pytest.mark.parametrize("saved", [str, lambda text: "\ufeff" + text.replace("\n", "\r\n")])
def test_an_unfilled_template_is_not_started(tmp_path, number, saved):
    text, blocks = TEMPLATES[number]
    (tmp_path / "problem.py").write_bytes(saved(text).encode())
    found = read(tmp_path, "problem.py", "flash_attention_forward")
    assert (found.state, found.unwritten, found.line) == ("not_started", blocks, None)
    where = ", ".join(f"{first}-{last}" for first, last in blocks)
    assert found.sentence == f"nothing is written here yet: problem.py, lines {where}."


@pytest.mark.parametrize("written", [
    "s = q @ k.mT", "acc += 1", "m_new = torch.maximum(m_i, s)", "for i in range(3):\n    acc += i",
    "return given(q)", "tl.store(o_ptr, acc)", "if causal:\n    s = mask(s)\nelse:\n    pass",
    "l_i = torch.zeros(4)\nl_i = l_i + 1", "x = 1",
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
    text = STAGE_3.replace("        pass\n", "        s = tl.dot(q, k)\n")
    assert unwritten(text) == (((20, 22),), False)


def test_an_end_after_written_code_is_no_empty_block():
    text = STAGE_2.replace("    pass\n", "    tl.store(y_ptr + row, 0.0)\n")
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
