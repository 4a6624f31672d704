"""The stored activations of a real model are sound, and really differ from randn.

Reads only grader/course/minilm_qkv.npz; needs neither the model nor the network.
"""

from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "grader" / "course" / "minilm_qkv.npz"
SHAPE = (6, 256, 32)


@pytest.fixture(scope="module")
def real():
    with np.load(FILE) as data:
        return {name: data[name] for name in data.files}


@pytest.fixture(scope="module")
def randn():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(SHAPE).astype(np.float16) for name in "qkv"}


def logits_of(x):
    q, k = x["q"].astype(np.float64), x["k"].astype(np.float64)
    return q @ k.swapaxes(-1, -2) / np.sqrt(SHAPE[-1])


def row_entropy(x):
    s = logits_of(x)
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return -(p * np.log(p)).sum(-1)


def test_the_file_is_there_and_smaller_than_one_megabyte():
    assert FILE.is_file()
    assert FILE.stat().st_size < 1_000_000


def test_it_holds_q_k_and_v_and_nothing_else(real):
    assert sorted(real) == ["k", "q", "v"]


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_each_array_is_float16_of_six_heads_256_tokens_and_32_dims(real, name):
    assert real[name].dtype == np.float16
    assert real[name].shape == SHAPE


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_every_value_is_finite_and_no_head_is_constant(real, name):
    assert np.isfinite(real[name]).all()
    assert (real[name].astype(np.float64).std(axis=(1, 2)) > 0.1).all()


def test_attention_over_it_is_finite(real):
    assert np.isfinite(logits_of(real)).all()
    assert np.isfinite(row_entropy(real)).all()


def test_its_logits_span_a_range_over_twice_that_of_randn(real, randn):
    # measured: 32.2 against 9.7
    assert np.ptp(logits_of(real)) > 2 * np.ptp(logits_of(randn))


def test_its_attention_is_less_uniform_than_that_of_randn_in_every_head(real, randn):
    # measured: the flattest real head has mean row entropy 4.15, the sharpest randn head 5.02
    assert row_entropy(real).mean(-1).max() < row_entropy(randn).mean(-1).min() - 0.5


def test_its_heads_differ_from_each_other_as_those_of_randn_do_not(real, randn):
    # measured: mean row entropy differs by 1.93 between real heads, by 0.05 between randn heads
    assert np.ptp(row_entropy(real).mean(-1)) > 1.0 > 10 * np.ptp(row_entropy(randn).mean(-1))


def test_its_keys_share_an_offset_as_those_of_randn_do_not(real, randn):
    # measured: largest entry of the mean key is 3.18, against 0.20 for randn
    def offset(x):
        return np.abs(x["k"].astype(np.float64).mean(axis=1)).max()

    assert offset(real) > 1.0 > 2 * offset(randn)
