"""Names the mistake that gives just the wrong o, lse or gradients that came back.

The mistakes are those that need no tiles: the tensors, heads and batch entries that o is made of;
lse; dS, P, the products, the sum over a group.  Each is carried out in float64 on the tensors of
the call; those of a backward in both kernels, in that of dq or in that of dk and dv.
"""

from collections.abc import Iterator

import torch

import reference
from grader.diagnosis.describe import TILES
from grader.diagnosis.samples import Sample
from grader.step_checks import mistakes
from grader.step_checks.examples import LN2, LOG2E
from grader.step_checks.named import statistics
from grader.step_checks.rows import HEADS

NEAR = {torch.float32: 1e-3}  # error of a gradient that agrees, relative to its norm
COARSE = 0.02  # in 16 bits
OF_HEAD = "query head h reads key/value head "
Gradients = dict[str, torch.Tensor]  # d_q, d_k, d_v; or lse


def name(samples: list[Sample]) -> tuple[str, str, str]:
    """-> the only mistake that fits the first wrong sample, as its id, in words, and the rule that
    it breaks; "" where none or several do.  Gradients are looked at where o and lse are right."""
    for sample in samples:
        if not sample.wrong or "k" not in sample.built.tensors:
            continue
        makes = (wrong_output if "o" in sample.wrong else wrong_lse if "lse" in sample.wrong else
                 wrong_sink if sample.wrong == ["d_sink_logits"] else wrong)
        if makes is not wrong or {"d_q", "d_k", "d_v"} <= sample.got.keys():
            fits = {(id, where) for id, where, made in makes(sample) if _agree(sample, made)}
            for id, where in fits if len(fits) == 1 else ():
                if id.startswith("effect-"):
                    return id, where, ""
                words = mistakes.said(id)
                return id, where + words.removeprefix("here " * bool(where)), mistakes.of(id).rule
            break
    return "", "", ""


def _agree(sample: Sample, made: Gradients) -> bool:
    near = NEAR.get(sample.built.case.dtype, COARSE)
    return all(float((sample.got[name] - x).norm()) <= near * float(x.norm())
               for name, x in made.items()) and any(
        float((sample.truth(name) - x).norm()) > 4 * near * float(x.norm())
        for name, x in made.items())


def wrong_output(sample: Sample) -> Iterator[tuple[str, str, Gradients]]:
    """Every mistake of what o is made of: its id, what is said of it, and o."""
    case, tensors = sample.built.case, sample.built.tensors
    q, k, v = (tensors[name].double() for name in "qkv")
    s, _, right = scores(sample)
    sink = tensors["sink_logits"].double()[:, None].expand(case.HQ, case.N) if case.sink_logits \
        else torch.full((case.HQ, case.N), -torch.inf, dtype=torch.float64)
    own = torch.arange(case.HQ) // (case.HQ // case.HKV)

    def o(q=q, k=k, v=v, of_k=own, of_v=own, scale=right):
        changed = (q @ k[:, of_k].mT * scale).masked_fill(torch.isinf(s), -torch.inf)
        lse = torch.logaddexp(torch.logsumexp(changed, -1), sink)
        return {"o": torch.exp(changed - lse[..., None]) @ v[:, of_v]}

    if k.shape == v.shape:
        yield "effect-values-are-keys", "o is the softmax times k, not v", o(v=k)
    if case.scale is not None:
        yield "scale-ignored", "", o(scale=case.D**-0.5)
    if case.B > 1:
        first = {name: x[:1].expand_as(x) for name, x in zip("qkv", (q, k, v), strict=True)}
        for names in ("q", "k", "v", "kv", "qkv"):
            yield "effect-batch-entry-0", (
                f"every batch entry reads {' and '.join(names)} from batch entry 0"), o(
                **{name: first[name] for name in names})
    for name in "kv" if case.HKV > 1 else "":
        yield "effect-head-0", f"every query head reads {name} from key/value head 0", o(
            **{f"of_{name}": 0 * own})
        yield "effect-heads-of-one", (
            f"for {name} alone, query head h reads head h % HKV, and not h // (HQ // HKV)"), o(
            **{f"of_{name}": torch.arange(case.HQ) % case.HKV})


def wrong_sink(sample: Sample) -> Iterator[tuple[str, str, Gradients]]:
    """Every mistake of the gradient of sink_logits: its id, what is said of it, and the
    gradient."""
    case, lse = sample.built.case, sample.truth("lse").double()
    p = torch.exp(sample.built.tensors["sink_logits"].double()[:, None] - lse)
    delta = (sample.built.upstream["dout"].double() * sample.truth("o").double()).sum(-1)
    share = -p * delta  # (B, HQ, N)
    right = share.sum((0, 2))
    changed = {"it has the wrong sign": -right, "P of the sink is missing": -delta.sum((0, 2)),
               "it is log2(e) times as large": right * LOG2E,
               "it is ln 2 times as large": right * LN2,
               "it is a mean over the queries, not their sum": right / case.N}
    if case.B > 1:
        changed |= {"it is a mean over the batch, not its sum": right / case.B,
                    "only batch entry 0 counts": share[0].sum(1),
                    "only the last batch entry counts": share[-1].sum(1)}
    tiles = [(f"only the {which} tile of queries counts", rows) for T in TILES if T < case.N
             for which, rows in (("first", share[:, :, :T]),
                                 ("last", share[:, :, (case.N - 1) // T * T:]))]
    for said, made in (*changed.items(), *((said, rows.sum((0, 2))) for said, rows in tiles)):
        yield "effect-sink-gradient", f"the gradient of sink_logits: {said}", {
            "d_sink_logits": made}


def wrong_lse(sample: Sample) -> Iterator[tuple[str, str, Gradients]]:
    """Every mistake of lse: its id, what is said of it, and lse."""
    right = sample.truth("lse").double()
    for axis, what in enumerate(("batch entry", "head")):
        if right.shape[axis] > 1:
            yield "effect-lse-of-another", f"every {what} has the lse of {what} 0", {
                "lse": right.narrow(axis, 0, 1).expand_as(right)}
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

    def summed(x, head=None):  # of a group, or one head alone
        x = x.unflatten(1, (case.HKV, group))
        return x.sum(2) if head is None else x[:, :, head]

    def dq(ds=ds, times=scale):
        return {"d_q": ds @ k * times}

    def dkdv(p=p, ds=ds, times=scale, right=q, head=None):
        return {"d_k": summed(ds.mT @ right * times, head), "d_v": summed(p.mT @ do, head)}

    for id, other_p, other_ds in (
            ("no-delta", p, p * dp), ("delta-added", p, p * (dp + shift)),
            ("ds-without-p", p, (dp - shift) * keep),
            *((id, x, x * (dp - shift)) for id, x in (
                ("backward-scores-unscaled", torch.exp(raw - lse) * keep),
                ("backward-in-two-bases", torch.exp((s - lse) * LOG2E)),
                ("backward-in-two-bases", torch.exp((s - lse) * LN2)),
                ("backward-without-lse", torch.exp(s)),
                ("lse-in-base-2", torch.exp(s - lse * LOG2E)))),
            *((("dlse-left-out", p, p * (dp - delta)),
               ("dlse-added", p, p * (dp + shift - 2 * delta))) if dlse is not None else ()),
            *((("sink-share-constant", p, p * (dp - shift / p.sum(-1, keepdim=True))),)
              if case.sink_logits else ())):
        yield id, "", dq(other_ds) | dkdv(other_p, other_ds)
        yield f"dq-{id}", "in the code that computes dq, ", dq(other_ds) | dkdv()
        yield f"dkdv-{id}", "in the code that computes dk and dv, ", dq() | dkdv(
            other_p, other_ds)
    for times in (1.0, scale):
        yield "dq-from-p", "", dq(p, times) | dkdv()
        yield "dk-from-p", "", dq() | dkdv(ds=p, times=times)
    if case.scale is not None:
        default = case.D**-0.5
        other_p = torch.exp(raw * default - lse) * keep
        both = dq(other_p * (dp - shift), default) | dkdv(
            other_p, other_p * (dp - shift), default)
        yield "scale-ignored", "in the backward, ", both
        yield "dq-scale-ignored", "in the last factor of dq, ", dq(times=default) | dkdv()
        yield "dkdv-scale-ignored", "in the last factor of dk, ", dq() | dkdv(times=default)
    yield "effect-unscaled", "dq and dk are not multiplied by scale", dq(times=1.0) | dkdv(
        times=1.0)
    yield "dq-unscaled", "", dq(times=1.0) | dkdv()
    yield "dk-unscaled", "", dq() | dkdv(times=1.0)
    yield "dk-from-do", "", dq() | dkdv(right=do)
    yield "dv-from-ds", "", dq() | dkdv(p=ds)
    yield from _of_heads(sample, p, ds, shift)
    if group > 1:
        for head in (0, -1):
            yield "group-not-summed", "", dq() | dkdv(head=head)
        both = dkdv()
        for names in (("d_k",), ("d_v",), ("d_k", "d_v")):
            yield "group-averaged", "", dq() | both | {name: both[name] / group for name in names}


def _of_heads(sample: Sample, p: torch.Tensor, ds: torch.Tensor, shift: torch.Tensor
              ) -> Iterator[tuple[str, str, Gradients]]:
    """As wrong(), of a backward that takes query heads for those of another key/value head: in all
    of it, or only where dk or dv are summed.  p, ds, shift: the right ones."""
    case, tensors = sample.built.case, sample.built.tensors
    q, k, v = (tensors[name].double() for name in "qkv")
    do, lse = sample.built.upstream.get("dout"), sample.truth("lse").double()[..., None]
    do = torch.zeros_like(q) if do is None else do.double()
    s, _, scale = scores(sample)
    own = [h // (case.HQ // case.HKV) for h in range(case.HQ)]
    told = [own]
    for id, read in HEADS.items():
        other = [read(h, case.HQ, case.HKV) for h in range(case.HQ)]
        if other in told or max(other) >= case.HKV:
            continue
        told.append(other)

        def summed(x, of):
            empty = torch.zeros(case.B, case.HKV, *x.shape[2:], dtype=x.dtype)
            return empty.index_add(1, torch.tensor(of), x)

        def gradients(p, ds, keys=k[:, own], of_k=own, of_v=own):
            return {"d_q": ds @ keys * scale, "d_k": summed(ds.mT @ q * scale, of_k),
                    "d_v": summed(p.mT @ do, of_v)}

        p_other = torch.exp(q @ k[:, other].mT * scale - lse).masked_fill(torch.isinf(s), 0.0)
        ds_other = p_other * (do @ v[:, other].mT - shift)
        yield id, "in the backward, ", gradients(p_other, ds_other, k[:, other], other, other)
        head = mistakes.said(id).removeprefix(OF_HEAD)
        for names, of_k, of_v in (("dk", other, own), ("dv", own, other),
                                  ("dk and dv", other, other)) if head != mistakes.said(id) else ():
            yield "effect-heads-summed", (
                f"in {names}, the share of query head h is added to key/value head {head}; it "
                "belongs to h // (HQ // HKV)"), gradients(p, ds, of_k=of_k, of_v=of_v)
