"""What the kernels of all attention problems have in common; what is special about one of them is
in its own tests/test_problem_N.py."""

import importlib
import itertools

import pytest
import torch

from grader.course.stages import STAGES
from tests import kernel_checks

ATTENTION = {number: stage for number, stage in STAGES.items()
             if stage.needs_triton and not stage.sums_rows}
BACKWARD = [number for number, stage in ATTENTION.items() if stage.differentiates]
ONE_SHAPE = [
    (((1, 2, 4, 16), (1, 2, 5, 16), (1, 2, 5, 16)), "want q, k, v of one shape"),
    (((1, 4, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16)), "want q, k, v of one shape"),
    (((1, 2, 4, 129),) * 3, "want D <= 128; got 129"),
    (((1, 2, 0, 16),) * 3, "not empty"),
    (((4, 16),) * 3, "want q, k, v of one shape"),
]
SHARED_KEYS = [
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
]


def module(number):
    return importlib.import_module(f"problem_{number}")


def attend(number, q, k, v, window_size=33, sink_size=5, **options):
    """Call the entry point, with the window and the sinks that it takes."""
    stage = ATTENTION[number]
    options |= {"window_size": window_size} if stage.windowed else {}
    options |= {"sink_size": sink_size} if stage.has_sinks else {}
    return getattr(module(number), stage.entry)(q, k, v, **options)


def settings(axes, numbers=ATTENTION):
    return [setting for number in numbers for setting in kernel_checks.settings(number, axes)]


@pytest.mark.parametrize("setting", settings(kernel_checks.CPU_AXES, [1, *ATTENTION]), ids=str)
def test_output_and_gradients_match_float64(setting, device):
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.gpu
@pytest.mark.parametrize("setting", settings(kernel_checks.GPU_AXES), ids=str)
def test_output_and_gradients_match_float64_on_the_gpu(setting):
    worst = kernel_checks.error_over_limit(setting, "cuda")
    assert max(worst.values()) <= 1, worst


# Turing takes tiles of 16 rows.  In the forward, a tile of queries may be as high as several tiles
# of keys; without a mask every height goes with every other.  Of 90 keys, tiles of 16 lie between
# the sinks and the window, and the last full one ends elsewhere than with tiles of 64.
@pytest.mark.parametrize(("number", "rows", "keys"), [
    *((number, 16, 16) for number in ATTENTION), (3, 32, 64),
    *((number, 32, 32) if number in BACKWARD else (number, 64, 32) for number in ATTENTION)])
def test_other_tiles_will_do(number, rows, keys, monkeypatch, device):
    stage, problem = ATTENTION[number], module(number)
    tiles, heights = problem._tiles, {"BLOCK_M": rows, "BLOCK_N": keys}
    monkeypatch.setattr(problem, "_tiles", lambda q: tiles(q) | heights)
    worst = kernel_checks.error_over_limit(kernel_checks.Setting(
        number, 90 if rows == 16 else 150, 16, causal=stage.is_causal,
        heads=(4, 2) if stage.shares_keys else (2, 2),
        window_size=20 if stage.windowed else None, sink_size=18 if stage.has_sinks else 0,
        sink_logits="sink_logits" in stage.keywords), device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("shift", [-128.0, 128.0])
@pytest.mark.parametrize("number", ATTENTION)
def test_shifted_scores_change_nothing(number, shift, device):
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=device)
    q[..., 0], k[..., 0] = 16.0, 0.0
    o = attend(number, q, k, v)
    k[..., 0] = shift / 4  # adds 16 * shift / 4 / sqrt(16) = shift to every score
    assert (attend(number, q, k, v) - o).abs().max() < 5e-3


@pytest.mark.parametrize(("number", "N", "window_size", "sink_size"), [
    *((number, N, None, 0) for number in (3, 4, 5, 8) for N in (1, 63, 64, 65, 128)),
    *itertools.product([6], [1, 65, 128], [1, 2, 17, 63, 64, 65, 100, 10**12], [0]),
    *itertools.product([7], [128], [1, 17, 64, 100], [0, 1, 4, 64, 70, 10**12]),
    *itertools.product([9], [128], [1, 17, 64, 100, None], [0, 1, 64, 70, 10**12])])
def test_a_query_sees_what_is_in_its_window_and_the_sinks(number, N, window_size, sink_size,
                                                          device):
    # With equal weights and one-hot values, the output shows which keys each query really sees.
    q = k = torch.zeros(1, 1, N, 128, device=device)
    v = torch.eye(N, 128, device=device)[None, None]
    seen = (attend(number, q, k, v, window_size, sink_size)[0, 0, :, :N] > 0).cpu()
    age = torch.arange(N)[:, None] - torch.arange(N)
    near = (age < (window_size or N)) | (torch.arange(N) < sink_size)
    assert torch.equal(seen, (age >= 0) & near if ATTENTION[number].is_causal else age == age)


@pytest.mark.parametrize("number", BACKWARD)
def test_only_the_gradients_asked_for_are_computed(number, device):
    q = torch.randn(1, 2, 9, 16, device=device)
    k, v = torch.randn(2, 1, 1, 9, 16, device=device)
    attend(number, q, k, v.requires_grad_()).sum().backward()
    assert v.grad is not None
    attend(number, q.requires_grad_(), k, v).sum().backward()
    assert q.grad is not None and k.grad is None


@pytest.mark.parametrize("number", BACKWARD)
def test_the_same_call_gives_the_same_bits(number, device):
    q = torch.randn(2, 4, 130, 32, device=device, requires_grad=True)
    k, v = (torch.randn(2, 2, 130, 32, device=device, requires_grad=True) for _ in "kv")
    do = torch.randn_like(q)
    outputs = [attend(number, q, k, v) for _ in range(3)]
    runs = [torch.autograd.grad(o, (q, k, v), do) for o in outputs]
    for grads in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(grads, runs[0], strict=True))


@pytest.mark.parametrize("number", [number for number, stage in ATTENTION.items()
                                    if stage.is_causal and not stage.chooses_mask])
def test_leaving_the_causal_mask_out_is_refused(number, device):
    with pytest.raises(ValueError, match="want is_causal=True"):
        attend(number, *torch.randn(3, 1, 1, 4, 16, device=device), is_causal=False)


@pytest.mark.parametrize(("number", "shapes", "message"), [
    (number, *row) for number, stage in ATTENTION.items()
    for row in (SHARED_KEYS if stage.shares_keys else ONE_SHAPE)])
def test_shapes_it_cannot_honour_are_refused(number, shapes, message):
    with pytest.raises(ValueError, match=message):
        attend(number, *(torch.randn(*shape) for shape in shapes))


@pytest.mark.parametrize("number", ATTENTION)
def test_other_dtypes_are_refused(number):
    q, k, v = torch.randn(3, 1, 1, 4, 16)
    all_double, all_bfloat16 = ([x.to(dtype) for x in (q, k, v)]
                                for dtype in (torch.float64, torch.bfloat16))
    for wrong in (all_double, all_bfloat16, (q, k.half(), v.half()), (q, k, v.half())):
        with pytest.raises(TypeError, match="and on a GPU bfloat16; got"):
            attend(number, *wrong)


@pytest.mark.parametrize("number", ATTENTION)
def test_tensors_on_other_devices_are_refused(number, monkeypatch, device):
    q, k, v = torch.randn(3, 1, 1, 4, 16, device=device)
    message = "want one GPU, or TRITON_INTERPRET=1 at start; got"
    with pytest.raises(ValueError, match=message):
        attend(number, q, k, v.to("meta"))
    monkeypatch.setattr(module(number), "INTERPRETED", False)
    with pytest.raises(ValueError, match=message):
        attend(number, q.cpu(), k.cpu(), v.cpu())
