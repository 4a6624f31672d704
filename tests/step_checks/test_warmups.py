"""The warm-ups: solved they pass, blank they are not started, and their mistakes have names."""

import io
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from grader import cli, starter
from grader.assignment import submission
from grader.assignment.record import ROOT
from grader.blank import blank
from grader.course import stages
from grader.course.calls import Call, OutputSpec, TensorInput
from grader.host.options import Options
from grader.host.processes import Worker
from grader.host.session import Session
from grader.page.server import FilePage
from grader.report.screen import Reporter
from grader.step_checks import warmups
from grader.step_checks.blanks import Blanks
from grader.step_checks.checks import Runner
from tests.commands import grader

SOLVED = (ROOT / warmups.FOLDER / warmups.NAME).read_text("utf-8")

# step, text of the solved file, what stands there instead, words of the mistake's name
MISTAKES = [
    ("W.1", "l_i * torch.exp(m_i - m_new) +", "l_i +", "l_i is not multiplied"),
    ("W.1", "torch.exp(m_i - m_new)", "torch.exp(m_new - m_i)", "upside down"),
    ("W.1", "l_i * torch.exp(m_i - m_new) + ", "", "only the last tile counts"),
    ("W.1", "m_new = torch.maximum(m_i, tile.max())", "m_new = tile.max()",
     "m_i is the last tile's maximum"),
    ("W.1", "torch.exp(tile - m_new)", "torch.exp(tile - m_i)", "computed with the old maximum"),
    ("W.1", "        m_i = m_new\n        # END SOLUTION W.1", "        # END SOLUTION W.1",
     "m_i is never updated"),
    ("W.2", "torch.maximum(m_i, s_tile.amax(dim=1))", "torch.maximum(m_i, s_tile.max())",
     "one maximum for all rows"),
    ("W.2", "p.sum(dim=1)", "p.sum()", "l_i is one sum for all rows"),
    ("W.2", "alpha[:, None] * acc + p", "acc + p", "acc is not multiplied"),
    ("W.2", "alpha * l_i + p", "l_i + p", "l_i is not multiplied"),
    ("W.2", "alpha = torch.exp(m_i - m_new)", "alpha = torch.ones(M)", "neither l_i nor acc"),
    ("W.2", "alpha = torch.exp(m_i - m_new)", "alpha = torch.exp(m_new - m_i)", "upside down"),
    ("W.2", "        m_i = m_new\n        # END SOLUTION W.2", "        # END SOLUTION W.2",
     "m_i is never updated"),
    ("W.2", "torch.exp(s_tile - m_new[:, None])", "torch.exp(s_tile - m_i[:, None])",
     "computed with the old maximum"),
    ("W.2", "acc = alpha[:, None] * acc + p", "l_i = p.sum(dim=1)\n        acc = p",
     "the earlier sums are lost"),
    ("W.2", "m_new = torch.maximum(m_i, s_tile.amax(dim=1))", "m_new = s_tile.amax(dim=1)",
     "m_i is the last tile's maximum"),
    ("W.3", "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask", "tl.arange(0, BLOCK)\n"
     "    mask", "tl.program_id(0) is missing"),
    ("W.3", "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask",
     "tl.program_id(0) + tl.arange(0, BLOCK)\n    mask", "not at i * BLOCK"),
    ("W.3", "tl.load(y_ptr + offs", "tl.load(x_ptr + offs", "x is added to itself"),
    ("W.3", "x + y, mask=mask", "x, mask=mask", "y is not added"),
    ("W.4", "(offs < N) & (offs <= row)", "offs < N", "all columns count"),
    ("W.4", "offs <= row", "offs < row", "the diagonal itself does not count"),
    ("W.4", "offs <= row", "offs >= row", "from the diagonal on"),
    ("W.4", "acc += tl.sum(x", "acc = tl.sum(x", "only the last tile counts"),
    ("W.4", "offs = start + tl", "offs = tl", "start is missing"),
    ("W.4", "x_ptr + row * N + offs", "x_ptr + offs", "row * N is missing"),
    ("W.4", "x_ptr + row * N + offs", "x_ptr + row + offs", "not from i * N on"),
    ("W.3", "    tl.store(z_ptr + offs, x + y, mask=mask)\n", "", "nothing is stored in z"),
    ("W.3", "* BLOCK + tl.arange(0, BLOCK)\n    mask", "* BLOCK\n    mask",
     "every program stores one element"),
    ("W.4", "x_ptr + row * N + offs", "x_ptr + row * BLOCK + offs", "not BLOCK"),
    ("W.5", "tl.dot(a, b)", "a * b", "in 16 bits"),
    ("W.5", "acc += tl.dot(a, b)", "acc = tl.dot(a, b)", "only the last tile counts"),
    ("W.5", "offs_m[:, None] * K + offs_k", "offs_m[:, None] * N + offs_k", "not N"),
    ("W.5", "offs_k[:, None] * N + offs_n[None, :]", "offs_k[:, None] + offs_n[None, :] * N",
     "rows and columns swapped"),
    ("W.5", "offs_k[:, None] * N + offs_n[None, :]", "offs_k[:, None] + offs_n[None, :] * K",
     "as if it were (N, K)"),
    ("W.5", "tl.dot(a, b)", "a.to(tl.float32) * b.to(tl.float32)", "want tl.dot, not *"),
    ("W.5", "offs_m[:, None] * K + offs_k", "offs_m[:, None] * M + offs_k",
     "a row of a has K numbers, not M"),
    ("W.5", "offs_k[:, None] * N + offs_n", "offs_k[:, None] * M + offs_n",
     "a row of b has N numbers, not M"),
    ("W.5", "tl.dot(a, b)", "tl.dot(a, b, acc)", "acc is added twice"),
    ("W.5", "tl.dot(a, b)", "tl.dot(a, tl.trans(b))", "each tile of b is transposed"),
    ("W.5", "tl.dot(a, b)", "tl.dot(b, a)", "a and b are swapped"),
    ("W.6", "l_i * tl.exp(m_i - m_new) +", "l_i +", "l_i is not multiplied"),
    ("W.6", "tl.exp(m_i - m_new)", "tl.exp(m_new - m_i)", "upside down"),
    ("W.6", "l_i = l_i * tl.exp(m_i - m_new) + tl", "l_i = tl", "only the last tile counts"),
    ("W.6", "m_new = tl.maximum(m_i, tl.max(x, axis=0))", "m_new = tl.max(x, axis=0)",
     "the earlier one is ignored"),
    ("W.6", "tl.exp(x - m_new)", "tl.exp(x - m_i)", "computed with the old maximum"),
    ("W.6", "tl.sum(tl.exp(x - m_new), axis=0)\n        m_i = m_new\n",
     "tl.sum(tl.exp(x - m_new), axis=0)\n", "m_i is never updated"),
    ("W.6", 'offs < N, other=float("-inf")', "offs < N, other=0.0", "past N - 1 count as 0"),
    ("W.6", """tl.maximum(m_i, tl.max(x, axis=0))
        l_i = l_i * tl.exp(m_i - m_new) +""", "0.0\n        l_i = l_i +", "no maximum"),
    ("W.6", "tl.exp(x - m_i) / l_i", "tl.exp(x) / l_i", "not subtracted in the second loop"),
    ("W.6", "tl.exp(x - m_i) / l_i", "tl.exp(x - m_i)", "does not divide by l_i"),
    ("W.6", "tl.exp(x - m_i) / l_i", "tl.exp(x - m_i) * l_i", "multiplies by l_i"),
    ("W.6", "tl.store(y_ptr + row * N + offs", "tl.store(y_ptr + offs", "stores in row 0"),
    ("W.6", "        tl.store(y_ptr + row * N + offs, tl.exp(x - m_i) / l_i, mask=offs < N)\n", "",
     "nothing is stored in y"),
    ("W.6", "range(0, N, BLOCK):\n        offs = start + tl.arange(0, BLOCK)\n        x = tl.load("
     "x_ptr + row * N + offs, mask=offs < N, other=float(\"-inf\"))\n        m_new",
     "range(0, BLOCK, BLOCK):\n        offs = start + tl.arange(0, BLOCK)\n        x = tl.load("
     "x_ptr + row * N + offs, mask=offs < N, other=float(\"-inf\"))\n        m_new",
     "the first loop ends after one tile"),
    ("W.7", "save_for_backward(y)", "save_for_backward(x)", "gets x in the place of y"),
    ("W.7", "x, y, M, N, scale,", "x, y, M, N, 1.0,", "scale does not reach _rows_kernel"),
    ("W.7", "dx, M, N, ctx.scale", "dx, M, N, 1.0", "scale does not reach _rows_backward_kernel"),
    ("W.7", "y, dy, dx, M, N", "dy, y, dx, M, N", "in each other's place: y comes first"),
    ("W.7", "return dx, None", "return dy, None", "backward returns dy, not dx"),
    ("W.7", "            return y\n", "            return x\n", "forward returns x, not y"),
    ("W.7", "x, y, M, N, scale,", "x, y, N, M, scale,", "Two arguments are swapped"),
    ("W.7", "(triton.cdiv(M, BLOCK_M),)", "(M // BLOCK_M,)", "this must be rounded up"),
]

LAUNCHES = [  # told by what the launch, or autograd, refuses
    ("return dx, None", "return dx", "one gradient for each argument of forward after ctx"),
    ("return dx, None", "return None, dx", "in their order, and None for what is no tensor"),
    ("            ctx.save_for_backward(y)\n", "", "must call ctx.save_for_backward"),
    ("            ctx.scale = scale\n", "", "forward must have put there"),
    ("            return y\n", "", "y is None: it must be the tensor that _rows_kernel fills"),
    ("(triton.cdiv(M, BLOCK_M),)", "(M,)", "programs of _rows_kernel: want 2; got 5"),
    ("(triton.cdiv(M, BLOCK_M),)", "(triton.cdiv(M, BLOCK_M))", "brackets make no tuple"),
    ("x.stride(0), x.stride(1)", "N, 1", "stride_xm=33, and along that axis x has"),
    ("dy.stride(0), dy.stride(1)", "y.stride(0), y.stride(1)", "dy has the stride 1"),
    ("BLOCK_N=triton.next_power_of_2(N)", "BLOCK_N=N", "must be a power of two"),
    ("BLOCK_N=triton.next_power_of_2(N)", "BLOCK_N=BLOCK", "must fit into a tile"),
    ("x.stride(1),\n                BLOCK_M=BLOCK_M", "x.stride(1),\n                BLOCK_M=16",
     "scaled_softmax gets it as an argument"),
    ("torch.empty(M, N, device=x.device, dtype=x.dtype)", "torch.empty_like(x)",
     "keeps the strides of x"),
    ("torch.empty(M, N, device=x.device, dtype=x.dtype)", "torch.empty(M)",
     "y of the shape (5,), want (5, 7)"),
]


SECOND = """\
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=float("-inf"))
        tl.store(y_ptr"""
OTHERS = [  # of W.6: what is changed in more places than one
    (lambda text: text.replace(SECOND, "        tl.store(y_ptr"), "needs a second loop"),
    (lambda text: text.replace(SECOND, SECOND.replace("start + ", "")),
     "only the first tile of y is stored"),
    (lambda text: text.replace("offs = start + tl", "offs = tl", 1) if SECOND in text else "",
     "every tile of the first loop begins at column 0"),
    (lambda text: text.replace("tl.exp(", "tl.exp2("), "2 to the power of x"),
    (lambda text: text.replace("x_ptr + row * N +", "x_ptr +"), "every program reads row 0"),
    (lambda text: text.replace("x_ptr + row * N +", "x_ptr + row +"), "not from i * N on"),
    (lambda text: text.replace("range(0, N, BLOCK)", "range(0, BLOCK, BLOCK)"),
     "both loops end after one tile"),
]


def submitted(text: str) -> submission.Submission:
    return submission.Submission(Path(warmups.NAME), text.encode(), "", "ready", "", None, (),
                                 tuple(submission.steps(text)))


@cache
def worker() -> Runner:
    """Of the solved file; it is kept, for other texts of its steps."""
    return warmups.runner_of(submitted(SOLVED), Options(Path("."), "cpu", 1, 60.0))


def asked(step: str, text: str) -> tuple[str, tuple[str, ...]]:
    file = submitted(text)
    worker().blanks = Blanks(text, file.steps)
    return warmups.check(worker(), file, step)[:2]


def graded(folder: Path) -> tuple[int, str]:
    said = io.StringIO()
    code = warmups.grade(Options(folder, "cpu", 7, 60.0), Reporter(said))
    return code, said.getvalue()


@pytest.mark.interpreter
@pytest.mark.parametrize("step", warmups.TITLES)
def test_solved_they_are_right(step):
    assert asked(step, SOLVED) == ("pass", ())


def try_no_change(monkeypatch) -> None:
    """Hundreds are tried, and a mistake with a name needs one for its line alone."""
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)


@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong, words", MISTAKES)
def test_a_mistake_is_named(step, right, wrong, words, monkeypatch):
    if step != "W.7":  # whose mistakes have the words of a change
        try_no_change(monkeypatch)
    assert right in SOLVED
    outcome, lines = asked(step, SOLVED.replace(right, wrong, 1))
    assert outcome == "wrong" and words in lines[0] and " Given: " in lines[1], lines


@pytest.mark.interpreter
@pytest.mark.parametrize("right, wrong, words", LAUNCHES)
def test_a_wrong_launch_or_gradient_is_told_with_its_input(right, wrong, words):
    assert right in SOLVED
    outcome, (said, *_) = asked("W.7", SOLVED.replace(right, wrong, 1))
    assert outcome == "wrong" and words in said and " Given: x of shape (" in said, said


@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong, words", [MISTAKES[1], MISTAKES[13]])
def test_a_mistake_with_a_name_in_pytorch_has_its_line(step, right, wrong, words):
    line = 1 + SOLVED[:SOLVED.index(right)].count("\n")
    _, lines = asked(step, SOLVED.replace(right, wrong, 1))
    assert lines[0].startswith(f"warmups.py:{line}: ") and words in lines[0], lines


@pytest.mark.interpreter
@pytest.mark.parametrize("changed, words", OTHERS)
def test_a_mistake_in_more_than_one_place_of_a_kernel_is_named(changed, words, monkeypatch):
    try_no_change(monkeypatch)
    head, kernel = SOLVED.split("def _softmax_kernel", 1)
    assert changed(kernel) != kernel
    outcome, lines = asked("W.6", f"{head}def _softmax_kernel{changed(kernel)}")
    assert outcome == "wrong" and words in lines[0] and " Given: " in lines[1], lines


STYLES = [  # right answers that are written otherwise
    ("W.1", """\
if tile.max() > m_i:
    l_i = l_i * torch.exp(m_i - tile.max())
    m_i = tile.max()
l_i = l_i + torch.sum(torch.exp(tile - m_i))"""),
    ("W.1", """\
old, m_i = m_i, max(m_i, torch.max(tile))
l_i *= (old - m_i).exp()
l_i += (tile - m_i).exp().sum()"""),
    ("W.2", """\
old = m_i.clone()
m_i = torch.stack([old, s_tile.max(dim=-1).values]).amax(0)
p = torch.exp(s_tile - m_i.unsqueeze(-1))
l_i *= torch.exp(old - m_i)
l_i += p.sum(-1)
acc = torch.einsum("md,m->md", acc, torch.exp(old - m_i))
acc = torch.addmm(acc, p, v_tile)"""),
    ("W.3", """\
pid = tl.program_id(axis=0)
offs = pid * BLOCK + tl.arange(0, BLOCK)
x = tl.load(x_ptr + offs, offs < N)
tl.store(z_ptr + offs, tl.load(y_ptr + offs, offs < N) + x, offs < N)"""),
    ("W.4", """\
column = tl.arange(0, BLOCK) + start
x = tl.load(x_ptr + row * N + column, mask=column < N)
acc = acc + tl.sum(tl.where((column <= row) & (column < N), x, 0.0))"""),
    ("W.4", """\
count = tl.minimum(row + 1, N) - start
i = tl.arange(0, BLOCK)
acc += tl.sum(tl.load((x_ptr + row * N + start) + i, i < count, 0.0))"""),
    ("W.5", """\
k = start + tl.arange(0, TILE)
rows, columns, inner = offs_m < M, offs_n < N, k < K
a = tl.load(a_ptr + (offs_m * K)[:, None] + k, rows[:, None] & inner[None, :], 0.0)
b = tl.load(b_ptr + offs_n[:, None] + (k * N)[None, :], columns[:, None] & inner[None, :], 0.0)
acc = tl.dot(a, tl.trans(b), acc)"""),
    ("W.6", """\
column, ptr = tl.arange(0, BLOCK), x_ptr + row * N
for tile in range(tl.cdiv(N, BLOCK)):
    x = tl.load(ptr + tile * BLOCK + column, tile * BLOCK + column < N, float("-inf"))
    x *= 1.4426950408889634
    old, m_i = m_i, tl.maximum(m_i, tl.max(x))
    l_i *= tl.exp2(old - m_i)
    l_i += tl.sum(tl.exp2(x - m_i))
for at in range(0, N, BLOCK):
    inside = at + column < N
    y = tl.exp2(tl.load(ptr + at + column, mask=inside) * 1.4426950408889634 - m_i) / l_i
    tl.store(y_ptr + row * N + at + column, y, inside)"""),
    ("W.6", """\
lse = float("-inf")  # one number in place of two
for start in range(0, N, BLOCK):
    offs = start + tl.arange(0, BLOCK)
    x = tl.where(offs < N, tl.load(x_ptr + row * N + offs, offs < N, 0.0), float("-inf"))
    top = tl.maximum(lse, tl.max(x, axis=0))
    lse = top + tl.log(tl.exp(lse - top) + tl.sum(tl.exp(x - top), axis=0))
for start in range(0, N, BLOCK):
    offs = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + offs, offs < N)
    tl.store(y_ptr + row * N + offs, tl.exp(x - lse), offs < N)"""),
    ("W.7", """\
def launch(kernel, *arguments, size):
    M, N = size
    kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), 1)](
        *arguments, BLOCK_M=BLOCK_M, BLOCK_N=max(16, triton.next_power_of_2(N)), num_warps=8)

class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(x, scale):
        x = x.contiguous()
        y = torch.empty_like(x)
        launch(_rows_kernel, x, y, *x.shape, scale, *x.stride(), size=x.shape)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:1], output)
        ctx.factor = inputs[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        _, y = ctx.saved_tensors
        dx, dy = y.new_empty(y.shape), upstream.contiguous()
        launch(_rows_backward_kernel, y, dy, dx, *y.shape, ctx.factor, *dy.stride(), size=y.shape)
        return dx, None"""),
]


@pytest.mark.interpreter
@pytest.mark.parametrize("step, text", STYLES)
def test_what_is_right_in_another_style_is_right(step, text):
    one, = (one for one in submission.steps(SOLVED) if one.id == step)
    rows = SOLVED.splitlines(keepends=True)
    indent = rows[one.first_line - 1].partition("#")[0]
    rows[one.first_line:one.last_line - 1] = [f"{indent}{row}\n" for row in text.splitlines()]
    assert asked(step, "".join(rows)) == ("pass", ())


def test_every_warm_up_has_at_least_three_mistakes_tried():
    assert all(len({words for step, *_, words in MISTAKES if step == one}) >= 3
               for one in warmups.TITLES if one != "W.8")  # test_tiles.py


@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong", [
    ("W.3", "x = tl.load(x_ptr + offs, mask=mask, other=0.0)", "x = tl.load(x_ptr + offs)"),
    ("W.4", "mask=(offs < N) & (offs <= row)", "mask=offs < N + 999"),
    ("W.5", "(offs_k[None, :] < K), other=0.0)", "(offs_k[None, :] < K + 99), other=0.0)"),
    ("W.6", ', mask=offs < N, other=float("-inf"))', ")")])
def test_a_missing_mask_is_said_with_its_line(step, right, wrong):
    outcome, lines = asked(step, SOLVED.replace(right, wrong, 1))
    begin = SOLVED.rindex("tl.load", 0, SOLVED.index(right) + len(right))
    line = 1 + SOLVED[:begin].count("\n")
    assert outcome == "wrong" and "outside" in " ".join(lines), lines
    assert not [one for one in lines if "\n" in one]  # each is indented
    assert f"warmups.py:{line}: " in " ".join(lines), lines


@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong, said", [
    ("W.6", "/ l_i, mask=offs < N)", "/ l_i)", "The argument mask= is missing."),
    ("W.6", ', mask=offs < N, other=float("-inf"))', ")", "The argument mask= is missing."),
    ("W.5", "(offs_m[:, None] < M) & (offs_k[None, :] < K)", "(offs_m < M) & (offs_k < K)",
     "its mask needs them, too: write offs_m[:, None] and offs_k[None, :]."),
    ("W.5", "(offs_k[:, None] < K) & (offs_n", "(offs_k < K) & (offs_n",
     "`offs_k < K`. The tile has two axes, and its mask needs them, too: write offs_k[:, None].")])
def test_a_mask_that_is_missing_or_lacks_an_axis_is_named_at_once(
        step, right, wrong, said, monkeypatch):
    try_no_change(monkeypatch)
    assert right in SOLVED
    outcome, lines = asked(step, SOLVED.replace(right, wrong, 1))
    assert outcome == "wrong" and said in lines[0] and "either" not in " ".join(lines), lines


@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong, said", [
    ("W.4", "(offs <= row), other=0.0)", "(offs <= row))", ": tl.load has mask= but"),
    ("W.5", "(offs_k[None, :] < K), other=0.0)", "(offs_k[None, :] < K))", "Write other=0.0"),
    ("W.3", """\
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(z_ptr + offs, x + y, mask=mask)
""", """\
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x, y = tl.load(x_ptr + offs, mask=offs < N), tl.load(y_ptr + offs, mask=offs < N)
        tl.store(z_ptr + offs, x + y, mask=offs < N)
""", "every program adds all elements"),
])
def test_right_numbers_that_a_gpu_does_not_promise_are_wrong(step, right, wrong, said):
    assert right in SOLVED
    outcome, lines = asked(step, SOLVED.replace(right, wrong, 1))
    assert outcome == "wrong" and said in lines[0]


# The code below the step would crash, or the read is outside of a tensor in some calls.
@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong, words", [
    ("W.2", "p.sum(dim=1)", "p.sum(dim=1, keepdim=True)", "keepdim=True keeps it"),
    ("W.4", "acc += tl.sum(x, axis=0)", "acc += x", "sum the tile first"),
    ("W.5", "offs_k[:, None] * N + offs_n", "offs_k[:, None] * K + offs_n",
     "a row of b has N numbers, not K"),
])
def test_a_mistake_is_named_though_the_exercise_crashes(step, right, wrong, words):
    assert right in SOLVED
    outcome, lines = asked(step, SOLVED.replace(right, wrong, 1))
    assert outcome == "wrong" and words in lines[0] and " Given: " in lines[1], lines
    assert lines[-1] == f"more: python autograder.py --hint {step}"


@pytest.mark.interpreter
def test_masked_lanes_that_do_not_count_need_not_say_what_they_read():
    assert asked("W.3", SOLVED.replace("mask=mask, other=0.0", "mask=mask")) == ("pass", ())


@pytest.mark.interpreter
@pytest.mark.parametrize("step, right, wrong, said", [
    ("W.3", "x = tl.load(x_ptr + offs, mask=mask, other=0.0)", "x = x_ptr[offs]",
     "Write tl.load(x_ptr + offs, mask="),
    ("W.3", "    mask = offs < N\n", "    mask = offs < N\n    if offs >= N:\n        return\n",
     "this is a tile (32,)"),
    ("W.3", "tl.store(z_ptr + offs, x + y, mask=mask)", "for i in offs:\n"
     "        tl.store(z_ptr + i, tl.load(x_ptr + i))", "a kernel cannot loop over a tile"),
    ("W.3", "x + y, mask", "x_ptr + y_ptr, mask", "tl.load(x_ptr + offs, mask="),
    ("W.3", "z_ptr + offs, x + y", "x + y, z_ptr + offs", "the address comes first"),
    ("W.3", "tl.load(x_ptr + offs", "tl.load(offs", "the address comes first"),
    ("W.4", "acc += tl.sum(x, axis=0)", "acc += sum(x)", "or axis=0 where there is one axis"),
])
def test_python_in_a_kernel_is_told_with_what_to_write_instead(step, right, wrong, said):
    assert right in SOLVED
    outcome, lines = asked(step, SOLVED.replace(right, wrong, 1))
    assert outcome == "wrong" and said in " ".join(lines) and any("warmups.py:" in x for x in lines)


CALLS = {  # a solved exercise -> the shapes of its inputs, and of its output
    "add": {"x": (70,), "y": (70,), "result": (70,)},
    "causal_row_sum": {"x": (40, 70), "result": (40,)},
    "matmul": {"a": (20, 33), "b": (33, 17), "result": (20, 17)},
    "softmax": {"x": (3, 70), "result": (3, 70)},
    "scaled_softmax": {"x": (5, 33), "result": (5, 33)}}


@pytest.mark.parametrize("entry", CALLS)
def test_the_solved_kernels_compile_for_a_gpu(entry):
    *names, result = CALLS[entry]
    dtype = torch.float16 if entry == "matmul" else torch.float32
    inputs = {name: TensorInput.dense(torch.randn(CALLS[entry][name]).to(dtype)) for name in names}
    more = {"scale": 0.5} if entry == "scaled_softmax" else {}
    call = Call(inputs, (*(f"@{name}" for name in inputs), *more.values()), {},
                (OutputSpec(result, CALLS[entry][result], torch.float32),))
    with Session(Worker(SOLVED.encode(), warmups.NAME, device="cpu", interpret=False,
                        compile_for=90), 60.0) as session:
        session.load(entry, None, (*names, *more))
        kernel, = session.compile(call)
    assert not kernel.warnings


@pytest.mark.interpreter
def test_masks_joined_by_and_are_said():
    outcome, lines = asked("W.4", SOLVED.replace("(offs < N) & (offs", "(offs < N) and (offs", 1))
    assert outcome == "wrong" and any("`and` does not join tiles" in line for line in lines)


def test_the_starter_blanks_all_and_says_which_to_begin_with(tmp_path):
    assert starter.main([str(tmp_path / "flash"), "--stages", "1"]) == 0
    code, said = graded(tmp_path / "flash")
    assert code == 1 and said.count("not started") == 7 and "write step W.1" in said


@pytest.mark.interpreter
def test_one_that_is_written_is_asked_and_the_rest_is_not_started(tmp_path):
    assert starter.main([str(tmp_path / "flash"), "--stages", "1"]) == 0
    path = tmp_path / "flash" / starter.WARM_UPS
    rows, blank = SOLVED.splitlines(keepends=True), path.read_text()
    one = submission.steps(SOLVED)[3]
    inside = "".join(rows[one.first_line:one.last_line - 1])
    text = blank.replace('        raise NotImplementedError("step W.4")  # TODO: your code here\n',
                         inside)
    assert text != blank
    path.write_text(text)
    code, said = graded(tmp_path / "flash")
    assert code == 1 and "W.4 the sum of each row up to the diagonal: right" in said
    assert said.count("not started") == 6 and "Warm-ups: 1 of 7 right" in said
    assert "Next: write step W.1" in said
    path.write_text(text.replace("offs <= row", "offs < row"))
    assert "Next: python autograder.py --hint W.4" in graded(tmp_path / "flash")[1]


def test_without_triton_the_pytorch_ones_are_asked_and_the_rest_says_what_to_do(
        tmp_path, monkeypatch):
    (tmp_path / warmups.FOLDER).mkdir()
    hidden = "import sys\nsys.modules['triton'] = None\n"  # of the worker
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(
        SOLVED.replace("import torch\n", "import torch\n" + hidden, 1))
    monkeypatch.setattr(warmups, "no_triton", lambda: stages.NO_TRITON)
    code, said = graded(tmp_path)
    assert code == 1 and said.count(": right") == 2 and said.count(": skipped") == 5
    assert "GitHub Codespaces" in said


def test_a_file_that_is_not_there_or_no_python_is_said(tmp_path):
    assert graded(tmp_path)[0] == 1 and "there is no" in graded(tmp_path)[1]
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text("def f(:\n")
    assert "warmups.py:1: " in graded(tmp_path)[1]


def test_a_file_that_cannot_be_imported_is_told_so_until_it_can(tmp_path):
    (tmp_path / warmups.FOLDER).mkdir()
    path, said = tmp_path / warmups.FOLDER / warmups.NAME, io.StringIO()
    options, reporter = Options(tmp_path, "cpu", 7, 60.0), Reporter(said)  # --watch keeps these
    path.write_text(SOLVED.replace("import os\n", "import os\nimport nothing_here\n", 1))
    assert warmups.grade(options, reporter) == 1
    assert said.getvalue().count("imports nothing_here") == 7
    path.write_text(SOLVED)
    assert warmups.grade(options, reporter) == 0


@pytest.mark.interpreter
def test_a_page_shows_them_with_what_the_first_wrong_one_left(tmp_path):
    (tmp_path / warmups.FOLDER).mkdir()
    source, page = tmp_path / warmups.FOLDER / warmups.NAME, FilePage(tmp_path, tmp_path / "p.html")
    text = re.sub(r"(SOLUTION W.4\n)[^#]*", r"\1        raise NotImplementedError('step W.4')\n",
                  SOLVED, count=1)
    options = Options(tmp_path, "cpu", 7, 60.0, page=page)

    def shown(text: str) -> str:
        source.write_text(text)
        warmups.grade(options, Reporter(io.StringIO()))
        return re.sub(r"(<[^>]*>|\s)+", " ", page.path.read_text("utf-8"))

    said = shown(text.replace("alpha[:, None] * acc", "acc"))
    assert "W.2 is red" in said and "not right yet" in said and "5 of 8 steps right, no p" in said
    assert "acc is not multiplied by exp(old maximum - new one)." in said and "got acc" in said
    assert "Fix step W.2 of warmups/warmups.py, then run python autograder.py --warmup" in said
    said = shown(text)
    assert "Warm-ups not finished" in said and "Next to write: step W.4" in said
    left = "\n        raise NotImplementedError('step W.4')\n"
    said = shown(SOLVED.replace("(x, axis=0)\n", "(x, axis=0)" + left, 1))
    assert "W.4 is red" in said and said.lower().count("your code is there") == 1
    assert "Warm-ups crashed" in (said := shown("def f(:\n")) and "1 def f(:" in said
    assert "imports nothing_here" in shown("import nothing_here\n" + SOLVED)


def test_an_update_keeps_what_is_written(tmp_path):
    flash = tmp_path / "flash"
    assert starter.main([str(flash), "--stages", "1"]) == 0
    (flash / starter.WARM_UPS).write_text(SOLVED)
    assert starter.main([str(flash), "--update"]) == 0
    assert (flash / starter.WARM_UPS).read_text() == SOLVED
    assert starter.main([str(flash), "--check"]) == 0


def older(text: str) -> str:
    """The warm-ups as they were before W.7 and W.8."""
    text = text.replace("W.3 to W.7", "W.3 to W.6")
    text = re.sub(r"\n\n# -+ W\.7 .*?(?=\n\nif __name__)", "", text, flags=re.DOTALL)
    return "".join(row for row in text.splitlines(keepends=True)
                   if "W.7" not in row and "W.8" not in row)


def test_an_exercise_that_an_older_file_lacks_is_not_missed(tmp_path):
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(older(SOLVED))
    code, said = graded(tmp_path)
    assert code == 0 and "Warm-ups: 6 of 6 right (not in this file: W.7, W.8)" in said
    assert warmups.grade(Options(tmp_path, "cpu", 7, 60.0), Reporter(io.StringIO()), "W.7") == 1


@pytest.mark.parametrize("elsewhere", ["", "print(x); "])
def test_an_update_adds_exercises_to_a_file_that_is_begun(tmp_path, capsys, elsewhere):
    flash, root = tmp_path / "flash", tmp_path / "course"
    assert starter.main([str(flash), "--stages", "1"]) == 0
    shutil.copytree(ROOT, root, ignore=lambda folder, names: [
        name for name in names if name.startswith(".") or name in ("tests", "benchmarks")])
    (root / starter.WARM_UPS).write_text(older(SOLVED))
    shutil.rmtree(flash)
    assert starter.main([str(flash), "--stages", "1"], root) == 0
    given = "return torch.exp(x - m_i)"
    begun = older(SOLVED).replace(given, elsewhere + given)
    (flash / starter.WARM_UPS).write_text(begun)
    capsys.readouterr()
    assert starter.main([str(flash), "--update"]) == 0
    said, text = capsys.readouterr().out, (flash / starter.WARM_UPS).read_text()
    if elsewhere:
        assert text == begun and "stays as it is" in said
        return
    assert text == blank(blank(SOLVED, "W.7"), "W.8") and "what you wrote is in it" in said
    assert (flash / starter.REPLACED / starter.WARM_UPS).read_text() == begun
    assert starter.main([str(flash), "--check"]) == 0
    assert f"{starter.WARM_UPS} yours: 6 of 8 steps filled\n" in capsys.readouterr().out


def test_an_assignment_without_problem_1_has_none(tmp_path):
    assert starter.main([str(tmp_path / "flash"), "--stages", "3"]) == 0
    assert not (tmp_path / "flash" / warmups.FOLDER).exists()


@pytest.mark.parametrize("other", ["--quick", "--submit", "--json=x.json", "--case=x",
                                   "--step=1.1", "--p1", "--show"])
def test_it_goes_with_no_option_of_the_problems(other, capsys):
    assert cli.main("autograder.py", ["--warmup", other]) == 2
    assert "--warmup: want it alone" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["examples", "check"])
def test_a_fault_in_the_check_of_one_exercise_ends_neither_it_nor_the_others(
        broken, tmp_path, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError("of the check")
    right = warmups.ENTRIES["W.1"]
    monkeypatch.setitem(warmups.ENTRIES, "W.1", replace(
        right, examples=fail if broken == "examples" else lambda: [
            replace(one, check=fail) for one in right.examples()]))
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(SOLVED)
    code, said = graded(tmp_path)
    assert code == 3 and "the grader itself failed (ZeroDivisionError: of the check)" in said
    assert "W.2 softmax times a matrix, in tiles: right" in said


def test_one_exercise_is_asked_by_step(capsys):
    done = grader("--step", "W.2")
    assert done.returncode == 0 and "Warm-ups: 1 of 1 right" in done.stdout, done.stderr
    assert "W.1" not in done.stdout
    assert cli.main("autograder.py", ["--step", "W.9"]) == 2
    assert "want a step of problem 1 to 7, or W.1 to W.8; got W.9" in capsys.readouterr().err


@pytest.mark.interpreter
def test_the_command_asks_them_all():
    done = grader("--warmup")
    assert done.returncode == 0 and "Warm-ups: 8 of 8 right" in done.stdout, done.stderr


@pytest.mark.interpreter
def test_what_a_wrong_exercise_printed_is_shown():
    text = SOLVED.replace("        acc += tl.sum(x, axis=0)", "        print(7 * 6)")
    outcome, lines = asked("W.4", text)
    assert outcome == "wrong" and lines[-1] == "| 42"


@pytest.mark.interpreter
def test_a_mask_joined_by_and_is_named_beside_wrong_numbers():
    _, lines = asked("W.4", SOLVED.replace("(offs < N) & (offs <= row)",
                                           "(offs <= row) and (offs < N)"))
    assert any("`and` does not join tiles" in line for line in lines)
    assert not any("`and`" in line for line in asked("W.5", SOLVED.replace(
        "(offs < N) & (offs <= row)", "(offs <= row) and (offs < N)"))[1])


def test_a_raise_left_behind_a_solution_is_wrong_and_says_which_line_to_delete(tmp_path):
    assert starter.main([str(tmp_path / "flash"), "--stages", "1"]) == 0
    path = tmp_path / "flash" / starter.WARM_UPS
    left = '    raise NotImplementedError("step W.1")'
    path.write_text(path.read_text("utf-8").replace(left, "    y = x\n" + left), "utf-8")
    said = graded(tmp_path / "flash")[1]
    assert "W.1" in said and "your code is there; delete line" in said
