"""What only a GPU shows: CUDA graphs, torch.compile, offsets past 2**31, many heads."""

import functools

import pytest
import torch

from problem_1 import FlashAttention2Function
from tests.test_attention_problems import ATTENTION, attend

pytestmark = pytest.mark.gpu

STAGES = {1: lambda q, k, v: FlashAttention2Function.apply(q, k, v, True)[0]}
STAGES |= {number: functools.partial(attend, number) for number in ATTENTION}


def _inputs(B=1, H=2, N=300, D=64, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return tuple(
        torch.randn(B, H, N, D, device="cuda", dtype=dtype, requires_grad=True) for _ in "qkv"
    )


def _run(function, inputs, do):
    o = function(*inputs)
    return o, *torch.autograd.grad(o, inputs, do)


def test_torch_compile_keeps_the_graph_of_stage_1_whole_and_the_result():
    inputs = _inputs()
    do = torch.randn_like(inputs[0])
    want = _run(STAGES[1], inputs, do)
    got = _run(torch.compile(STAGES[1], fullgraph=True), inputs, do)
    for x, y in zip(got, want, strict=True):
        assert (x - y).float().norm() <= 2e-3 * y.float().norm()


@pytest.mark.parametrize("stage", ATTENTION)
def test_a_cuda_graph_replays_forward_and_backward(stage):
    inputs = _inputs()
    do = torch.randn_like(inputs[0])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _run(STAGES[stage], inputs, do)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = _run(STAGES[stage], inputs, do)
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    want = _run(STAGES[stage], inputs, do)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_recorded_without_gradients(stage):
    with torch.no_grad():
        assert not STAGES[stage](*_inputs()).requires_grad


@pytest.mark.parametrize("stage", ATTENTION)
def test_a_call_keeps_no_more_than_output_and_lse(stage):
    inputs = _inputs(H=4, N=4096)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = STAGES[stage](*inputs)
    lse_bytes = o.numel() // o.shape[3] * 4
    assert torch.cuda.max_memory_allocated() - before <= o.nbytes + lse_bytes + 4096


@pytest.mark.parametrize("stage", ATTENTION)
def test_more_heads_than_a_grid_axis_holds(stage):
    inputs = _inputs(B=3, H=22000, N=2, D=16, dtype=torch.float16)
    do = torch.randn_like(inputs[0])
    got = _run(STAGES[stage], inputs, do)
    last = [x.detach()[-1:, -1:].clone().requires_grad_() for x in inputs]
    want = _run(STAGES[stage], last, do[-1:, -1:])
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x[-1:, -1:], y)


@pytest.mark.parametrize("D", [16, 64])
@pytest.mark.parametrize("stage", ATTENTION)
def test_offsets_past_two_to_the_31_are_right(stage, D):
    # Rows 2**26 elements apart: row 100 starts past 2**32 elements.
    step = 2**26
    storage = torch.empty(step * 100 + D * 4, device="cuda", dtype=torch.float16)
    far = [
        storage[D * i :].as_strided((1, 1, 101, D), (step * 128, step * 128, step, 1)).copy_(
            torch.randn(1, 1, 101, D, device="cuda")
        )
        for i in range(4)
    ]
    near = [x.clone(memory_format=torch.contiguous_format) for x in far]
    for x in (*far[:3], *near[:3]):
        x.requires_grad_()
    got = _run(STAGES[stage], far[:3], far[3])
    want = _run(STAGES[stage], near[:3], near[3])
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("stage", ATTENTION)
def test_numbers_at_odd_addresses_give_the_same(stage):
    # The compiler loads 16 bytes at a time only where it knows the address to be a multiple of 16.
    inputs = _inputs(H=8, N=500)
    do = torch.randn_like(inputs[0])
    odd = []
    for x in (*inputs, do):
        storage = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)
        odd.append(storage[1:].view(x.shape).copy_(x.detach()))
    for x in odd[:3]:
        x.requires_grad_()
    want = _run(STAGES[stage], inputs, do)
    got = _run(STAGES[stage], odd[:3], odd[3])
    for x, y in zip(got, want, strict=True):
        assert (x - y).float().norm() <= 4e-3 * y.float().norm()
