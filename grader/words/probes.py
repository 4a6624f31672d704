"""The plain, small case that is asked after a wrong answer."""

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
