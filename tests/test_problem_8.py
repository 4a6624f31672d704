import pytest
import torch

import problem_8
from problem_8 import flash_attention_gqa
from tools import kernel_checks


@pytest.mark.parametrize("setting", kernel_checks.settings(8, kernel_checks.CPU_AXES), ids=str)
def test_output_and_gradients_match_float64(setting, device):
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.gpu
@pytest.mark.parametrize("setting", kernel_checks.settings(8, kernel_checks.GPU_AXES), ids=str)
def test_output_and_gradients_match_float64_on_the_gpu(setting):
    worst = kernel_checks.error_over_limit(setting, "cuda")
    assert max(worst.values()) <= 1, worst


# Turing takes tiles of 16 rows.
@pytest.mark.parametrize(("rows", "keys"), [(16, 16), (32, 32)])
def test_other_tiles_will_do(rows, keys, monkeypatch, device):
    tiles = problem_8._tiles
    heights = {"BLOCK_M": rows, "BLOCK_N": keys}
    monkeypatch.setattr(problem_8, "_tiles", lambda q: tiles(q) | heights)
    setting = kernel_checks.Setting(8, 150, 16, heads=(4, 2))
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("shift", [-128.0, 128.0])
def test_shifted_scores_change_nothing(shift, device):
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=device)
    q[..., 0], k[..., 0] = 16.0, 0.0
    o = flash_attention_gqa(q, k, v)
    k[..., 0] = shift / 4  # adds 16 * shift / 4 / sqrt(16) = shift to every score
    assert (flash_attention_gqa(q, k, v) - o).abs().max() < 5e-3


def test_only_the_gradients_asked_for_are_computed(device):
    q = torch.randn(1, 2, 9, 16, device=device)
    k, v = torch.randn(2, 1, 1, 9, 16, device=device)
    flash_attention_gqa(q, k, v.requires_grad_()).sum().backward()
    assert v.grad is not None
    flash_attention_gqa(q.requires_grad_(), k, v).sum().backward()
    assert q.grad is not None and k.grad is None


def test_the_same_call_gives_the_same_bits(device):
    q = torch.randn(2, 4, 130, 32, device=device, requires_grad=True)
    k, v = (torch.randn(2, 2, 130, 32, device=device, requires_grad=True) for _ in "kv")
    do = torch.randn_like(q)
    outputs = [flash_attention_gqa(q, k, v) for _ in range(3)]
    runs = [torch.autograd.grad(o, (q, k, v), do) for o in outputs]
    for grads in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(grads, runs[0], strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU multiplies float32 in TF32")
def test_gradients_pass_gradcheck():
    # float32 inside, so a large step and a tolerance to match
    q = torch.randn(1, 2, 4, 4, requires_grad=True)
    k, v = (torch.randn(1, 1, 4, 4, requires_grad=True) for _ in "kv")
    assert torch.autograd.gradcheck(flash_attention_gqa, (q, k, v), eps=1e-2, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_softmax_scale_reaches_output_and_gradients(is_causal, device):
    q, k, v = (torch.randn(1, 2, 70, 16, device=device, requires_grad=True) for _ in "qkv")
    do = torch.randn_like(q)
    o = flash_attention_gqa(q, k, v, is_causal, softmax_scale=0.6)
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, scale=0.6
    )
    assert (o - want).norm() / want.norm() < 2e-3
    got = torch.autograd.grad(o, (q, k, v), do)
    for x, y in zip(got, torch.autograd.grad(want, (q, k, v), do), strict=True):
        assert (x - y).norm() / y.norm() < 2e-3


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_not_positive_is_refused(scale, device):
    with pytest.raises(ValueError, match="want softmax_scale > 0 and finite; got"):
        flash_attention_gqa(*torch.randn(3, 1, 1, 4, 16, device=device), softmax_scale=scale)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 2, 4, 16), (1, 2, 5, 16), (1, 2, 5, 16)), "want q and k of one B, N and D"),
        (((2, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16)), "want q and k of one B, N and D"),
        (((1, 2, 4, 16), (1, 2, 4, 32), (1, 2, 4, 32)), "want q and k of one B, N and D"),
        (((1, 4, 4, 16), (1, 3, 4, 16), (1, 3, 4, 16)), "HQ a multiple of HKV"),
        (((1, 2, 4, 16), (1, 4, 4, 16), (1, 4, 4, 16)), "HQ a multiple of HKV"),
        (((1, 2, 4, 16), (1, 2, 4, 16), (1, 1, 4, 16)), r"want q \(B, HQ, N, D\), k and v"),
        (((1, 2, 4, 129),) * 3, "want D <= 128; got 129"),
        (((1, 2, 0, 16),) * 3, "not empty"),
        (((1, 2, 4, 16), (1, 0, 4, 16), (1, 0, 4, 16)), "not empty"),
        (((4, 16),) * 3, r"want q \(B, HQ, N, D\), k and v"),
    ],
)
def test_shapes_it_cannot_honour_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        flash_attention_gqa(*(torch.randn(*shape) for shape in shapes))


def test_other_dtypes_are_refused():
    q, k, v = torch.randn(3, 1, 1, 4, 16)
    all_double, all_bfloat16 = ([x.to(dtype) for x in (q, k, v)]
                                for dtype in (torch.float64, torch.bfloat16))
    for wrong in (all_double, all_bfloat16, (q, k.half(), v.half()), (q, k, v.half())):
        with pytest.raises(TypeError, match="and on a GPU bfloat16; got"):
            flash_attention_gqa(*wrong)


def test_tensors_on_other_devices_are_refused(monkeypatch, device):
    q, k, v = torch.randn(3, 1, 1, 4, 16, device=device)
    message = "want one GPU, or TRITON_INTERPRET=1 at start; got"
    with pytest.raises(ValueError, match=message):
        flash_attention_gqa(q, k, v.to("meta"))
    monkeypatch.setattr(problem_8, "INTERPRETED", False)
    with pytest.raises(ValueError, match=message):
        flash_attention_gqa(q.cpu(), k.cpu(), v.cpu())
