"""Makes cases that cover the contract of a stage: every pair of classes of its inputs.

A row of contract.tsv, which tools/contract_cases.py writes, names one class per dimension; every
pair of classes that may occur together is in some row.  Lengths, windows and sinks are given in
multiples of T, a tile size, because a mistake at a tile's border shows only there.  Each file has
its own tile sizes, which are read from its launches.  Where a row asks what only this course
promises, a file that does not claim it (judge/claims.py) gets a narrower class (NARROW).
"""

import csv
import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from grader.course.cases import (
    FAMILIES,
    GAPPED,
    GRADIENTS,
    LAST,
    LSE_GRADIENT,
    MANY,
    MIXED,
    NO_MASK,
    NO_WINDOW,
    ODD_D,
    SINK_LOGITS,
    Case,
)
from grader.course.stages import Stage

FILE = Path(__file__).with_name("contract.tsv")
LAYOUT = ("dense", "transposed", "wide", "odd", "last")

# ------------------------------------------------------------------- classes
# dimension: its classes.  classes() says which stages have it.
CLASSES = {
    "length": ("T-1", "T", "T+1", "2T", "3T+1"),
    "keys": ("same", "T-1", "2T+1"),  # NK
    "rows": ("1", "T-1", "T+1"),  # M of stage 2; its N is the length
    "tile": ("largest", "smallest", "another"),  # T: one of the file's own, or 64 or 128
    "causal": ("yes", "no"),
    "window": ("1", "T-1", "T", "T+1", "2T-1", "huge", "none"),
    "sinks": ("0", "T-1", "T+1", "all"),
    "heads": ("1 1 1", "1 2 2", "2 3 3", "5 1 1"),  # B HQ HKV
    "groups": ("1 1 1", "1 4 2", "5 2 1"),  # the same, if query heads share keys
    "D": ("16", "17", "64", "128"),
    "dtype": ("float16", "float32"),
    "family": ("randn", "rising", "steep", "falling", "shift+", "abyss", "peak"),
    "numbers": ("randn", "hot", "needles"),  # stage 2's families
    # A scale of 1.0 would hide a scale that is forgotten or applied twice.  From 0.5 on, scores at
    # D = 128 are so large that a right kernel, which scales q and rounds it to 16 bits, would fail.
    "scale": ("1/sqrt(D)", "0.2"),
    "q": LAYOUT, "k": LAYOUT, "v": LAYOUT,
    "x": ("dense", "gapped", "transposed", "odd", "last"), "w": ("dense", "odd", "last"),
    "logits": ("none", "randn", "level"),
    # The layout of the output's gradient; "none": no gradients.
    "backward": ("none", "odd", "transposed", "shared", "large", "last"),
    "given": ("none", "dense"),  # the same where the backward is given
    "dy": ("none", "dense", "last", "expanded"),
}
DRAWN = 2  # random rows per run
AIMED, FAR_TILES = 20, 4  # rows per example of a red step; most tiles to move it by
SIZES = (16, 32, 64, 128, 256)  # of tiles
FEWEST = 32  # the smallest T: with fewer rows an error says little
FAR_OFF = ("abyss", "peak")  # scores so large that lse has no digits left for gradients
LONG = ("2T", "3T+1")
WIDE = ("128",)


def classes(stage: Stage) -> dict[str, tuple[str, ...]]:
    """The dimensions of a stage, each with its classes."""
    if stage.sums_rows:
        names = "rows length tile numbers dtype x w dy"
    else:
        names = "length tile q k v D dtype family "
        names += "groups" if stage.shares_keys else "heads"
        names += " keys" * (not stage.needs_triton)
        names += " causal" * stage.chooses_mask
        names += " window" * stage.windowed + " sinks" * stage.has_sinks
        names += " given" if stage.backward_is_given else " backward"
        names += " scale" * stage.takes_scale
        names += " logits" * ("sink_logits" in stage.keywords)
    found = {name: CLASSES[name] for name in names.split()}
    if stage.differentiates:
        found["backward"] = found["backward"][1:]
        found["family"] = tuple(name for name in found["family"] if name not in FAR_OFF)
    elif "family" in found:
        found["family"] = tuple(name for name in found["family"] if name != "shift+")
    if "window" in found and "causal" not in found:
        found["window"] = found["window"][:-1]  # not "none": the stage needs a window
    return found


# Which classes may occur together: dimensions, and a condition on their classes.
RULES: tuple[tuple[str, Callable[..., bool]], ...] = (
    # Past the end, "all" and "huge" are enough.
    ("length window", lambda n, w: w in ("huge", "none") or _at(w, 64) < _at(n, 64)),
    ("length sinks", lambda n, s: s in ("0", "all") or _at(s, 64) < _at(n, 64)),
    # Scores of keys that are still hidden overflow under a causal mask alone, too.
    ("window family", lambda w, family: family != "steep" or w in ("huge", "none")),
    ("causal window", lambda causal, w: causal == "yes" or w == "none"),
    ("causal keys", lambda causal, keys: causal == "no" or keys == "same"),
    ("dtype D", lambda dtype, d: dtype == "float16" or int(d) <= 64),
    ("family given", lambda family, given: family not in FAR_OFF or given == "none"),
    ("family backward", lambda family, backward: family not in FAR_OFF or backward == "none"),
    # With "falling", right kernels in float32 reach 0.93 of a limit.
    ("family dtype", lambda family, dtype: family != "falling" or dtype == "float16"),
    # The gradient of one head's sink logit is a single number, and may be near 0.
    ("groups logits", lambda h, logits: _many(h) > 1 or logits == "none"),
    # At most one of the classes in a row is expensive.
    ("tile D", lambda tile, d: tile != "another" or d not in WIDE),
    ("tile length", lambda tile, n: tile != "another" or n != "3T+1"),
    *((f"{heads} {name}", lambda h, said, dear=dear: _many(h) < 4 or said not in dear)
      for heads in ("heads", "groups")
      for name, dear in (("length", LONG), ("tile", ("another",)), ("D", WIDE))),
    *((f"{heads} length D", lambda h, n, d: _many(h) == 1 or n not in LONG or d not in WIDE)
      for heads in ("heads", "groups")),
)

# Pairs left out to save time: layouts matter to what is read where, not to these dimensions.
APART = [("q", "k", "v"), *itertools.product("qkv", (
    "window", "sinks", "family", "backward", "given", "scale", "logits", "keys"))]

# For files that do not claim a kind, narrower classes; each names the kinds that keep it as it is.
NARROW = {
    "D": {"17": (ODD_D, "32")},
    "backward": {"last": (LAST, "transposed"), "odd": (MIXED, "transposed")},
    "window": {"none": (NO_WINDOW, "all"), "huge": (MANY, "all")},
    "causal": {"no": (NO_MASK, "yes")},
    "logits": {"randn": (SINK_LOGITS, "none"), "level": (SINK_LOGITS, "none")},
    "x": {"last": (LAST, "dense"), "transposed": (MIXED, "dense"), "gapped": (GAPPED, "dense")},
    "w": {"last": (LAST, "dense")}, "dy": {"last": (LAST, "dense")},
}
# The assignment's wrapper makes o by empty_like(q) and stores it with q's strides, which is right
# only for a q without gaps.  A file that knows no other layouts gets one for q, k and v.
ONE_LAYOUT = {"last": "transposed", "wide": "transposed", "odd": "dense"}


def allowed(row: dict[str, str]) -> bool:
    """Whether these classes may occur together."""
    return all(rule(*(row[name] for name in names.split())) for names, rule in RULES
               if set(names.split()) <= row.keys())


def _many(heads: str) -> int:
    batch, queries, _ = map(int, heads.split())
    return batch * queries


def _at(text: str, tile: int, length: int = 0) -> int:
    """ "2T-1" -> 127, for a tile of 64. """
    if text in ("all", "huge"):  # for sinks, and for a window
        return length + 5 if text == "all" else 2**31 - 1
    times, tiles, more = re.fullmatch(r"(\d*)(T?)([+-]\d+)?", text).groups()
    return int(times or 1) * (tile if tiles else 1) + int(more or 0)


# --------------------------------------------------------------------- cases
@functools.cache
def rows(number: int) -> tuple[dict[str, str], ...]:
    """The rows of a stage: dimension -> class."""
    with open(FILE, encoding="utf-8", newline="") as file:
        return tuple({name: said for name, said in row.items() if said and name != "stage"}
                     for row in csv.DictReader(file, delimiter="\t") if row["stage"] == str(number))


def cases(stage: Stage, tiles: Iterable[int], claimed: frozenset[str] | None, seed: int
          ) -> list[Case]:
    """The cases of a stage's rows, and of those drawn from the seed; the cheapest come first.

    tiles: the sizes that the file launches with.  claimed: the kinds that it claims; None: all.
    """
    made = [case_of(stage, row, tiles, claimed)
            for row in (*rows(stage.number), *drawn(stage, seed))]
    return sorted({case.name: case for case in made}.values(), key=_cost)


def drawn(stage: Stage, seed: int | str, number: int = DRAWN) -> list[dict[str, str]]:
    """Random rows, drawn from the seed."""
    dice, found = random.Random(seed), []
    while len(found) < number:
        row = {name: dice.choice(of) for name, of in classes(stage).items()}
        found += [row] * allowed(row)
    return found


def aimed(stage: Stage, example: dict[str, int], tiles: Iterable[int], seed: int, compiled: bool
          ) -> list[Case]:
    """Cases that look like the small example in which a step is wrong.

    They have its length, window and sinks, and a D below the tile's if it has one; every other one
    has them moved, as far from the borders of the file's tiles as they are from those of the
    example's.  compiled: use few dtypes and D, because each is compiled anew.
    """
    own = example.get("BLOCK_N", example.get("BLOCK_M", 16))
    asks = {"length": "N", "window": "window_size", "sinks": "sink_size"}
    given = {name: example[of] for name, of in asks.items() if of in example}
    moved = {name: f"{min(round(at / own), FAR_TILES)}T{at - round(at / own) * own:+d}"
             for name, at in given.items()}
    made = []
    for number, row in enumerate(drawn(stage, f"{seed} {sorted(example.items())}", AIMED)):
        seen = moved if number % 2 and given.get("length", own) > own // 2 else given
        if row.get("causal", "yes") == "no":
            seen = {name: said for name, said in seen.items() if name != "window"}
        row |= {name: str(said) for name, said in seen.items() if name in row}
        if "D" in row and (compiled or number // 2 % 2):  # wide tiles often have another shape
            row |= {"D": ("64", "128")[number // 2 % 2], "dtype": "float16"}
        elif "k" in row and example.get("D", 0) < example.get("BLOCK_D", 0):
            row |= {"D": "17", "k": "wide", "v": "wide"}  # NaN beside every row
        made.append(case_of(stage, row, tiles))
    return sorted({case.name: case for case in made}.values(), key=_cost)


def named(stage: Stage, name: str) -> Case | None:
    """The case of the contract with this name, for whatever tiles it was made."""
    group, _, text = name.partition("/")
    numbers, fields, words = {}, {}, text.split("-")
    for before, word in zip(["", *words], words, strict=False):
        if match := re.fullmatch(r"(HQ|HKV|NQ|NK|[BHDMNWS])(\d{1,10})", word):
            numbers[match[1]] = int(match[2])
        elif before == "dout":
            fields["dout"] = word
        elif word in FAMILIES:
            fields["family"] = word
        elif word in ("float16", "float32"):
            fields["dtype"] = getattr(torch, word)
        elif "." in word:
            fields["layout"] = word
    if group != "robust" or not numbers.keys() & {"N", "NQ"}:
        return None
    heads = numbers.get("H", 1)
    grads = () if not (stage.differentiates or "gradients" in words) else (
        ("x", "w") if stage.sums_rows else ("q", "k", "v"))
    if "sink_logits" in words:
        fields |= {"sink_logits": True, "level": "level" in words}
        grads += ("sink_logits",) * ("level" not in words or "float16" in words)
    if not stage.sums_rows:
        fields["is_causal"] = "causal" in words if stage.causal_in_names else (
            stage.is_causal and "full" not in words)
    made = Case(
        stage.number, group, numbers.get("N", numbers.get("NQ")), numbers.get("D", 16),
        numbers.get("B", 1), numbers.get("HQ", heads), numbers.get("HKV", heads),
        numbers.get("NK"), numbers.get("M", 0), window=numbers.get("W"), sinks=numbers.get("S"),
        scale=float(CLASSES["scale"][1]) if "scale" in words else None, grads=grads,
        by_contract=True, **fields)
    return made if made.name == name else None


def case_of(stage: Stage, row: dict[str, str], tiles: Iterable[int],
            claimed: frozenset[str] | None = None) -> Case:
    """A row as a case, with numbers in place of multiples of T."""
    if claimed is not None:
        row = narrower(row, claimed)
    own = sorted(set(tiles)) or [64]
    others = [size for size in (64, 128) if size not in own] or [own[-1]]
    tile = {"largest": own[-1], "smallest": own[0]}.get(row["tile"], others[-1])
    tile = max(tile, FEWEST)
    N, grads = _at(row["length"], tile), ()
    fields = {"N": N, "dtype": getattr(torch, row["dtype"])}
    if stage.sums_rows:
        grads, dout = ("x", "w"), row["dy"]
        fields |= {"M": _at(row["rows"], tile), "family": row["numbers"],
                   "layout": f"{row['x']}.{row['w']}"}
    else:
        grads, dout = ("q", "k", "v"), row.get("backward") or row["given"]
        B, HQ, HKV = map(int, (row.get("heads") or row["groups"]).split())
        causal = row.get("causal", "yes" if stage.is_causal else "no") == "yes"
        fields |= {"B": B, "HQ": HQ, "HKV": HKV, "D": int(row["D"]), "family": row["family"],
                   "layout": ".".join(row[name] for name in "qkv"), "is_causal": causal}
        if row.get("keys", "same") != "same":
            fields["NK"] = _at(row["keys"], tile)
        fields |= {name: None if row[name] == "none" else _at(row[name], tile, N)
                   for name in ("window", "sinks") if name in row}
        if row.get("scale", "1/sqrt(D)") != "1/sqrt(D)":
            fields["scale"] = float(row["scale"])
        if row.get("logits", "none") != "none":
            level = row["logits"] == "level"  # float32's gradient has few digits left there
            fields |= {"sink_logits": True, "level": level}
            grads += ("sink_logits",) * (not level or row["dtype"] == "float16")
    if dout != "none":
        fields |= {"grads": grads, "dout": dout}
    return Case(stage.number, "robust", by_contract=True, **fields)


def narrower(row: dict[str, str], claimed: frozenset[str]) -> dict[str, str]:
    """The row for a file that claims no more kinds than these."""
    row = dict(row)
    stage_1 = "keys" in row
    for name, classes in NARROW.items():
        if name in row and not (stage_1 and name == "causal"):
            kind, narrow = classes.get(row[name], ("", ""))
            row[name] = narrow if kind and kind not in claimed else row[name]
    if "q" in row and not {LAST, MIXED} <= claimed:
        row |= dict.fromkeys("qkv", ONE_LAYOUT.get(row["q"], row["q"]))
    if GRADIENTS not in claimed:
        row |= {name: "none" for name in ("given", "dy") if name in row}
    if stage_1 and not {GRADIENTS, LSE_GRADIENT} <= claimed:
        row["backward"] = "none"
    if stage_1 and row["family"] in FAR_OFF:  # in 16 bits the scores that the assignment's line
        row |= {"dtype": "float32", "D": "64" if row["D"] in WIDE else row["D"]}  # rounds overflow
    return row


def _cost(case: Case) -> float:
    """A measure of its time: pairs of tiles, times heads."""
    steps = math.ceil(case.N / 64) * math.ceil(case.n_keys / 64) * max(1, case.D / 64)
    return case.B * case.HQ * (1 + steps) * (3 if case.course_stage.differentiates else 1)


# --------------------------------------------------------------------- tiles
TILE = re.compile(r"(BLOCK|TILE|ROWS?|COLS?|B|T)(_?(SIZE|ROWS|COLS|[MNQKRCT]))?")


def tiles_of(arguments: Iterable[tuple[str, object]]) -> set[int]:
    """The tile sizes among the arguments of a trace's launches, by names such as BLOCK_M."""
    return {size for name, size in arguments
            if type(size) is int and size in SIZES and TILE.fullmatch(name)}
