"""Names the mistake that gives just the wrong lse, or the wrong gradients, that came back.

The mistakes are those that step_checks/ knows by name and that need no tiles: in lse; in dS, P,
the products, the sum over a group of heads.  Each is carried out in float64 on the tensors of the
call; those of a backward in both kernels, in that of dq or in that of dk and dv.
"""

from collections.abc import Iterator

import torch

import reference
from grader.diagnosis.samples import Sample
from grader.step_checks import mistakes
from grader.step_checks.examples import LN2, LOG2E
from grader.step_checks.named import statistics

NEAR = {torch.float32: 1e-3}  # error of a gradient that agrees, relative to its norm
COARSE = 0.02  # in 16 bits
Gradients = dict[str, torch.Tensor]  # d_q, d_k, d_v; or lse


def name(samples: list[Sample]) -> tuple[str, str, str]:
    """-> the only mistake that fits the first sample whose o is right and whose lse or gradients
    are not, as its id, in words, and the rule that it breaks; "" where none or several do."""
    for sample in samples:
        if not sample.wrong or "o" in sample.wrong or "k" not in sample.built.tensors:
            continue
        makes = wrong_lse if "lse" in sample.wrong else wrong
        if makes is wrong_lse or {"d_q", "d_k", "d_v"} <= sample.got.keys():
            fits = {(id, where) for id, where, made in makes(sample) if _agree(sample, made)}
            for id, where in fits if len(fits) == 1 else ():
                return id, where + mistakes.said(id), mistakes.of(id).rule
            break
    return "", "", ""


def _agree(sample: Sample, made: Gradients) -> bool:
    near = NEAR.get(sample.built.case.dtype, COARSE)
    return all(float((sample.got[name] - x).norm()) <= near * float(x.norm())
               for name, x in made.items()) and any(
        float((sample.truth(name) - x).norm()) > 4 * near * float(x.norm())
        for name, x in made.items())


def wrong_lse(sample: Sample) -> Iterator[tuple[str, str, Gradients]]:
    """Every mistake of lse: its id, nothing, and lse."""
    s = scores(sample)[0]
    m = s.amax(-1)
    found = statistics(m.numpy(), torch.exp(s - m[..., None]).sum(-1).numpy())
    for id, lse in found.items():
        yield id, "", {"lse": torch.from_numpy(lse)}


def scores(sample: Sample) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(B, HQ, N, NK) with -inf where hidden, the same before the scale and the mask, the scale."""
    case, tensors = sample.built.case, sample.built.tensors
    scale = case.D**-0.5 if case.scale is None else case.scale
    keep = reference.keep_mask(case.N, case.n_keys, case.is_causal, case.window, case.sinks or 0)
    k = tensors["k"].double().repeat_interleave(case.HQ // case.HKV, 1)
    raw = tensors["q"].double() @ k.mT
    return (raw * scale).masked_fill(~keep, -torch.inf), raw, scale


def wrong(sample: Sample) -> Iterator[tuple[str, str, Gradients]]:
    """Every mistake of a backward: its id, where it is made, and all gradients."""
    case, tensors = sample.built.case, sample.built.tensors
    q, k, v = (tensors[name].double() for name in "qkv")
    group = case.HQ // case.HKV
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    do, dlse = (sample.built.upstream.get(name) for name in ("dout", "dlse"))
    do = torch.zeros_like(q) if do is None else do.double()
    s, raw, scale = scores(sample)
    keep, lse = torch.isfinite(s), sample.truth("lse").double()[..., None]
    p = torch.exp(s - lse)
    dp, delta = do @ v.mT, (do * sample.truth("o").double()).sum(-1, keepdim=True)
    shift = delta if dlse is None else delta - dlse.double()[..., None]
    ds = p * (dp - shift)

    def summed(x, all_heads=True):
        x = x.unflatten(1, (case.HKV, group))
        return x.sum(2) if all_heads else x[:, :, -1]

    def dq(ds=ds, times=scale):
        return {"d_q": ds @ k * times}

    def dkdv(p=p, ds=ds, times=scale, right=q, all_heads=True):
        return {"d_k": summed(ds.mT @ right * times, all_heads),
                "d_v": summed(p.mT @ do, all_heads)}

    for id, other_p, other_ds in (
            ("no-delta", p, p * dp), ("delta-added", p, p * (dp + shift)),
            ("ds-without-p", p, (dp - shift) * keep),
            *((id, x, x * (dp - shift)) for id, x in (
                ("backward-scores-unscaled", torch.exp(raw - lse) * keep),
                ("backward-in-two-bases", torch.exp((s - lse) * LOG2E)),
                ("backward-in-two-bases", torch.exp((s - lse) * LN2)),
                ("backward-without-lse", torch.exp(s)),
                ("lse-in-base-2", torch.exp(s - lse * LOG2E)))),
            *((("dlse-left-out", p, p * (dp - delta)),) if dlse is not None else ()),
            *((("sink-share-constant", p, p * (dp - shift / p.sum(-1, keepdim=True))),)
              if case.sink_logits else ())):
        yield id, "", dq(other_ds) | dkdv(other_p, other_ds)
        yield f"dq-{id}", "in the code of dq, ", dq(other_ds) | dkdv()
        yield f"dkdv-{id}", "in the code of dk and dv, ", dq() | dkdv(other_p, other_ds)
    for times in (1.0, scale):
        yield "dq-from-p", "", dq(p, times) | dkdv()
        yield "dk-from-p", "", dq() | dkdv(ds=p, times=times)
    yield "dq-unscaled", "", dq(times=1.0) | dkdv()
    yield "dk-unscaled", "", dq() | dkdv(times=1.0)
    yield "dk-from-do", "", dq() | dkdv(right=do)
    yield "dv-from-ds", "", dq() | dkdv(p=ds)
    if group > 1:
        yield "group-not-summed", "", dq() | dkdv(all_heads=False)
        both = dkdv()
        for names in (("d_k",), ("d_v",), ("d_k", "d_v")):
            yield "group-averaged", "", dq() | both | {name: both[name] / group for name in names}
