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


def update(m_i, l_i, acc, s, v):
    m = torch.maximum(m_i, s.amax(-1))
    pivot = m.nan_to_num(neginf=0.0)  # of a row that has seen no key
    p, alpha = torch.exp(s - pivot[..., None]), torch.exp(m_i - pivot)
    return m, l_i * alpha + p.sum(-1), acc * alpha[..., None] + p @ v


def acc_kept(m_i, l_i, acc, s, v):
    m, l_i, _ = update(m_i, l_i, acc, s, v)
    return m, l_i, acc + torch.exp(s - m[..., None]) @ v


def visits(start, M, T, N):
    return [(at, at + T > start) for at in range(0, min(start + M, N), T)]


def straddling_unmasked(start, M, T, N):
    return [(at, at >= start) for at in range(0, min(start + M, N), T)]


def every_tile(start, M, T, N):
    return [(at, True) for at in range(0, min(start + M, N), T)]


def diagonal_once_more(start, M, T, N):
    return [*visits(start, M, T, N), *((at, False) for at in range(start, min(start + M, N), T))]


def from_the_window(start, M, T, N):
    return [(at, True) for at in (*range(max(start - 23, 0), start, T),
                                  *range(start, min(start + M, N), T))]


def last_full_tile_missing(start, M, T, N):
    full = [at for at in range(0, start, T)]
    return [one for one in visits(start, M, T, N) if one[0] not in full[-1:]]


def answer(mask, M=32, T=16, loop=every_tile, step=update, factor=1.0,
           kv=lambda h, group: h // group, sink=lambda x: x):
    """A submission in plain torch, tile by tile.  -> ask(built)"""
    def ask(built):
        case, t = built.case, {name: x.double() for name, x in built.tensors.items()}
        group = case.HQ // case.HKV
        heads = [kv(h, group) for h in range(case.HQ)]
        q, k, v = t["q"], *(torch.nn.functional.pad(t[name][:, heads], (0, 0, 0, T))
                            for name in ("k", "v"))  # past the end zeros are read
        o = torch.zeros_like(q)
        for start in range(0, case.N, M):
            own = slice(start, min(start + M, case.N))
            i = torch.arange(own.start, own.stop)[:, None]
            m = torch.full(q.shape[:2] + (own.stop - start,), -torch.inf, dtype=torch.double)
            l_i = torch.zeros_like(m)
            if case.sink_logits:
                m, l_i = m.clamp_min(0) + sink(t["sink_logits"])[:, None], l_i + 1
            acc = torch.zeros_like(q[:, :, own])
            for at, masked in loop(start, M, T, case.N):
                j = torch.arange(at, at + T)[None]
                s = q[:, :, own] @ k[:, :, j[0]].mT * case.D**-0.5 * factor
                if masked:
                    s = s.masked_fill(~mask(i, j, case), -torch.inf)
                m, l_i, acc = step(m, l_i, acc, s, v[:, :, j[0]])
            o[:, :, own] = acc / l_i[..., None]
        return {"o": o.float()}
    return ask


def named(case, ask) -> tuple[str, str]:
    matrix = attention_map.read(ask, case, 1)
    assert bool(matrix.wrong.any())
    return suspects.name(matrix, lambda: attention_map.longer(ask, matrix))[:2]


@pytest.mark.parametrize(("case", "ask", "mistake"), [
    (CAUSAL, answer(lambda i, j, c: j <= i + 1, 64, 64), "next-key-visible"),
    (CAUSAL, answer(causal, 64, 32, visits, acc_kept), "acc-not-rescaled"),
    (CAUSAL, answer(causal, 64, 32, visits, factor=0.25), "scale-twice"),
    (CAUSAL, answer(causal, 64, 32, factor=1.4427), "log2e-twice"),
    (CAUSAL, answer(causal, 32, 16, diagonal_once_more), "diagonal-twice"),
    (CAUSAL, answer(causal, 32, 16, last_full_tile_missing), "last-full-tile-skipped"),
    (CAUSAL, answer(causal, 32, 64, straddling_unmasked), "diagonal-unmasked"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j <= c.window)), "window-plus-one"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j < c.window - 1)), "window-minus-one"),
    (WINDOW, answer(causal), "window-ignored"),
    (WINDOW, answer(lambda i, j, c: (j <= i) & (i - j < 16)), "window-of"),
    (WINDOW, answer(window, loop=from_the_window), "window-into-the-diagonal"),
    (WINDOW, answer(lambda i, j, c: (j < i) & (i - j <= c.window)), "window-one-place-early"),
    (SINKS, answer(lambda i, j, c: (j <= i) & ((i - j < c.window) | (j < 2))), "sinks-of"),
    (SINKS, answer(window), "sinks-ignored"),
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


@pytest.mark.parametrize(("case", "ask"), [
    (CAUSAL, answer(lambda i, j, c: (j <= i) & (j != 3))),
    (CAUSAL, answer(lambda i, j, c: j <= i + 1, step=acc_kept)),
    (WINDOW, answer(lambda i, j, c: window(i, j, c) & ((i - j) % 5 != 3)))],
    ids=["one key hidden", "two mistakes", "holes in the window"])
def test_weights_that_no_known_mistake_gives_have_no_name(case, ask):
    assert named(case, ask) == ("", "")
