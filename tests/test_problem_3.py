import pytest
import torch

import problem_3
from problem_3 import flash_attention_forward
from tools import kernel_checks


@pytest.mark.parametrize("setting", kernel_checks.settings(3, kernel_checks.CPU_AXES), ids=str)
def test_output_and_gradients_match_float64(setting, device):
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.gpu
@pytest.mark.parametrize("setting", kernel_checks.settings(3, kernel_checks.GPU_AXES), ids=str)
def test_output_and_gradients_match_float64_on_the_gpu(setting):
    worst = kernel_checks.error_over_limit(setting, "cuda")
    assert max(worst.values()) <= 1, worst


# Turing takes tiles of 16 rows.  Without a mask every height goes with every other.
@pytest.mark.parametrize(("rows", "keys"), [(16, 16), (32, 64), (64, 32)])
def test_other_tiles_will_do(rows, keys, monkeypatch, device):
    tiles = problem_3._tiles
    heights = {"BLOCK_M": rows, "BLOCK_N": keys}
    monkeypatch.setattr(problem_3, "_tiles", lambda q: tiles(q) | heights)
    setting = kernel_checks.Setting(3, 150, 16, heads=(2, 2), causal=False)
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("shift", [-128.0, 128.0])
def test_shifted_scores_change_nothing(shift, device):
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=device)
    q[..., 0], k[..., 0] = 16.0, 0.0
    o = flash_attention_forward(q, k, v)
    k[..., 0] = shift / 4  # adds 16 * shift / 4 / sqrt(16) = shift to every score
    assert (flash_attention_forward(q, k, v) - o).abs().max() < 5e-3


def _effective(N, HQ=1, HKV=1, device="cpu", **options):
    """Which keys each query really sees, read off with one-hot values: bool (HQ, N, N)."""
    q = torch.zeros(1, HQ, N, 128, device=device)
    k = torch.zeros(1, HKV, N, 128, device=device)
    v = torch.zeros(1, HKV, N, 128, device=device)
    v[0, :, :, :N] = torch.eye(N, device=device)
    return (flash_attention_forward(q, k, v, **options)[0, :, :, :N] > 0).cpu()


@pytest.mark.parametrize("N", [1, 63, 64, 65, 100])
def test_every_query_sees_every_key(N, device):
    assert _effective(N, device=device).all()


@pytest.mark.parametrize("N", [1, 64, 100])
def test_the_example_is_a_matrix_product(N, device):
    x, w = torch.randn(N, 32, device=device), torch.randn(32, 32, device=device)
    torch.testing.assert_close(problem_3.project(x, w), x @ w, rtol=1e-2, atol=1e-2)


def test_asking_for_the_causal_mask_is_refused(device):
    with pytest.raises(ValueError, match="problem 4; got True"):
        flash_attention_forward(*torch.randn(3, 1, 1, 4, 16, device=device), is_causal=True)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 2, 4, 16), (1, 2, 5, 16), (1, 2, 5, 16)), "want q, k, v of one shape"),
        (((1, 4, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16)), "want q, k, v of one shape"),
        (((1, 2, 4, 129),) * 3, "want D <= 128; got 129"),
        (((1, 2, 0, 16),) * 3, "not empty"),
        (((4, 16),) * 3, "want q, k, v of one shape"),
    ],
)
def test_shapes_it_cannot_honour_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        flash_attention_forward(*(torch.randn(*shape) for shape in shapes))


def test_other_dtypes_are_refused():
    q, k, v = torch.randn(3, 1, 1, 4, 16)
    all_double, all_bfloat16 = ([x.to(dtype) for x in (q, k, v)]
                                for dtype in (torch.float64, torch.bfloat16))
    for wrong in (all_double, all_bfloat16, (q, k.half(), v.half()), (q, k, v.half())):
        with pytest.raises(TypeError, match="and on a GPU bfloat16; got"):
            flash_attention_forward(*wrong)


def test_tensors_on_other_devices_are_refused(monkeypatch, device):
    q, k, v = torch.randn(3, 1, 1, 4, 16, device=device)
    message = "want one GPU, or TRITON_INTERPRET=1 at start; got"
    with pytest.raises(ValueError, match=message):
        flash_attention_forward(q, k, v.to("meta"))
    monkeypatch.setattr(problem_3, "INTERPRETED", False)
    with pytest.raises(ValueError, match=message):
        flash_attention_forward(q.cpu(), k.cpu(), v.cpu())
