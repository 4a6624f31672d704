"""What the backward multiplies: P, dS, dO, Q, K and V."""

import torch

from grader.naming.rounding import CHOPPED, to_16_bits
from grader.naming.table import backward, only
from grader.naming.walks import Pass


def _products(words, walk, *_) -> str:
    return {"dq": "dq products", "dkv": "dkdv products"}[walk]


@backward("dp-with-k", "dP is made with k, not with v, in {0}", "dP = dO V^T", _products, "P",
          each=(("dq", "dq"), ("dk and dv", "dkv")))
def _(m, words, walk):
    walk = getattr(m, walk)
    walk.dp_with = walk.k


@backward("ds-without-p", "dS lacks its factor P in {0}", "dS = P * (dP - delta)", _products, "P",
          tiles="mn", each=tuple((words, walk, hidden) for words, walk in
                                 (("dq", "dq"), ("dk and dv", "dkv")) for hidden in (False, True)))
def _(m, words, walk, hidden):
    """hidden: it was P that hid keys, too."""
    walk = getattr(m, walk)
    walk.instead_of_p = walk.walked & (walk.j < m.NK) if hidden else walk.keep


@backward("dv-not-normalised", "dv is made of exp(S), not of P", "dV = P^T dO", "dkdv products",
          "dv")
def _(m):
    m.dkv.d_v = lambda w: (w.p * torch.exp(w.lse)).mT @ w.do


@backward("dv-from-ds", "dv is made of dS, not of P", "dV = P^T dO", "dkdv products", "dv")
def _(m):
    m.dkv.d_v = lambda w: w.ds.mT @ w.do


@backward("dv-unmasked", "dv counts hidden queries: the mask is applied to dS alone",
          "P is 0 where hidden, before dV", "dkdv products", "dv", tiles="mn")
def _(m):
    everything = Pass(m)
    everything.keep = m.dkv.walked & m.dkv.exists
    m.dkv.d_v = lambda w: torch.exp(everything.scores() - w.lse).mT @ w.do


@backward("dk-from-p", "dk is made of P, not of dS", "dK = scale * dS^T Q", "dkdv products", "dk")
def _(m):
    m.dkv.d_k = lambda w: w.p.mT @ m.q


@backward("dk-from-do", "dk is made with dO in the place of Q", "dK = scale * dS^T Q",
          "dkdv products", "dk", each=(("ds*do",), ("p*do",)))
def _(m, what):
    m.dkv.d_k = lambda w: (w.ds if what == "ds*do" else w.p).mT @ w.do


@backward("dq-from-p", "dq is made of P, not of dS", "dQ = scale * dS K", "dq products", "dq")
def _(m):
    m.dq.d_q = lambda w: w.p @ m.dq.k()


@backward("dq-in-16-bits", "the sum of dq is kept in 16 bits", "dQ adds up in float32",
          "dq products", "dq", tiles="n", each=((torch.float16,), (torch.bfloat16,), (CHOPPED,)),
          rounds=True)
def _(m, dtype):
    def rounded(w):
        k, dq = m.dq.k(), 0.0
        for lo in range(0, m.NK, m.BN):
            tile = slice(lo, lo + m.BN)
            dq = to_16_bits(dq + w.ds[..., tile].to(m.case.dtype).double() @ k[:, tile], dtype)
        return dq
    m.dq.d_q = rounded


@backward("dk-not-transposed", "dk is made with dS, not its transpose", "dK = scale * dS^T Q",
          "dkdv products", "dk", tiles="n")
def _(m):
    """dS of a square tile lies where its transpose belongs."""
    def flipped(w):
        tiles = torch.nn.functional.pad(w.ds, (0, -w.ds.shape[2] % m.BN, 0, -m.N % m.BN))
        tiles = tiles.unflatten(2, (-1, m.BN)).unflatten(1, (-1, m.BN))  # (P, i, BN, j, BN)
        ds = tiles.transpose(2, 4).flatten(3, 4).flatten(1, 2)[:, :m.N, :w.ds.shape[2]]
        return ds.mT @ m.q
    m.dkv.d_k = flipped


@backward("o-strides", "the backward reads o with strides not its own: {0}",
          "o is contiguous: its own strides, not those of q", "", "o",
          each=(("those of q", "q"), ("those of k", "k")))
def _(m, words, other):
    sent = m.built.call.inputs[other]
    shape = (m.B, m.HQ, m.N, m.D)
    only(sent.stride != torch.empty(shape, device="meta").stride())

    def misread(o):
        flat = o.contiguous().flatten()
        only(sum(s * (n - 1) for s, n in zip(sent.stride, shape, strict=True)) < len(flat))
        return flat.as_strided(shape, sent.stride).flatten(0, 1)
    m.o_of = misread


@backward("dk-without-dq", "where q needs no gradient, delta is not computed, and dk needs it",
          "delta is for dq and dk alike", "", "delta")
def _(m):
    only("q" not in m.case.grads)
    m.delta_of = lambda o, do: torch.full_like(o[..., :1], torch.nan)
