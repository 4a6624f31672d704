"""The mistake that gives a whole attention matrix is named, and nothing else is."""

from dataclasses import replace

import pytest
import torch

from grader.course.cases import Case
from grader.diagnosis import attention_map, suspects

CAUSAL = Case(4, "standard", 128, D=16, HQ=2, HKV=2, is_causal=True)
WINDOW = replace(CAUSAL, stage=6, window=23)
SINKS = replace(CAUSAL, stage=9, window=23, sinks=5, sink_logits=True)
GROUPS = replace(CAUSAL, stage=5, HQ=6, HKV=2)


def causal(i, j, case):
    return j <= i


def window(i, j, case):
    return (j <= i) & (i - j < case.window)


def sinks(i, j, case):
    return (j <= i) & ((i - j < case.window) | (j < case.sinks))


def update(m_i, l_i, acc, s, v, raw):
    m = torch.maximum(m_i, s.amax(-1))
    pivot = m.nan_to_num(neginf=0.0)  # of a row that has seen no key
    p, alpha = torch.exp(s - pivot[..., None]), torch.exp(m_i - pivot)
    return m, l_i * alpha + p.sum(-1), acc * alpha[..., None] + p @ v


def acc_kept(m_i, l_i, acc, s, v, raw):
    m, l_i, _ = update(m_i, l_i, acc, s, v, raw)
    return m, l_i, acc + torch.exp(s - m[..., None]) @ v


def hidden_keys_summed(m_i, l_i, acc, s, v, raw):
    m, _, acc = update(m_i, l_i, acc, s, v, raw)
    return m, l_i * torch.exp(m_i - m) + torch.exp(raw - m[..., None]).sum(-1), acc


def max_before_the_mask(m_i, l_i, acc, s, v, raw):
    """In float32, so that the weights of a row whose scores lie far below it are 0."""
    m = torch.maximum(m_i, raw.amax(-1)).float()
    p, alpha = torch.exp(s.float() - m[..., None]), torch.exp(m_i.float() - m)
    return m.double(), l_i * alpha + p.sum(-1), acc * alpha[..., None] + p.double() @ v


def all_nan(m_i, l_i, acc, s, v, raw):
    m, l_i, acc = update(m_i, l_i, acc, s, v, raw)
    return m, l_i * torch.nan, acc


def visits(start, M, T, N):
    return [(at, at + T > start) for at in range(0, min(start + M, N), T)]


def past_the_end(start, M, T, N):
    return [(at, at >= start) for at in range(0, start + M, T)]


def straddling_unmasked(start, M, T, N):
    return [(at, at >= start) for at in range(0, min(start + M, N), T)]


def every_tile(start, M, T, N):
    return [(at, True) for at in range(0, min(start + M, N), T)]


def diagonal_once_more(start, M, T, N):
    return [*visits(start, M, T, N), *((at, False) for at in range(start, min(start + M, N), T))]


def from_the_window(start, M, T, N):
    return [(at, True) for at in (*range(max(start - 23, 0), start, T),
                                  *range(start, min(start + M, N), T))]


def sinks_and_window(start, M, T, N):
    first = max(start - 39, 0) // T * T
    return [(at, True) for at in (*range(0, 20, T), *range(first, min(start + M, N), T))]


def sinks_rounded_down(start, M, T, N):
    W, S = (200, 70) if N > 128 else (23, 5)  # as attention_map.longer() has them
    first = max(start - W + 1, 0) // T * T
    return [(at, True) for at in (*range(0, min(S // T * T, first), T),
                                  *range(first, min(start + M, N), T))]


def last_full_tile_missing(start, M, T, N):
    full = [at for at in range(0, start, T)]
    return [one for one in visits(start, M, T, N) if one[0] not in full[-1:]]


def answer(mask, M=32, T=16, loop=every_tile, step=update, factor=1.0,
           kv=lambda h, group: h // group, sink=lambda x: x, k_at=lambda at, start: at,
           v_at=lambda at, start: at, begin=-torch.inf):
    """A submission in plain torch, tile by tile.  -> ask(built)"""
    def ask(built):
        case, t = built.case, {name: x.double() for name, x in built.tensors.items()}
        group = case.HQ // case.HKV
        heads = [kv(h, group) for h in range(case.HQ)]
        q, k, v = t["q"], *(torch.nn.functional.pad(t[name][:, heads], (0, 0, 0, T + M))
                            for name in ("k", "v"))  # past the end zeros are read
        o = torch.zeros_like(q)
        for start in range(0, case.N, M):
            own = slice(start, min(start + M, case.N))
            i = torch.arange(own.start, own.stop)[:, None]
            m = torch.full(q.shape[:2] + (own.stop - start,), begin, dtype=torch.double)
            l_i = torch.zeros_like(m)
            if case.sink_logits:
                m, l_i = m.clamp_min(0) + sink(t["sink_logits"])[:, None], l_i + 1
            acc = torch.zeros_like(q[:, :, own])
            for at, masked in loop(start, M, T, case.N):
                j = torch.arange(at, at + T)[None]
                of_k, of_v = (j[0] - at + read(at, start) for read in (k_at, v_at))
                s = raw = q[:, :, own] @ k[:, :, of_k].mT * case.D**-0.5 * factor
                if masked:
                    s = raw.masked_fill(~mask(i, j, case), -torch.inf)
                m, l_i, acc = step(m, l_i, acc, s, v[:, :, of_v], raw)
            o[:, :, own] = acc / l_i[..., None]
        return {"o": o.float()}
    return ask


def exchanged(ask):
    """The answer with k in the place of q, and q in that of k."""
    def turned(built):
        t = built.tensors
        return ask(replace(built, tensors=t | {"q": t["k"], "k": t["q"]}))
    return turned


def named(case, ask) -> tuple[str, str]:
    matrix = attention_map.read(ask, case, 1)
    assert bool(matrix.wrong.any())
    return suspects.name(matrix, lambda: attention_map.longer(ask, matrix))[:2]


@pytest.mark.parametrize(("case", "ask", "mistake"), [
    (CAUSAL, answer(lambda i, j, c: j <= i + 1, 64, 64), "next-key-visible"),
    (CAUSAL, answer(causal, 64, 32, visits, acc_kept), "acc-not-rescaled"),
    (CAUSAL, answer(causal, 64, 32, visits, hidden_keys_summed), "hidden-keys-in-the-sum"),
    (replace(CAUSAL, family="steep"), answer(causal, 64, 64, visits, max_before_the_mask),
     "max-of-hidden-keys"),
    (CAUSAL, answer(causal, 64, 32, visits, factor=0.25), "scale-twice"),
    (CAUSAL, answer(causal, 64, 32, factor=1.4427), "log2e-twice"),
    (CAUSAL, exchanged(answer(causal, 64, 32)), "q-and-k-exchanged"),
    (replace(SINKS, window=40, sinks=20), answer(sinks, loop=sinks_and_window),
     "sinks-counted-twice"),
    (CAUSAL, answer(causal, 32, 16, v_at=lambda at, start: 0), "tile-not-advanced"),
    (CAUSAL, answer(causal, 64, 32, k_at=lambda at, start: at - start * (at >= start)),
     "tile-not-advanced"),
    (CAUSAL, answer(causal, 64, 32, factor=(16 / 128)**0.5), "scale-of-the-length"),
    (CAUSAL, answer(lambda i, j, c: (j - j[0, 0]) - (i - i[0, 0]) <= j[0, 0] - i[0, 0], 64, 32,
                    visits), "offset-negated"),
    (replace(CAUSAL, N=90), answer(lambda i, j, c: j - j[0, 0] <= i, 64, 32, past_the_end),
     "key-positions-of-the-tile"),
    (CAUSAL, answer(causal, 32, 16, diagonal_once_more), "diagonal-twice"),
    (CAUSAL, answer(causal, 32, 16, last_full_tile_missing), "last-full-tile-skipped"),
    (CAUSAL, answer(causal, 32, 64, straddling_unmasked), "diagonal-unmasked"),
    (CAUSAL, answer(lambda i, j, c: (j // 32 <= i // 32) & (j < c.N), 32, 32), "diagonal-unmasked"),
    (CAUSAL, answer(lambda i, j, c: j < c.N, 32, 32, lambda start, M, T, N: [
        (at, True) for at in range(0, N, T)]), "causal-ignored"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j <= c.window)), "window-plus-one"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j < c.window - 1)), "window-minus-one"),
    (WINDOW, answer(causal), "window-ignored"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j < 16)), "window-of"),
    (WINDOW, answer(window, loop=from_the_window), "window-into-the-diagonal"),
    (WINDOW, answer(lambda i, j, c: (j < i) & (i - j <= c.window)), "window-one-place-early"),
    (SINKS, answer(lambda i, j, c: (j <= i) & ((i - j < c.window) | (j < 2))), "sinks-of"),
    (SINKS, answer(lambda i, j, c: (j <= i) & ((i - j < c.window) | (j < 4))), "sinks-of"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j < 24)), "window-of"),
    (SINKS, answer(window), "sinks-ignored"),
    (SINKS, answer(sinks, loop=sinks_rounded_down), "phase-too-short"),
    (SINKS, answer(lambda i, j, c: (j <= i) & ((i - j < c.window) | (j <= c.sinks))),
     "sinks-plus-one"),
    (SINKS, answer(sinks, sink=lambda x: x - 1e4), "sink-logits-ignored"),
    (SINKS, answer(sinks, sink=lambda x: x[0] + 0 * x), "sink-logit-wrong"),
    (GROUPS, answer(causal, kv=lambda h, group: h % 2), "heads-interleaved"),
    (GROUPS, answer(causal, kv=lambda h, group: 1), "heads-read"),
])
def test_a_mistake_is_named_by_the_weights_that_it_gives(case, ask, mistake):
    id, words = named(case, ask)
    assert id == mistake and (", or " not in words or mistake == "log2e-twice"), words


def dq_of(mask, right=sinks):
    """A right answer but for dq, whose code recomputes P with this mask."""
    def ask(built):
        case, t = built.case, {name: x.double() for name, x in built.tensors.items()}
        i, j = torch.arange(case.N)[:, None], torch.arange(case.N)[None]
        do = built.call.douts["o"].view().double()
        s = t["q"] @ t["k"].mT * case.D**-0.5
        sink = t["sink_logits"][:, None, None].expand(*s.shape[:3], 1) if case.sink_logits else \
            torch.full((*s.shape[:3], 1), -torch.inf)
        lse = torch.logsumexp(torch.cat([s.masked_fill(~right(i, j, case), -torch.inf), sink], -1),
                              -1, keepdim=True)
        p, dp = torch.exp(s - lse), do @ t["v"].mT
        delta = (p * right(i, j, case) * dp).sum(-1, keepdim=True)
        return {"d_q": (p * mask(i, j, case) * (dp - delta) @ t["k"] * case.D**-0.5).float()}
    return ask


def test_a_maximum_from_0_beside_a_sink_logit_changes_no_usual_weights():
    call = suspects.Call(attention_map.read(answer(sinks), SINKS, 1))
    right, zero = (call.program(suspects.Suspect(("max-starts-at-0",), begin=begin, sink=-3.0),
                                0, 32, 16, slice(0, 32)) for begin in (-float("inf"), 0.0))
    assert abs(right - zero).max() < 1e-6


def test_a_scale_that_is_wrong_in_some_tiles_is_said_to_be_so():
    def ask(built):  # tiles of the diagonal have a scale of their own
        case, t = built.case, {name: x.double() for name, x in built.tensors.items()}
        i, j = torch.arange(case.N)[:, None], torch.arange(case.N)[None]
        factor = torch.where(j // 32 == i // 32, 1.0, 1.4427) * case.D**-0.5
        s = (t["q"] @ t["k"].mT * factor).masked_fill(j > i, -torch.inf)
        return {"o": (torch.softmax(s, -1) @ t["v"]).float()}

    id, words = named(CAUSAL, ask)
    assert (id, words.partition(", ")[0]) == ("log2e-twice", "in tiles before the diagonal"), words


def test_shares_of_earlier_tiles_that_are_lost_from_dq_are_named():
    """The only key of query 0 has dS = 0 whatever its weight: it tells nothing."""
    case = replace(CAUSAL, stage=8, N=160, grads=("q",))
    ask = dq_of(lambda i, j, c: causal(i, j, c) & (j >= (c.N - 1) // 64 * 64), causal)
    matrix = attention_map.read(ask, case, 1, "d_q", 160)
    id, words, _ = suspects.name(matrix, lambda: None)
    assert "in the code that computes dq, " in words and "last-tile-only" in (id[3:], *[
        mistake[0] for mistake in suspects.fitting(matrix)])


@pytest.mark.parametrize(("mask", "mistake"), [
    (window, "sinks-ignored"), (lambda i, j, c: sinks(i + 1, j, c) & (j <= i), "window-minus-one"),
    (lambda i, j, c: sinks(i, j, c) | (j == i + 1), None)])
def test_a_mask_of_dq_alone_is_named_by_what_dq_is_made_of(mask, mistake):
    matrix = attention_map.read(dq_of(mask), SINKS, 1, "d_q")
    id, words, _ = suspects.name(matrix, lambda: None)
    if mistake is None:
        assert attention_map.describe(matrix)[1].startswith(
            "In the code that computes dq, query 0 sees key 1, which should be hidden")
    else:
        assert id == f"dq-{mistake}" and words.startswith("in the code that computes dq, "), words


@pytest.mark.parametrize(("case", "ask"), [
    (CAUSAL, answer(lambda i, j, c: (j <= i) & (j != 3))),
    (CAUSAL, answer(lambda i, j, c: j <= i + 1, step=acc_kept)),
    (CAUSAL, answer(causal, step=all_nan)),
    (WINDOW, answer(lambda i, j, c: window(i, j, c) & ((i - j) % 5 != 3)))],
    ids=["one key hidden", "two mistakes", "all NaN", "holes in the window"])
def test_weights_that_no_known_mistake_gives_have_no_name(case, ask):
    assert named(case, ask) == ("", "")


def test_weights_that_are_all_zero_are_those_of_no_mistake():
    matrix = attention_map.read(answer(window), WINDOW, 1)
    nothing = replace(matrix, found=torch.zeros_like(matrix.found), tensor="d_v")
    assert suspects.name(nothing, lambda: None) == ("", "", "")


def test_a_mistake_that_other_heads_do_not_have_is_not_named():
    matrix = attention_map.read(answer(lambda i, j, case: j <= i), WINDOW, 1)
    right = replace(matrix, head=0, found=matrix.expected)
    assert suspects.name(matrix, lambda: None)[0] == "window-ignored"
    assert suspects.name(matrix, lambda: None, lambda: attention_map.others(matrix))[0] == \
        "window-ignored"
    assert suspects.name(matrix, lambda: None, lambda: [right]) == ("", "", "")
