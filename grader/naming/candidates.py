"""What could have made a wrong answer: the mistakes of the table, with all they are tried with."""

from dataclasses import dataclass

from grader.cases import Case
from grader.naming.mistakes import TABLE
from grader.naming.model import Model
from grader.naming.row_sum import RowSum
from grader.naming.table import BACKWARD, TILE_SIZES, Mistake

AFFECTED = {
    "factor dq": {"d_q"}, "dq": {"d_q"}, "factor dk": {"d_k"}, "dk": {"d_k"},
    "factor dv": {"d_v"}, "dv": {"d_v"}, "dkdv mask": {"d_k", "d_v"}, "dkdv": {"d_k", "d_v"},
    "group": {"d_k", "d_v"}, "d sink": {"d_sink_logits"}, "factor d sink_logits": {"d_sink_logits"},
    "delta": {"d_q", "d_k", "d_sink_logits"}, "o": {"d_q", "d_k", "d_sink_logits"},
    "order": {"d_q", "d_k", "d_v"}, "dx": {"d_x"}, "dw": {"d_w"}, "dx and dw": {"d_x", "d_w"},
}

# The mistakes that may let in the zeros that fill the last tile of keys.
LET_IN = {
    "causal-ignored", "next-key-visible", "mask-reversed", "diagonal-unmasked", "diagonal-twice",
    "phase-1-past-the-diagonal", "query-positions-of-the-tile", "key-positions-of-the-tile",
    "both-positions-of-the-tile", "only-first-tile-masked", "window-symmetric",
    "window-without-causal", "ragged-tail-twice", "tail-unmasked", "sinks-not-causal",
    "hidden-scores-zero", "hidden-scores-finite", "hidden-keys-in-denominator",
    "max-of-hidden-keys", "interior-too-early", "mask-forgotten", "phase-unmasked", "phase-fill",
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A mistake with the values it is tried with, whatever the tile sizes.

    walk: "", or which of the gradients' walks it is in; padded: see Reading.
    """

    mistake: Mistake
    more: tuple = ()
    walk: str = ""
    padded: bool = False

    @property
    def id(self) -> str:
        walk = self.walk.replace("dkv", "dkdv")
        return f"{walk}-{self.mistake.id}" if walk else self.mistake.id

    @property
    def whole(self) -> str:
        return self.mistake.whole

    @property
    def rounds(self) -> bool:
        return self.mistake.rounds

    @property
    def mask_alone(self) -> bool:
        return self.mistake.kind == "mask"

    def sizes(self, case: Case) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Tile sizes (BM, BN) that may differ on this case -> all that come to the same."""
        sizes = self.mistake.sizes()
        if self.padded and self.mistake.tiles in ("", "m"):
            sizes = tuple((m, n) for m, _ in sizes for n in TILE_SIZES)
        found = {}
        rows, columns = (case.M, case.N) if case.stage == 2 else (case.N, case.n_keys)
        for m, n in sizes:
            small = (16 * n < columns or 16 * m < rows) and n * m < 64 * 64
            if small and len(sizes) > 1 and case.stage != 2:
                continue  # so small a tile on so many keys is slow, and rare
            fills = not (self.padded or self.mistake.padded) or columns % n == 0
            key = m if m < rows else 0, 0 if fills and n >= columns else n
            found.setdefault(key, []).append((m, n))
        return {same[0]: same for same in found.values()}

    @property
    def walks(self) -> tuple[str, ...]:
        """The walks of a Model or Backward that a mask's mistake is in."""
        return {"": ("fwd",), "backward": ("dq", "dkv")}.get(self.walk, (self.walk,))

    @property
    def places(self) -> tuple[str, ...]:
        """Where it may stand, in this pass: a mask's own place, in a walk of the gradients."""
        found = self.mistake.places(*self.more)
        if self.walk == "backward":  # in both; what both have in common comes first
            found = found[:1]
        return tuple({"dq": "dq ", "dkv": "dkdv "}[w] + one for w in self.walks for one in found
                     ) if self.walk else found

    @property
    def line(self) -> str:
        """The rule: that of a walk over keys says nothing of the walk of dk and dv over queries."""
        walked = set(self.mistake.places(*self.more)) <= {"walk", "borders", "sink walk"}
        if self.walk == "dkv" and walked:
            return "the walk visits every query that sees a key of the tile, once"
        return self.mistake.line

    def affects(self) -> set[str]:
        """The gradients that a mistake in the backward changes; those of all others are right."""
        if self.walk:
            return set().union(*({"dq": {"d_q"}, "dkv": {"d_k", "d_v"}}[w] for w in self.walks))
        if self.mistake.spoils is not None:
            return self.mistake.spoils(*self.more)
        return AFFECTED.get(self.mistake.slot, {"d_q", "d_k", "d_v", "d_sink_logits"})

    def apply(self, model: Model | RowSum) -> None:
        """Make the mistake in a Model or RowSum."""
        if self.mistake.kind == "mask":
            for walk in self.walks:
                self.mistake.change(getattr(model, walk), *self.more)
        else:
            self.mistake.change(model, *self.more)

    def words(self, found: dict) -> str:
        text = self.mistake.words.format(*self.more, **found)
        where = {"dq": "in dq, ", "dkv": "in dk and dv, ", "backward": "in the backward, "}
        return where.get(self.walk, "") + text


NOTHING = Candidate(Mistake("", "", "", "", "forward", "", (), lambda model: None))


def single(stage: int, part: str) -> list[Candidate]:
    """Every mistake that could be behind this part of an answer: "forward", "lse", "backward"."""
    kinds = {"forward": ("forward", "mask", "row sum"), "lse": ("lse",),
             "backward": ("backward", "mask")}[part]
    found = []
    for mistake in TABLE:
        if mistake.kind not in kinds or stage not in mistake.stages:
            continue
        walks = ("",) * mistake.in_forward
        if part == "backward" and mistake.kind == "mask":
            walks = mistake.walks if stage in BACKWARD else ()
        pads = (False, True) if mistake.id in LET_IN and (
            stage > 2 or mistake.id == "tail-unmasked") else (False,)
        found += [Candidate(mistake, more, walk, padded) for more in mistake.each
                  for walk in walks for padded in pads]
    return found
