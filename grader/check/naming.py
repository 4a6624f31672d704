"""Names what is wrong with an answer, as the grader of the course does."""

import contextlib
import re
from dataclasses import replace

import numpy as np
import torch

import reference
from grader.check.adapter import QKV
from grader.check.asking import Asking, Found
from grader.diagnosis import attention_map, describe, suspects, wrong_gradients
from grader.diagnosis.samples import Sample
from grader.text import sentence

OF_QUERIES = ("o", "lse", "d_q")


def name(asking: Asking, found: Found) -> tuple[str, str, str]:
    """What is wrong with a wrong answer: the id of a mistake or pattern, a sentence, and the worst
    element, or where NaN and inf are; "" where there is none."""
    if found.reply is None or not found.name:
        seen = found.check and found.check.diagnosis or {}
        said = re.sub(r"^d(q|k|v|sink_logits)\b", r"\1.grad", found.said)
        return found.id or seen.get("id", ""), said, ""
    sample = found.sample(asking.device)
    if found.name not in sample.wrong:  # the first of two calls is right
        return "differs-between-calls", found.said, ""
    x, exact = sample.got[found.name], sample.exact
    if (last := found.asked.last) and found.name in OF_QUERIES:  # its rows count from the first
        x = x[:, :, -last:]
        exact = replace(exact, **{part: {
            name: made[:, :, -last:] for name, made in getattr(exact, part).items()
            if name in OF_QUERIES} for part in ("truth", "scale", "tiled", "terms", "otherwise")})
    finding = describe.locate(found.asked.case, exact, found.name, x,
                              exact.judge(found.name, x))
    id, words = f"pattern-{finding.id}", finding.seen if finding.worst else " ".join(finding.what)
    with contextlib.suppress(ArithmeticError, LookupError, RuntimeError, TypeError, ValueError), \
            np.errstate(all="ignore"):
        if mistake := _mistake(asking, found, sample):
            id, words = mistake[0], sentence(mistake[1].removesuffix("."))
    return id, words.removesuffix(".") + ".", finding.worst or finding.where


def _mistake(asking: Asking, found: Found, sample: Sample) -> tuple[str, str] | None:
    """The mistake that gives just these weights or gradients, as its id and in words; else what is
    special about the weights."""
    case = found.asked.case
    if found.name == "lse" and (mistake := _other_lse(found, sample)):
        return mistake
    if found.asked.last or case.NK is not None and case.is_causal:
        return _other_corner(found, sample)
    if found.name != "o":
        whole = asking.found(replace(found.asked, case=replace(
            case, grads=tuple(dict.fromkeys((*QKV, *case.grads))))))
        sample = whole.sample(asking.device) if whole.reply else sample
        id, words, _ = wrong_gradients.name([sample])
        if id:
            return id, words
    error = (sample.got[found.name] - sample.truth(found.name)).abs()
    head = int(error.flatten(2).amax((0, 2)).argmax())
    if error.shape[1] != case.HQ:  # of k or v
        head *= case.HQ // case.HKV
    matrix = attention_map.read(
        asking.ask, case, head, {"o": "o", "lse": "o", "d_q": "d_q"}.get(found.name, "d_v"),
        longest=256)  # no case is cut to a multiple of a tile
    if matrix is None:
        return None
    id, words, _ = suspects.name(matrix, lambda: attention_map.longer(asking.ask, matrix))
    return (id, words) if id else attention_map.describe(matrix)


def _other_corner(found: Found, sample: Sample) -> tuple[str, str] | None:
    """Whether o is right if the causal mask starts from the other corner."""
    q, k, v = (sample.built.tensors[name] for name in QKV)
    NQ, NK = found.asked.last or q.shape[2], k.shape[2]
    if found.asked.last:
        other, words = q[:, :, -NQ:], "top left"
    elif NQ < NK:
        other, words = torch.cat([q.new_zeros(*q.shape[:2], NK - NQ, q.shape[3]), q], 2), \
            "bottom right"
    else:
        return None
    o = reference.attention(other, k, v, is_causal=True)["o"][:, :, -NQ:]
    if torch.allclose(sample.got["o"][:, :, -NQ:], o, rtol=1e-2, atol=1e-2):
        return "other-corner", f"The causal mask starts from the {words} corner of the scores"
    return None


def _other_lse(found: Found, sample: Sample) -> tuple[str, str] | None:
    """What lse leaves out, if it is that of another call."""
    case, tensors, truth = found.asked.case, sample.built.tensors, sample.truth("lse")
    got, no_window = sample.got["lse"].to(truth), {"window_size": None, "sink_size": 0}
    for has, change, id, words in (
            (case.sink_logits, {"sink_logits": None}, "sinks", "the share of the sinks"),
            (case.sinks, {"sink_size": 0}, "sink-tokens", "the sink tokens"),
            (case.window, no_window, "window", "the window: all earlier keys count"),
            (case.is_causal, {"is_causal": False} | no_window, "causal-mask",
             "the causal mask: all keys count")):
        if has:
            other = reference.attention(**tensors | case.mask() | change)["lse"].to(truth)
            if (got - other).norm() < 0.1 * (got - truth).norm():
                return f"lse-without-{id}", f"the lse leaves out {words}"
    return None
