import pytest
import torch

from problem_2 import torch_weighted_row_sum, weighted_row_sum, weighted_row_sum_forward

SHAPES = [(1, 1), (5, 300), (16, 128), (17, 129), (40, 1000), (33, 127)]
UNIT = {torch.float16: 2**-11, torch.float32: 2**-22}


def _inputs(M, N, dtype, device):
    torch.manual_seed(M * N)
    return torch.randn(M, N, device=device).to(dtype), torch.randn(N, device=device).to(dtype)


@pytest.mark.parametrize("dtype", UNIT, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(("M", "N"), SHAPES)
def test_row_sums_are_float64_rounded_once(M, N, dtype, device):
    x, w = _inputs(M, N, dtype, device)
    y = weighted_row_sum_forward(x, w)
    want = x.double() @ w.double()
    terms = (x.double() * w.double()).square().sum(1).sqrt()
    assert y.dtype == dtype and y.shape == (M,)
    assert ((y - want).abs() <= UNIT[dtype] * (want.abs() + 8 * terms)).all()


@pytest.mark.parametrize("dtype", UNIT, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(("M", "N"), SHAPES)
def test_gradients_match_float64(M, N, dtype, device):
    x, w = (t.requires_grad_() for t in _inputs(M, N, dtype, device))
    dy = torch.randn(M, device=device).to(dtype)
    dx, dw = torch.autograd.grad(weighted_row_sum(x, w), (x, w), dy)
    assert dx.dtype == dw.dtype == dtype
    want = dy.double()[:, None] * w.detach().double()
    assert ((dx - want).abs() <= UNIT[dtype] * want.abs() + 1e-7).all()
    want = dy.double() @ x.detach().double()
    size = (dy.double()[:, None] * x.detach().double()).square().sum(0).sqrt()
    assert ((dw - want).abs() <= UNIT[dtype] * (want.abs() + 8 * size) + 1e-7).all()


def test_strided_inputs_and_a_broadcast_gradient(device):
    x = torch.full((80, 70), torch.nan, device=device)
    x[1:64:2, 3:53] = torch.randn(32, 50, device=device)
    view = x[1:64:2, 3:53].T.requires_grad_()  # (50, 32), no unit stride
    w = torch.randn(64, device=device)[::2].requires_grad_()
    y = weighted_row_sum(view, w)
    assert torch.allclose(y, view @ w, atol=1e-5)
    dx, dw = torch.autograd.grad(y.sum(), (view, w))
    assert torch.allclose(dx, w.detach().expand(50, 32))
    assert torch.allclose(dw, view.detach().sum(0), atol=1e-5)


def test_only_the_gradients_asked_for_are_computed(device):
    x, w = _inputs(4, 5, torch.float32, device)
    y = weighted_row_sum(x.requires_grad_(), w)
    y.sum().backward()
    assert x.grad is not None and w.grad is None


def test_gradients_pass_gradcheck(device):
    x = torch.randn(3, 5, device=device, requires_grad=True)
    w = torch.randn(5, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(weighted_row_sum, (x, w), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_the_torch_formula_agrees(device):
    x, w = _inputs(9, 200, torch.float32, device)
    assert torch.allclose(torch_weighted_row_sum(x, w), weighted_row_sum(x, w), atol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "error", "message"),
    [
        (torch.ones(3, 4), torch.ones(5), ValueError, r"want x \(M, N\), w \(N,\)"),
        (torch.ones(4), torch.ones(4), ValueError, "want x"),
        (torch.ones(0, 4), torch.ones(4), ValueError, "not empty"),
        (torch.ones(3, 4), torch.ones(4).half(), TypeError, "want float16"),
        (torch.ones(3, 4).int(), torch.ones(4).int(), TypeError, "want float16"),
        (torch.ones(3, 4).bfloat16(), torch.ones(4).bfloat16(), TypeError, "on a GPU bfloat16"),
    ],
)
def test_bad_input_is_refused(x, w, error, message):
    with pytest.raises(error, match=message):
        weighted_row_sum(x, w)
