"""Every formula of the guide's derivations, in numbers: autograd and differences in float64."""

import math
import re
from pathlib import Path

import pytest
import torch

import reference

torch.manual_seed(0)
N, D, W, SINKS = 7, 3, 3, 2
SCALE = 0.7
TEXT = Path(reference.__file__).parent / "guide" / "text"


def shown(stage: int) -> list[str]:
    """The formulas that stand on lines of their own in a chapter."""
    text = (TEXT / f"stage_{stage}.md").read_text("utf-8")
    return [" ".join(found.split()) for found in re.findall(
        r"^\$\$\n(.*?)\n\$\$", text, re.S | re.M)]


COMPUTED = {8: set(), 9: set()}


def of(stage: int, *formulas: str):
    """The test that follows computes what these formulas of a chapter say."""
    COMPUTED[stage].update(formulas)
    return lambda test: test


def one_head(sink=None):
    """-> q, k, v, do, keep, sink and the names of the guide: s, lse, p, o, dp, delta, ds."""
    q, k, v, do = torch.randn(4, N, D, dtype=torch.float64)
    keep = reference.keep_mask(N, N, True, W, SINKS)
    s = (SCALE * q @ k.T).masked_fill(~keep, -torch.inf)
    lse = torch.logsumexp(s, 1)
    if sink is not None:
        lse = torch.logaddexp(lse, torch.tensor(sink, dtype=torch.float64))
    p = torch.exp(s - lse[:, None])
    o = p @ v
    dp, delta = do @ v.T, (do * o).sum(1)
    return q, k, v, do, s, lse, p, o, dp, delta, p * (dp - delta[:, None])


def autograd(function, *tensors):
    """Gradients of function(*tensors), a number."""
    inputs = [x.clone().requires_grad_() for x in tensors]
    return torch.autograd.grad(function(*inputs), inputs)


def test_subtracting_any_number_leaves_the_softmax_alone():
    s = torch.randn(9, dtype=torch.float64)
    for m in (-3.0, 0.0, float(s.max())):
        weights = torch.exp(s - m)
        torch.testing.assert_close(weights / weights.sum(), torch.softmax(s, 0))


def test_the_gradient_of_lse_is_p():
    s = torch.randn(9, dtype=torch.float64)
    (got,) = autograd(lambda s: torch.logsumexp(s, 0), s)
    torch.testing.assert_close(got, torch.softmax(s, 0))


def test_dlse_joins_delta():
    s, dp, dlse = torch.randn(9, dtype=torch.float64), torch.randn(9, dtype=torch.float64), 0.4
    p = torch.softmax(s, 0)
    (got,) = autograd(
        lambda s: (torch.softmax(s, 0) * dp).sum() + dlse * torch.logsumexp(s, 0), s)
    torch.testing.assert_close(got, p * (dp - ((p * dp).sum() - dlse)))


@of(8,
    r"\frac{\partial \ln P_j}{\partial S_k} = [j = k] - P_k \qquad\Longrightarrow\qquad "
    r"\frac{\partial P_j}{\partial S_k} = P_j \bigl( [j = k] - P_k \bigr),")
def test_the_softmax_jacobian():
    s = torch.randn(6, dtype=torch.float64)
    p = torch.softmax(s, 0)
    got = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, 0), s)
    torch.testing.assert_close(got, p[:, None] * (torch.eye(6, dtype=torch.float64) - p[None, :]))


@of(8,
    r"S_{ij} = \text{scale} \cdot q_i \cdot k_j, \qquad P_{ij} = e^{S_{ij} - "
    r"\mathrm{lse}_i}, \qquad o_i = \sum_j P_{ij} v_j .",
    r"dv_j = \sum_i P_{ij}\, do_i, \qquad dP_{ij} = do_i \cdot v_j , \qquad\text{or}\qquad "
    r"dv = P^\top do, \qquad dP = do\, v^\top .",
    r"dS_k = \sum_j dP_j \frac{\partial P_j}{\partial S_k} = P_k\, dP_k - P_k \sum_j P_j\, "
    r"dP_j = P_k\, (dP_k - \delta), \qquad \delta = \sum_j P_j\, dP_j .",
    r"dq_i = \text{scale} \sum_j dS_{ij}\, k_j, \qquad dk_j = \text{scale} \sum_i dS_{ij}\, "
    r"q_i .")
@pytest.mark.parametrize("sink", [None, 0.5], ids=["no sink", "sink"])
def test_the_backward_of_stages_8_and_9(sink):
    q, k, v, do, s, lse, p, o, dp, delta, ds = one_head(sink)

    def loss(q, k, v):
        s = (SCALE * q @ k.T).masked_fill(~reference.keep_mask(N, N, True, W, SINKS), -torch.inf)
        weights = torch.exp(s)
        total = weights.sum(1) + (0.0 if sink is None else math.exp(sink))
        return (weights / total[:, None] @ v * do).sum()

    dq, dk, dv = autograd(loss, q, k, v)
    torch.testing.assert_close(dq, SCALE * ds @ k)
    torch.testing.assert_close(dk, SCALE * ds.T @ q)
    torch.testing.assert_close(dv, p.T @ do)


@of(8,
    r"\delta_i = \sum_j P_{ij}\, (do_i \cdot v_j) = do_i \cdot \sum_j P_{ij}\, v_j = do_i "
    r"\cdot o_i .")
@pytest.mark.parametrize("sink", [None, 0.5], ids=["no sink", "sink"])
def test_delta_is_rowsum_of_p_dp_and_of_do_o(sink):
    *_, p, o, dp, delta, ds = one_head(sink)
    torch.testing.assert_close((p * dp).sum(1), delta)


@of(9,
    r"dS_{i*} = P_{i*}\,(0 - \delta_i) = -e^{b_h - \mathrm{lse}_i}\,\delta_i .")
def test_ds_sums_to_zero_with_the_sink_and_without_one():
    *_, ds = one_head()
    torch.testing.assert_close(ds.sum(1), torch.zeros(N, dtype=torch.float64))
    _, _, _, _, _, lse, _, _, _, delta, ds = one_head(0.5)
    torch.testing.assert_close(ds.sum(1) - torch.exp(0.5 - lse) * delta,
                               torch.zeros(N, dtype=torch.float64))


@of(9,
    r"\delta_i = \sum_{j} P_{ij}\, dP_{ij} + P_{i*} \cdot 0 = do_i \cdot o_i",
    r"db_h = -\sum_{\text{batch}} \sum_i e^{b_h - \mathrm{lse}_i}\, \delta_i .")
def test_the_gradient_of_a_sink_logit_against_a_difference():
    q, v, do = torch.randn(3, 2, 4, N, D, dtype=torch.float64)
    k = torch.randn(2, 2, N, D, dtype=torch.float64)
    v, logits = v[:, :2], torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)

    def out(logits):
        return reference.attention(q, k, v, is_causal=True, window_size=W, sink_logits=logits)

    got = out(logits)
    delta = (do * got["o"]).sum(-1)
    formula = -(torch.exp(logits[None, :, None] - got["lse"]) * delta).sum((0, 2))
    for h in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[h] = 1e-6
        up, down = ((out(logits + x)["o"] * do).sum() for x in (step, -step))
        torch.testing.assert_close((up - down) / 2e-6, formula[h], rtol=1e-6, atol=1e-8)


@of(9,
    r"o_i = \frac{\sum_j e^{S_{ij}} v_j}{e^{b_h} + \sum_j e^{S_{ij}}}, \qquad \mathrm{lse}_i "
    r"= \log\Bigl( e^{b_h} + \sum_j e^{S_{ij}} \Bigr), \qquad P_{ij} = e^{S_{ij} - "
    r"\mathrm{lse}_i} .",
    r"m = b_h, \qquad \ell = e^{b_h - b_h} = 1, \qquad a = 1 \cdot v_* = 0 ,")
def test_a_sink_logit_is_a_key_without_a_value():
    q, k, v, *_ = one_head()
    sink = 0.5
    s = torch.cat([torch.full((N, 1), sink, dtype=torch.float64), SCALE * q @ k.T], 1)
    values = torch.cat([torch.zeros(1, D, dtype=torch.float64), v])
    got = reference.attention(q[None, None], k[None, None], v[None, None], scale=SCALE,
                              sink_logits=torch.tensor([sink], dtype=torch.float64))
    torch.testing.assert_close(torch.softmax(s, 1) @ values, got["o"][0, 0])
    torch.testing.assert_close(torch.logsumexp(s, 1), got["lse"][0, 0])


@of(8,
    r"dk_{\kappa, j} = \text{scale} \sum_{h} \sum_i dS^{(h)}_{ij}\, q^{(h)}_i, \qquad "
    r"dv_{\kappa, j} = \sum_{h} \sum_i P^{(h)}_{ij}\, do^{(h)}_i .")
def test_what_a_group_shares_it_sums():
    q, do = torch.randn(2, 1, 4, N, D, dtype=torch.float64)
    k, v = torch.randn(2, 1, 2, N, D, dtype=torch.float64)
    got = reference.attention(q, k, v, dout=do, is_causal=True)
    each = reference.attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), dout=do,
                               is_causal=True)
    for name in ("k", "v"):
        torch.testing.assert_close(got[name], each[name].unflatten(1, (2, 2)).sum(2))


def test_base_two_gives_the_same_weights_and_lse():
    s, scale = torch.randn(9, dtype=torch.float64), 0.25
    m2 = (s * scale / math.log(2)).max()
    p2 = torch.exp2(s * scale / math.log(2) - m2)
    lse = (m2 + torch.log2(p2.sum())) * math.log(2)
    torch.testing.assert_close(lse, torch.logsumexp(s * scale, 0))


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize("window, sinks", [(1, 0), (3, 2), (5, 0), (9, 5), (40, 3)])
def test_the_borders_of_dkdv_are_those_of_the_mask(block, window, sinks, length=24):
    keep = reference.keep_mask(length, length, True, window, sinks)
    for n in range(0, length, block):
        columns = keep[:, n : n + block]
        inner = n + block
        last = length if n < sinks else min(inner - 1 + window, length)
        outer = length if inner <= sinks else min(n + window, length)
        outer = max(outer // block * block, inner)
        assert not columns[last:].any() and columns[last - 1].any()
        assert columns[inner:outer].all()


@pytest.mark.parametrize("window, sinks", [(N, 0), (W, 0), (W, SINKS)])
def test_the_boxes_of_the_whole_algorithm_give_attention_and_its_gradients(window, sinks):
    """algorithm.md, line by line, in tiles of two; a tile without a visible pair is passed over."""
    q, k, v, do = torch.randn(4, N, D, dtype=torch.float64)
    keep = reference.keep_mask(N, N, True, window, sinks)
    tiles = [slice(start, start + 2) for start in range(0, N, 2)]
    o, lse, delta = torch.zeros(N, D, dtype=torch.float64), *torch.zeros(2, N, dtype=torch.float64)
    dq, dk, dv = torch.zeros(3, N, D, dtype=torch.float64)
    for i in tiles:
        m, length, a = torch.full_like(lse[i], -torch.inf), 0 * lse[i], 0 * q[i]
        for j in tiles:
            if not keep[i, j].any():
                continue
            s = (SCALE * q[i] @ k[j].T).masked_fill(~keep[i, j], -torch.inf)
            new = torch.maximum(m, s.max(1).values)
            pivot = new.where(new.isfinite(), torch.zeros_like(new))  # stage 6
            p, alpha = torch.exp(s - pivot[:, None]), torch.exp(m - pivot)
            length, a, m = alpha * length + p.sum(1), alpha[:, None] * a + p @ v[j], new
        o[i], lse[i] = a / length[:, None], m + torch.log(length)

    def parts(i, j):
        p = torch.exp(SCALE * q[i] @ k[j].T - lse[i, None]) * keep[i, j]
        return p, p * (do[i] @ v[j].T - delta[i, None])

    for i in tiles:
        delta[i] = (do[i] * o[i]).sum(1)
        dq[i] = SCALE * sum(parts(i, j)[1] @ k[j] for j in tiles if keep[i, j].any())
    for j in tiles:
        made = [(i, *parts(i, j)) for i in tiles if keep[i, j].any()]
        dv[j] = sum(p.T @ do[i] for i, p, _ in made)
        dk[j] = SCALE * sum(ds.T @ q[i] for i, _, ds in made)
    want = reference.attention(*(x[None, None] for x in (q, k, v)), scale=SCALE, is_causal=True,
                               dout=do[None, None], window_size=window, sink_size=sinks)
    for got, name in ((o, "o"), (lse, "lse"), (dq, "q"), (dk, "k"), (dv, "v")):
        torch.testing.assert_close(got, want[name][0, 0])


@pytest.mark.parametrize("tiles", [1, 2, 5, 16])
def test_the_share_of_the_tiles_of_a_causal_walk(tiles):
    from guide.worked import counted

    found = counted(4 * tiles, 4)
    assert (found["whole"] + found["cut"]) / tiles**2 == 1 / 2 + 1 / (2 * tiles)


@pytest.mark.parametrize("length, window", [(10, 3), (1000, 10), (64, 64)])
def test_the_visible_pairs_of_a_window(length, window):
    keep = reference.keep_mask(length, length, True, window)
    assert keep.sum() == window * (window + 1) // 2 + (length - window) * window
    assert keep.sum() == length * window - window * (window - 1) // 2


def test_the_answers_to_the_open_exercises_that_derive_something_hold():
    """Bent scores, slopes, two halves, the largest weight, dropout: 1, 2, 3, 8 and 9."""
    q, k, v, do = torch.randn(4, N, D, dtype=torch.float64)
    keep = reference.keep_mask(N, N, True, N)
    distance = (torch.arange(N)[:, None] - torch.arange(N)).double()
    kept = (torch.rand(N, N) < 0.8).double() / 0.8

    def forward(raw, factor=1.0):
        p = torch.softmax(raw.masked_fill(~keep, -torch.inf), 1)
        return p, (factor * p) @ v

    def backward(raw, factor=1.0):
        p, o = forward(raw, factor)
        return p * (factor * (do @ v.T) - (do * o).sum(1, keepdim=True))

    raw, c = SCALE * q @ k.T, 2.0
    bent = c * torch.tanh(raw / c)
    (got,) = autograd(lambda s: (forward(c * torch.tanh(s / c))[1] * do).sum(), raw)
    torch.testing.assert_close(got, backward(bent) * (1 - (bent / c) ** 2))
    slope = torch.tensor(0.3, dtype=torch.float64)
    (got,) = autograd(lambda b: (forward(raw - b * distance)[1] * do).sum(), slope)
    torch.testing.assert_close(got, -(backward(raw - slope * distance) * distance).sum())
    (got,) = autograd(lambda s: (forward(s, kept)[1] * do).sum(), raw)
    torch.testing.assert_close(got, backward(raw, kept))
    lse = [torch.logsumexp(raw[:, part], 1, keepdim=True) for part in (slice(3), slice(3, N))]
    both = torch.logaddexp(*lse)
    o = sum(torch.exp(one - both) * (torch.softmax(raw[:, part], 1) @ v[part])
            for one, part in zip(lse, (slice(3), slice(3, N)), strict=True))
    torch.testing.assert_close(o, torch.softmax(raw, 1) @ v)
    length = torch.exp(raw - raw.amax(1, keepdim=True)).sum(1)
    torch.testing.assert_close(torch.softmax(raw, 1).amax(1), 1 / length)


@pytest.mark.parametrize("stage", COMPUTED)
def test_each_formula_of_the_backward_is_computed_here(stage):
    assert {*shown(stage)} == COMPUTED[stage]
