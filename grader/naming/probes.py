"""The further small cases that are asked after a wrong answer, to tell mistakes apart."""

from dataclasses import replace

import torch

from grader.cases import Case
from grader.inputs import Built, build

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
    if case.stage == 2:
        return Case(2, "probe", 333, M=70, dtype=F32, layout="guarded", grads=case.grads,
                    dout="last" if case.dout == "last" else "dense")
    heads = {1: (2, 2), 3: (3, 3), 4: (3, 3)}.get(case.stage, (6, 2))
    base = Case(case.stage, "probe", 90, D=16, B=2, HQ=heads[0], HKV=heads[1], dtype=F32,
                is_causal=case.is_causal, grads=case.grads)
    if case.stage == 1:
        NK = None if case.NK is None else 150 if case.NK < case.N else 400
        return replace(base, N=300, NK=NK)
    if case.window is not None:  # one that hides nothing stays one that hides nothing
        base = replace(base, window=23 if case.window < case.N else 300)
    if case.sinks is not None:
        base = replace(base, sinks=5 if case.sinks else 0)
    if case.stage >= 8:
        base = replace(base, N=70, scale=case.scale, sink_logits=case.sink_logits)
    return base


def long(case: Case) -> Case:
    """As general, with more tiles, and fewer heads."""
    if case.stage == 2:
        return replace(general(case), N=1025, M=70)
    N = 500 if case.stage == 1 else 257 if case.stage < 8 else 200
    NK = None if case.NK is None else N // 2 if case.NK < case.N else N + 200
    return replace(_narrow(general(case)), N=N, NK=NK)


def _narrow(case: Case) -> Case:
    """One batch entry, and as few heads as make a group."""
    return replace(case, B=1, HQ=1 if case.HQ == case.HKV else 2, HKV=1)


def further(case: Case) -> list[Case]:
    """Other small cases to choose from."""
    base = general(case)
    if case.stage == 2:
        cases = [replace(base, N=64, M=130), replace(base, N=1025, M=5), replace(base, N=257, M=40),
                 replace(base, N=140, M=20, layout="mixed"), replace(base, N=129, M=33)]
        if case.grads:
            cases += [replace(base, N=40, M=200, dout="last")]
        if case.dtype != F32:
            cases += [replace(base, N=1025, M=3, dtype=case.dtype, family="cancel"),
                      replace(base, N=1024, dtype=case.dtype, family="faint")]
        return cases
    slim = _narrow(base)
    wide = base if case.stage < 8 else replace(slim, B=2)  # gradients take longer
    cases = [replace(wide, D=40, N=70), replace(slim, N=150), replace(slim, N=64),
             replace(slim, N=256),
             replace(wide, N=33, layout="mixed"), replace(slim, N=192), replace(wide, N=1),
             replace(slim, N=65, family="shift-"), replace(slim, N=65, family="rising"),
             replace(slim, N=130, family="falling"), replace(wide, B=6, N=40),
             replace(slim, N=65, family="shift+"), replace(slim, N=150, family="shift-"),
             replace(slim, N=128, family="shift-"),
             replace(slim, N=130, family="signs"), replace(slim, N=130, family="levels"),
             replace(slim, N=193, family="steep"),
             replace(wide, N=40, D=24), replace(slim, N=129)]
    if case.dtype != F32:  # in which roundings show
        cases += [replace(slim, N=n, dtype=case.dtype, family=family)
                  for n, family in ((400, "cancel"), (150, "hot"), (65, "shift+"))]
    if case.stage == 1:
        cases += [replace(slim, N=500), replace(slim, N=256)]
        if not case.is_causal:
            cases += [replace(base, N=70, NK=257), replace(base, N=257, NK=63)]
    if case.window is not None:
        cases += [replace(slim, window=w, N=n) for w, n in
                  ((1, 70), (64, 150), (150, 190), (33, 130), (100, 257), (2, 70), (63, 150),
                   (66, 150))]
    if case.window is not None and case.sinks is not None:
        cases += [replace(slim, window=w, sinks=s, N=n) for w, s, n in
                  ((17, 1, 150), (17, 0, 150), (9, 70, 150), (40, 33, 150), (20, 16, 150))]
    if case.stage in (8, 9):
        cases += [replace(base, HQ=4, HKV=2, N=50), replace(slim, scale=0.5, N=50),
                  replace(slim, N=50, dout="transposed")]
    if case.stage >= 5 and case.HQ != case.HKV:
        cases += [replace(slim, HQ=18, HKV=6, N=17)]
    if 5 <= case.stage < 8:
        cases += [replace(base, HQ=4, HKV=2, N=40), replace(base, HQ=6, HKV=3, N=40),
                  replace(base, HQ=8, HKV=2, N=40)]
    return cases
