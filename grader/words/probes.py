"""The further small cases that are asked after a wrong answer, to tell mistakes apart."""

from dataclasses import replace

import torch

from grader.course.cases import Case
from grader.course.inputs import Built, build

F32 = torch.float32


def build_probe(case: Case, seed: int) -> Built:
    """A case whose gaps hold numbers, not NaN: what is read there by mistake can be recognised."""
    built = build(case, seed)
    gen = torch.Generator().manual_seed(seed)
    for sent in (*built.call.inputs.values(), *built.call.douts.values()):
        gaps = torch.isnan(sent.storage)
        noise = torch.randn(len(gaps), generator=gen).to(sent.storage.dtype)
        sent.storage[gaps] = noise[gaps]
    return built


def general(case: Case) -> Case:
    """A plain case of the stage in which most mistakes differ: batch entries, groups of three."""
    stage = case.asker
    if stage.sums_rows:
        return Case(case.stage, "probe", 333, M=70, dtype=F32, layout="guarded", grads=case.grads,
                    dout="last" if case.dout == "last" else "dense")
    HQ, HKV = stage.heads
    base = Case(case.stage, "probe", 90, D=16, B=2, HQ=HQ, HKV=HKV, dtype=F32,
                is_causal=case.is_causal, grads=case.grads)
    if not stage.needs_triton:
        NK = None if case.NK is None else 100 if case.NK < case.N else 200
        return replace(base, N=160, NK=NK)
    if case.window is not None:  # one that hides nothing stays one that hides nothing
        base = replace(base, window=23 if case.window < case.N else 300)
    if case.sinks is not None:
        base = replace(base, sinks=5 if case.sinks else 0)
    if stage.differentiates:
        scale = None if case.scale is None else 0.4
        base = replace(base, N=70, scale=scale, sink_logits=case.sink_logits)
    return base


def long(case: Case) -> Case:
    """As general, with more tiles, and as few heads as make a group."""
    if case.asker.sums_rows:
        return replace(general(case), N=1025, M=70)
    N = 200 if case.asker.differentiates else 257 if case.asker.needs_triton else 300
    NK = None if case.NK is None else N // 2 if case.NK < case.N else N + 200
    return replace(general(case), N=N, NK=NK, B=1, HQ=1 if case.HQ == case.HKV else 2, HKV=1)


def alike(case: Case) -> Case:
    """As long, with the wrong case's numbers, dtype and window: large scores, rising maxima."""
    other = replace(long(case), dtype=case.dtype, family=case.family)
    if case.asker.sums_rows:
        return other
    if case.window is not None and case.window < min(case.N, other.N):
        other = replace(other, window=case.window)
    return replace(other, D=min(case.D, 64))
