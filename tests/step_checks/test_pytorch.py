"""Stage 1's steps: each of these mistakes is wrong in an example, and a right step in none."""

import numpy as np
import pytest

from grader.step_checks import pytorch
from grader.step_checks.examples import Example, Observed
from grader.step_checks.pytorch import TILE


def wrong(step: str, made, **how) -> list[str]:
    """The words of the examples in which what is made of the given values is wrong."""
    def found(example: Example):
        with np.errstate(all="ignore"):
            return example.check(Observed([made(**example.given, **how)], [], {}))
    return [example.words for example in pytorch.ENTRIES[step].examples()
            if (one := found(example)) and not one.note]


def scores(q, k, start_m, start_n, is_causal, *, most=np.inf, hide=None, dtype=np.float64):
    s = np.clip(q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -most, most)
    query = (start_m + np.arange(q.shape[-2])).astype(dtype)[:, None]
    key = (start_n + np.arange(k.shape[-2])).astype(dtype)
    hidden = (hide or (lambda i, j, m, n, causal: causal & (j > i)))(
        query, key, start_m, start_n, is_causal)
    return {"s": np.where(hidden, -np.inf, s)}


@pytest.mark.parametrize("how", [
    dict(most=1e4), dict(dtype=np.float16),  # 3,001 is 3,000 in float16
    dict(hide=lambda i, j, m, n, causal: j > i),
    dict(hide=lambda i, j, m, n, causal: causal & (j >= i)),
    dict(hide=lambda i, j, m, n, causal: causal & (j < i)),
    dict(hide=lambda i, j, m, n, causal: causal & (j > i - m)),
    dict(hide=lambda i, j, m, n, causal: causal & (j - n > i)),
    dict(hide=lambda i, j, m, n, causal: causal & (j - n > i - m)),
    dict(hide=lambda i, j, m, n, causal: bool(causal and m) & (j > i)),
    dict(hide=lambda i, j, m, n, causal: (causal and n == m) & (j > i))])
def test_wrong_scores_are_noticed(how):
    assert wrong("1.1", scores) == [] and wrong("1.1", scores, **how)


@pytest.mark.parametrize("end", [
    lambda m, NQ, NK, causal: NK - 1,
    lambda m, NQ, NK, causal: NK // TILE * TILE,
    lambda m, NQ, NK, causal: min(NQ, NK), lambda m, NQ, NK, causal: max(NQ, NK),
    lambda m, NQ, NK, causal: (min(m + TILE, NQ) if causal else NK) + 1,
    lambda m, NQ, NK, causal: m if causal else NK,
    lambda m, NQ, NK, causal: m + 1 if causal else NK // TILE * TILE,
    lambda m, NQ, NK, causal: min(m + TILE, NQ),
    lambda m, NQ, NK, causal: m + TILE,
    lambda m, NQ, NK, causal: m + 2 * TILE if causal else NK,
    lambda m, NQ, NK, causal: TILE if causal else NK])
def test_a_wrong_end_of_the_loop_is_noticed(end):
    def made(start_m, NQ, NK, is_causal, end=end):
        return {"end": end(start_m, NQ, NK, is_causal)}

    assert wrong("1.2", made)
    for right in (lambda m, NQ, NK, causal: min(m + TILE, NQ) if causal else NK,
                  lambda m, NQ, NK, causal: NK):  # some tiles in vain
        assert wrong("1.2", made, end=right) == []


def weights(s, m_i, pivot=np.maximum, least=-np.inf, dtype=np.float32, **_):
    m_i = np.where(m_i == -np.inf, np.float32(least), m_i)
    m_new = pivot(m_i, s.max(-1))
    p = np.exp(s - m_new[..., None]).astype(dtype)
    return {"m_new": m_new, "p": p, "alpha": np.exp(m_i - m_new)}


@pytest.mark.parametrize("how", [
    dict(least=-100), dict(dtype=np.float16),
    dict(pivot=lambda old, new: new),  # alpha overflows
    dict(pivot=lambda old, new: np.where(old > -np.inf, old, new)),  # p overflows
    dict(pivot=lambda old, new: 0 * new),
    dict(pivot=lambda old, new: np.maximum(new, 0)),
    dict(pivot=lambda old, new: np.broadcast_to(np.maximum(old, new).max(), new.shape))])
def test_weights_that_overflow_vanish_or_are_rounded_are_noticed(how):
    assert wrong("1.3", weights) == [] and wrong("1.3", weights, **how)


def finish(acc, l_i, m_i, log=np.log, **_):
    return {"o_tile": acc / l_i[..., None], "lse_tile": m_i + log(l_i)}


@pytest.mark.parametrize("log", [np.log2, np.log1p, lambda l_i: l_i - 1, lambda l_i: 0 * l_i])
def test_a_wrong_log_sum_exp_is_noticed(log):
    assert wrong("1.5", finish) == [] and wrong("1.5", finish, log=log)
