"""The stored activations of a real model are sound, and really differ from randn.

Reads only grader/course/minilm_qkv.npz; needs neither the model nor the network.
"""

import numpy as np
import pytest

from grader.course.inputs import REAL_FILE

SHAPE = (6, 256, 32)


@pytest.fixture(scope="module")
def real():
    with np.load(REAL_FILE) as data:
        return {name: data[name] for name in data.files}


def test_the_file_holds_finite_float16_arrays_q_k_and_v_and_no_constant_head(real):
    assert sorted(real) == ["k", "q", "v"]
    for x in real.values():
        assert (x.dtype, x.shape) == (np.float16, SHAPE)
        assert np.isfinite(x).all() and (x.astype(np.float64).std(axis=(1, 2)) > 0.1).all()


def test_its_attention_differs_from_that_of_randn(real):
    def figures(x):
        """Range of the logits; mean entropy of a row, by head; largest entry of the mean key."""
        q, k = x["q"].astype(np.float64), x["k"].astype(np.float64)
        logits = q @ k.swapaxes(-1, -2) / np.sqrt(SHAPE[-1])
        e = np.exp(logits - logits.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        entropy = -(p * np.log(p)).sum(-1).mean(-1)
        return np.ptp(logits), entropy, np.abs(k.mean(axis=1)).max()

    rng = np.random.default_rng(0)
    span, entropy, offset = figures(real)
    other_span, other_entropy, other_offset = figures(
        {name: rng.standard_normal(SHAPE).astype(np.float16) for name in "qk"})
    assert span > 2 * other_span  # measured: 32.2 against 9.7
    assert entropy.max() < other_entropy.min() - 0.5  # 4.15 against 5.02
    assert np.ptp(entropy) > 1.0 > 10 * np.ptp(other_entropy)  # 1.93 against 0.05
    assert offset > 1.0 > 2 * other_offset  # 3.18 against 0.20
