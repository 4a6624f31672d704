"""Finds out what makes a case wrong if a plain case is right and no step is red.

The case runs again with one thing at a time made plain.  If that makes it right, this thing is what
the submission cannot handle.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grader.course.cases import Case
from grader.course.inputs import ONE_BY_ONE
from grader.diagnosis.deduce import SURE
from grader.diagnosis.samples import Sample

LARGE = "shift+", "shift-", "deep", "steep"
LONGEST = 1024  # longer cases are not run again


@dataclass(frozen=True)
class Thing:
    """A thing that can be made plain.  plain(case) -> the case without it."""

    id: str
    right: str  # "the same case is right ..."
    plain: Callable[[Case], Case]
    hint: str


THINGS = (
    Thing("strides", "with contiguous inputs",
          lambda c: replace(c, layout="dense"),
          "use every tensor's own strides, one for each axis, and read nothing that lies between."),
    Thing("dout-strides", "with a contiguous incoming gradient",
          lambda c: replace(c, dout="dense")
          if c.dout in ("expanded", "transposed", "odd", "shared") else c,
          "the incoming gradient may have any strides, even 0: use its own."),
    Thing("large-scores", "with ordinary scores",
          lambda c: replace(c, family="randn") if c.family in LARGE else c,
          "the scores are far from 0 here. Subtract the row's maximum before exp, or lse in the "
          "backward. A maximum that starts at 0 stays there if all scores are negative. Hide keys "
          "before exp: after it, inf * 0 is NaN."),
    Thing("rising-maximum", "with a maximum that does not rise from tile to tile",
          lambda c: replace(c, family="randn") if c.family in ("rising", "creeping") else c,
          "when the maximum grows by x, both running sums must shrink by exp(-x): that of the "
          "weights and that of the values."),
    Thing("edges", "with ordinary weights; here one key per row, at the mask's edge, has them all",
          lambda c: replace(c, family="randn") if c.family == "needles" else c,
          "compare the first wrong row with the mask's rule: which key at its edge is wrongly "
          "seen or missed?"),
    Thing("family", "with normally distributed inputs", lambda c: replace(c, family="randn")
          if c.family not in (*LARGE, "rising", "creeping", "needles") else c, ""),
    Thing("float32", "in float32", lambda c: replace(c, dtype=torch.float32),
          "what is rounded to 16 bits, and when? Sums and statistics belong in float32."),
    Thing("width", "with D = 64", lambda c: c if c.course_stage.sums_rows else replace(c, D=64),
          "what depends on D, or on the number of columns in a tile?"),
    Thing("length", "when every length is a multiple of 128",
          lambda c: replace(c, N=_whole(c.N), NK=c.NK and _whole(c.NK)),
          "what happens in the last tile, which is only partly filled?"),
    Thing("window", "with a window that hides nothing",
          lambda c: replace(c, window=c.N + 1) if c.window is not None else c,
          "query i sees W keys: itself and the W - 1 before it."),
    Thing("sinks", "without sinks", lambda c: replace(c, sinks=0) if c.sinks else c,
          "keys j < S stay visible to every later query, and are counted once."),
    Thing("scale", "with the default scale", lambda c: replace(c, scale=None),
          "use the caller's scale wherever there is a scale."),
    Thing("sink-logits", "without sink logits", lambda c: replace(
        c, sink_logits=False, grads=tuple(g for g in c.grads if g != "sink_logits")),
          "the logit is added to the sum once, and so to lse, but it has no value."),
    Thing("batch", "with a single batch entry", lambda c: replace(c, B=1),
          "with B = 1 there are also fewer tiles: what depends on the batch index, or is kept from "
          "one tile to the next?"),
    Thing("groups", "when every query head has its own key/value head (HKV = HQ)",
          lambda c: replace(c, HKV=c.HQ),
          "what depends on how many query heads share keys and values?"),
)


# What together says more than each of two things.
BOTH = {("rising-maximum", "float32"):
        "weights much smaller than 1 are lost in 16 bits: is each row's maximum that of the keys "
        "that it sees, and of no others?"}
NUMBERS = Thing("numbers", "with other numbers", lambda c: c, "")
SURROUNDINGS = Thing(
    "surroundings", "with numbers instead of NaN stored around and between the inputs", lambda c: c,
    "something outside the inputs is read and multiplied by 0, but 0 * NaN is NaN: do not read it.")


def isolate(case: Case, answer: Callable[[Case], Sample | None], names: list[str]) -> list[Thing]:
    """The things without which these tensors are clearly right.  answer: as in Samples."""
    if max(case.N, case.M) > LONGEST or case.layout == "far":
        return []

    def right(other: Case) -> bool:
        sample = answer(other)
        return sample is not None and all(sample.times.get(name, 0) <= SURE for name in names)

    own = replace(case, group="probe", repeats=1, refill=False, growth=False)
    if right(own):  # further cases have numbers, not NaN, around their inputs
        return [SURROUNDINGS if case.layout != "dense" else NUMBERS]
    found = [thing for thing in THINGS if (plain := thing.plain(own)) != own and right(plain)]
    if [thing.id for thing in found] == ["strides"] and "." not in case.layout:
        return [one for one in map(strides_of, "xw" if case.course_stage.sums_rows else "qkv")
                if right(one.plain(own))] or found
    return found


def strides_of(name: str) -> Thing:
    """The strides of one tensor, of a case whose tensors all have the same layout."""
    def plain(case: Case) -> Case:
        names = "xw" if case.course_stage.sums_rows else "qkv"
        return replace(case, layout=".".join("dense" if one == name else ONE_BY_ONE.get(
            case.layout, {}).get(one, case.layout) for one in names))

    return Thing(f"strides-of-{name}", f"with a contiguous {name}", plain,
                 f"every address in {name} needs {name}'s own strides, one for each axis.")


def _whole(length: int) -> int:
    return -(-length // 128) * 128


def in_words(things: list[Thing]) -> tuple[str, str]:
    """The observation, and a hint where it is one thing alone, or BOTH; each "" where there is
    none."""
    right = ", and also ".join(thing.right for thing in things[:3])
    return f"The same case passes {right}." * bool(things), (
        things[0].hint if len(things) == 1 else
        BOTH.get(tuple(thing.id for thing in things), ""))
