from pathlib import Path

import pytest
import torch

import problem_9
import reference
from problem_9 import flash_swda_with_sink

WINDOW = "want an integer window_size >= 1 and is_causal=True, or None; got "


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU multiplies float32 in TF32")
def test_gradients_pass_gradcheck():
    # float32 inside, so a large step and a tolerance to match
    q = torch.randn(1, 2, 4, 4, requires_grad=True)
    k, v = (torch.randn(1, 1, 4, 4, requires_grad=True) for _ in "kv")
    sink_logits = torch.randn(2, requires_grad=True)

    def attend(q, k, v, sink_logits):
        return flash_swda_with_sink(q, k, v, 2, 1, sink_logits=sink_logits)

    inputs = (q, k, v, sink_logits)
    assert torch.autograd.gradcheck(attend, inputs, eps=1e-2, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("sink_size", [0, 1, 64, 70])
@pytest.mark.parametrize("window_size", [1, 17, 64, 100, None])
def test_dv_reaches_exactly_the_keys_a_query_sees(window_size, sink_size, device):
    # dv = P^T do: with one-hot do it is the attention matrix, transposed
    q, k = torch.zeros(2, 1, 1, 128, 128, device=device)
    v = torch.zeros(1, 1, 128, 128, device=device, requires_grad=True)
    o = flash_swda_with_sink(q, k, v, window_size, sink_size)
    (dv,) = torch.autograd.grad(o, v, torch.eye(128, device=device)[None, None])
    i = torch.arange(128)
    age = i[:, None] - i[None, :]
    want = (age >= 0) & ((age < (window_size or 128)) | (i[None, :] < sink_size))
    assert torch.equal((dv[0, 0].T > 0).cpu(), want)


@pytest.mark.parametrize(
    ("N", "window_size", "sink_size"), [(600, 20, 4), (500, 10, 70), (200, 9, 200)]
)
def test_a_long_walk_over_sinks_adds_up(N, window_size, sink_size, device):
    q = torch.randn(1, 2, N, 16, device=device, requires_grad=True)
    k, v = (torch.randn(1, 1, N, 16, device=device, requires_grad=True) for _ in "kv")
    do = torch.randn_like(q)
    o = flash_swda_with_sink(q, k, v, window_size, sink_size)
    got = torch.autograd.grad(o, (q, k, v), do)
    inputs = [x.detach() for x in (q, k, v)]
    want = reference.attention(
        *inputs, dout=do, is_causal=True, window_size=window_size, sink_size=sink_size
    )
    for x, name in zip(got, "qkv", strict=True):
        assert (x - want[name]).norm() <= 2e-3 * want[name].norm()


def test_the_default_dtype_of_the_moment_changes_nothing(device):
    q, k, v = (torch.randn(1, 1, 300, 16, device=device, requires_grad=True) for _ in "qkv")
    do = torch.randn_like(q)

    def run():
        return torch.autograd.grad(flash_swda_with_sink(q, k, v, 20, 4), (q, k, v), do)

    want = run()
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = run()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_a_sink_logit_is_one_more_key_without_a_value(device):
    q, k, v = torch.randn(3, 1, 2, 70, 16, device=device)
    sink_logits = torch.tensor([2.0, -1.0], device=device)
    o = flash_swda_with_sink(q, k, v, None, sink_logits=sink_logits)
    s = (q.double() @ k.double().mT / 4).masked_fill(
        torch.ones(70, 70, device=device).triu(1).bool(), -torch.inf
    )
    s = torch.cat([s, sink_logits.double().view(1, 2, 1, 1).expand(1, 2, 70, 1)], -1)
    want = torch.softmax(s, -1)[..., :-1] @ v.double()
    assert (o - want).norm() / want.norm() < 2e-3


def test_a_sink_logit_of_minus_infinity_is_no_sink(device):
    q, k, v = torch.randn(3, 1, 2, 70, 16, device=device)
    none = flash_swda_with_sink(q, k, v, 9)
    nothing = torch.full((2,), -torch.inf, device=device)
    assert torch.equal(flash_swda_with_sink(q, k, v, 9, sink_logits=nothing), none)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_of_the_sink_logits_has_their_dtype(dtype, device):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter has no bfloat16")
    q, k, v = torch.randn(3, 1, 2, 9, 16, device=device)
    sink_logits = torch.randn(2, device=device).to(dtype).requires_grad_()
    flash_swda_with_sink(q, k, v, 5, sink_logits=sink_logits).sum().backward()
    assert sink_logits.grad.dtype == dtype and sink_logits.grad.shape == (2,)


def test_a_gradient_for_the_sink_logits_alone(device):
    q, k, v = torch.randn(3, 1, 2, 9, 16, device=device)
    sink_logits = torch.zeros(2, device=device, requires_grad=True)
    flash_swda_with_sink(q, k, v, 5, sink_logits=sink_logits).sum().backward()
    assert sink_logits.grad is not None and q.grad is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_size": 0}, WINDOW + "0, is_causal=True"),
        ({"window_size": 2.5}, WINDOW + "2.5, is_causal=True"),
        ({"window_size": 4, "sink_size": -1}, "want an integer sink_size >= 0; got -1"),
        ({"window_size": 4, "is_causal": False}, WINDOW + "4, is_causal=False"),
        ({"window_size": None, "scale": 0.0}, "want scale > 0 and finite; got 0.0"),
        ({"window_size": None, "sink_logits": torch.zeros(3)}, r"want sink_logits \(HQ,\)"),
        ({"window_size": None, "sink_logits": torch.zeros(1).int()}, r"want sink_logits"),
    ],
)
def test_options_it_cannot_honour_are_refused(options, message, device):
    with pytest.raises(ValueError, match=message):
        flash_swda_with_sink(*torch.randn(3, 1, 1, 4, 16, device=device), **options)


@pytest.mark.parametrize("N, heads, sinks", [(64, 1, 1), (65, 4, 4)])
def test_a_window_of_one_compiles(N, heads, sinks):
    """Walked with the interior first, it crashed the assembler (ptxas of CUDA 12.8, sm_90)."""
    from grader.course.cases import Case
    from grader.course.inputs import build
    from grader.course.stages import STAGES
    from grader.host.processes import Worker
    from grader.host.session import Session

    case = Case(9, "robust", N, HQ=heads, HKV=heads, window=1, sinks=sinks, is_causal=True,
                grads=("q", "k", "v"))
    source, stage = Path(problem_9.__file__).read_bytes(), STAGES[9]
    with Session(Worker(source, stage.filename, device="cpu", interpret=False,
                        compile_for=90), 600) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        assert len(session.compile(build(case, 0).call)) == 3
