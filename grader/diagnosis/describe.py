"""Says where an answer is wrong and what that looks like, in a message.

locate() compares one tensor with its truth and finds a pattern; describe() says it of a check.
Nothing is guessed: a hint and a step follow from what was seen.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import isqrt, sqrt

import torch

from grader.assignment.hints import look_at
from grader.course.cases import Case
from grader.course.correctness import Answer, Verdict, Wrong, how_far, row_errors
from grader.course.inputs import Built
from grader.course.stages import Stage
from grader.diagnosis.deduce import deduce
from grader.report.results import Check
from grader.sandbox.wire import POISON, dtype_name
from grader.step_checks.examples import LN2, LOG2E
from grader.text import ranges, tensor_name

TILES = (128, 64, 32, 16)  # likely tile heights of a submission

# What was seen -> what to look at, or "".  A hint must hold in every stage, and for every case in
# which its pattern is seen.
PATTERNS = {
    "never-stored": "is every element computed, and stored where it belongs? The missing ones "
                    "tell you which index or size is wrong.",
    "nan": "NaN comes from inf - inf, 0 * inf or 0 / 0, or it was read: the grader fills new "
           "tensors, and the memory around the inputs, with NaN.",
    "stored-otherwise": "was it allocated with an input's strides, as empty_like makes it? "
                        "torch.empty(shape, ...) is contiguous.",
    "another-tensor": "compare the order of what is returned with the order of the inputs, and the "
                      "arguments of each call with the names that take them.",
    "an-input": "",
    "rounded": "which product, sum, weight or result is kept in 16 bits?",
    "zero": "did you add the values up, and store the sum?",
    "multiple": "the keys and their proportions are right: what is the row divided by, and "
                "does that sum hold the weights of just the keys that it sees?",
    "multiple-of-all": "what is the result multiplied by, or which multiplication is missing?",
    "batch": "does every address include the batch stride?",
    "heads": "",
    "heads-in-groups": "which key/value head does query head h read? The first HQ / HKV read "
                       "key/value head 0, the next ones head 1, and so on.",
    "columns": "the other columns are right in every row: check the addresses along a row, and "
               "their mask.",
    "tail": "what masks the rows of the last tile, and its keys?",
    "rows": "",
    "everywhere": "",
}


@dataclass(frozen=True)
class Finding:
    """One wrong tensor.  id: of PATTERNS.  places: as in mistakes.py, if the pattern tells them.
    worst: its worst element."""

    id: str
    where: str
    what: tuple[str, ...]
    places: tuple[str, ...] = ()
    worst: str = ""

    @property
    def seen(self) -> str:
        """What is special about the wrong rows, or how far off they are."""
        return self.what[-1] if len(self.what) > 1 else self.what[0]


def said(check: Check, wrong: Wrong, case: Case, stage: Stage, marked: bool = True) -> Check:
    """The check of a wrong answer, with what a look at that one answer tells.  marked: as in
    deduce()."""
    finding = locate(case, wrong.exact, wrong.name, wrong.x, wrong.verdict)
    if not finding.places:
        finding = replace(finding, places=deduce(stage, wrong.times, marked)[1])
    return describe(check, finding, stage, marked=marked)


def locate(case: Case, answer: Answer, name: str, x: torch.Tensor, verdict: Verdict) -> Finding:
    """Find the wrong rows of x and name their pattern."""
    truth, sent = answer.truth[name], x
    x = x.to(truth.device).double()
    rows = row_errors(x, truth, name, answer.scale.get(name), answer.terms.get(name))
    if verdict.nan:  # rows with NaN say more than wrong ones
        bad = ~torch.isfinite(x) if x.dim() == rows.dim() else ~torch.isfinite(x).all(-1)
        id, sentence = _of_nan(sent, x)
        count = (f"{verdict.nan} of the {x.numel()}" if verdict.nan < x.numel() else
                 f"All {verdict.nan}" if verdict.nan > 1 else "The only")
        others = "; other values are wrong, too" * bool(
            (torch.isfinite(rows) & (rows > verdict.row_limit)).any())
        what = (f"{count} value{'s' * (x.numel() > 1)} of {tensor_name(name)} "
                f"{'are' if verdict.nan > 1 else 'is'} NaN or inf{others}.", sentence)
        places = WRITERS.get(name, ()) if id == "never-stored" else ()
        heads = bad.flatten(2).any(2).all(0) if bad.dim() == 3 else bad[:0]
        entries = bad.flatten(1).all(1) if bad.dim() == 3 else bad[:0]
        if places and len(heads) > 1 and bool(heads[1:].all()) and not heads[0]:
            what += ("Only head 0 is written. Is there a program for every other head, and does it "
                     "store that head's rows?",)
        elif places and len(entries) > 1 and bool(entries[1:].all()) and not bad[0].any():
            what += ("Only batch entry 0 is written. Does the grid have programs for the others, "
                     "and do they store their own rows?",)
        elif places and case.course_stage.needs_triton:
            missing = bad.flatten(0, -2).any(0) if bad.dim() > 1 else bad
            lost = ~torch.isfinite(x).any(-1) if x.dim() > rows.dim() else bad
            whole = lost.flatten(0, -2).any(0) if lost.dim() > 1 else lost
            what += tuple(filter(None, [_not_written(
                missing.nonzero().flatten().tolist(), len(missing),
                (missing & ~whole).nonzero().flatten().tolist())]))
        return Finding(id, _where(bad, truth, _columns(answer, name, x)), what, places)
    bad = rows > verdict.row_limit
    if not bad.any():  # many small errors, and no large one
        bad = rows > verdict.fro_limit
    if not bad.any():
        bad = torch.ones_like(rows, dtype=torch.bool)
    columns = _columns(answer, name, x)
    id, seen = (_of_rounding(sent, tensor_name(name)) or _of_layout(answer, name, x)
                or _of_another(answer, name, x) or _of_factor(case, x, truth, bad, verdict)
                or _of_small_errors(rows, verdict) or _pattern(case, bad, columns))
    far = how_far(name, verdict)
    if x.dim() == rows.dim():  # each number counts as a row
        far = far.replace("worst row", "worst value")
    what = (far, *[seen] * bool(seen))
    if not bool(x.any()):
        what = (f"{tensor_name(name)} is all zeros.",)
    return Finding(id, _where(bad, truth, columns), what, worst=_worst(case, name, rows, x, truth))


# The places to look at if rows are never stored: what chooses them, and what stores them.
WRITERS = {"o": ("rows", "store"), "y": ("rows",), "d_x": ("dx", "launch"), "d_w": ("dw", "launch"),
           "d_q": ("dq rows", "dq loop"), "d_k": ("dkdv rows", "store"),
           "d_v": ("dkdv rows", "store")}


ROUNDED_LSE = ("Every value of lse fits in 16 bits, so it was rounded to them, and the backward "
               "uses it.")
SMALL_ERROR = "An error this small usually comes from rounding to 16 bits."
JUST_ROUNDED = 0.01  # a row nearer to the right one than this is not called a multiple of it
ROUNDING = 2.0**-8  # the spacing of bfloat16, relative to its numbers


def describe(check: Check, finding: Finding, stage: Stage, steps: Sequence[str] = (), *,
             seen: tuple[str, ...] = (), advice: str = "", right: Collection[str] = (),
             marked: bool = True, changed: str = "") -> Check:
    """The check of a wrong answer: where it is wrong, what was seen, and what to try.

    steps: to look at, where they are known; right: those that are right when run on their own;
    seen, advice: of follow_up.py, from further cases; marked: as in deduce(); changed: "line 12",
    where a given line that steps are run with was changed.
    """
    if not seen and (finding.places or not steps):  # otherwise those say more
        advice = PATTERNS[finding.id]
    steps, said = steps or stage.steps_of(finding.places), ""
    if changed:
        said = f"Look first at {changed}, a given line that you changed."
    elif left := [step for step in steps if step not in right]:
        said = look_at(stage, *left, marked=marked)
    elif any("launch" in stage.steps.get(step, "") for step in steps):
        said = ("Each of these steps is right on its own, but the whole call is not: "
                + look_at(stage, *steps))
    elif steps:
        said = ("The steps that compute this pass on their own, so look at the code around them: "
                "what launches or calls them, and what happens to their results.")
    numbers, *pattern = finding.what
    where = "" if numbers.startswith("All ") else finding.where
    place = [where, finding.worst]
    if seen:  # then that is the first thing to read
        place.insert(1, numbers[0].lower() + numbers[1:].removesuffix("."))
    return check.fail("wrong", *(seen or (numbers,)), *pattern, advice=advice, look_at=said,
                      where=finding.where, place="; ".join(filter(None, place)))


# ------------------------------------------------------------------- patterns
def _of_nan(sent: torch.Tensor, x: torch.Tensor) -> tuple[str, str]:
    """Whether NaN was never overwritten, or was computed.  -> id, sentence."""
    bad = ~torch.isfinite(x)
    untouched = torch.zeros_like(bad)
    if sent.dtype in POISON:
        dtype, bits = POISON[sent.dtype]
        untouched = (sent.contiguous().view(dtype) == bits).to(bad.device)
    if not bool((bad & untouched).any()):
        inf = " (some are inf)" * bool(torch.isinf(x).any())
        return "nan", (f"Your code stored these values itself{inf}. It may have computed them from "
                       "memory outside the inputs, or from memory that was never written.")
    known = ", or computed them from memory that it never wrote" * (sent.dtype == torch.float32)
    if bool((bad & ~untouched).any()):
        return "nan", (f"Your code never wrote {int(untouched.sum())} of them{known}. It computed "
                       "the others.")
    return "never-stored", (f"Your code never wrote "
                            f"{'these elements' if bad.sum() > 1 else 'this element'}{known}.")


def _not_written(rows: list[int], length: int, partly: Sequence[int] = ()) -> str:
    """What is special about the rows that were never written, or "".  partly: of which a part
    was."""
    if partly:
        if rows[-1] != length - 1 or partly[-1] == rows[-1] or list(partly) != rows[:len(partly)]:
            return ""
        later = ranges([row for row in rows if row not in partly])
        return (f"Rows {ranges(partly)} are written only in part, rows {later} not at all: the "
                "grid has too few programs, or some of them write the same elements.")
    if rows == [length - 1]:
        return "It is the last row: a program is missing, or the store's mask ends a row early."
    for tile in TILES:
        whole = length // tile * tile
        if 0 < whole < length and rows == list(range(whole, length)):
            return (f"They are the last {length - whole} rows: a program is missing, or the mask "
                    "of the store ends too early.")
        if length > tile and rows == list(range(tile)):
            return f"They are the first {tile} rows: no program begins at row 0."
        if length > tile and rows == list(range(tile, length)):
            return (f"Only the first {tile} rows are written: the grid has too few programs, or "
                    "every program writes these same rows.")
        programs = -(-length // tile)
        if programs > 1 and rows == list(range(tile + programs - 1, length)):
            return (f"Rows are written as if tiles of {tile} began one row apart: is the program's "
                    "number multiplied by the size of a tile?")
    return ""


def _of_rounding(sent: torch.Tensor, name: str) -> tuple[str, str] | None:
    """The finding if a float32 tensor holds only numbers that fit into 16 bits."""
    if sent.dtype != torch.float32 or sent.numel() < 16 or not bool(sent.any()):
        return None
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(sent.to(dtype).float(), sent):
            return "rounded", (f"Every value of {name} fits in {dtype_name(dtype)}: it was rounded "
                               "to 16 bits.")
    return None


def is_rounded(x: torch.Tensor | None, truth: torch.Tensor | None) -> bool:
    """Whether all numbers of a tensor fit into 16 bits, though the right ones do not."""
    if x is None or truth is None or x.numel() < 2:
        return False
    return any(bool((x.to(dtype).double() == x).all()) and
               float((truth.to(dtype).double() == truth.float()).double().mean()) < 0.5
               for dtype in (torch.float16, torch.bfloat16))


def of_an_input(built: Built, name: str, x: torch.Tensor) -> Finding | None:
    """The finding if a tensor is a copy of one that was passed."""
    x = x.cpu().double()
    for given, value in built.tensors.items():
        if value.shape == x.shape and torch.equal(value.cpu().double(), x):
            return Finding("an-input", "everywhere", (
                f"{tensor_name(name)} is a copy of the input {given}.",))
    return None


def _of_small_errors(rows: torch.Tensor, verdict: Verdict) -> tuple[str, str] | None:
    """The finding if all rows have errors as small as 16 bits make; other mistakes spare some rows,
    or spoil some far more."""
    even = float((rows > verdict.fro / 4).double().mean()) > 0.7  # by chance, 0.8
    if even and verdict.row < 8 * verdict.fro < 8 * max(ROUNDING, 2 * verdict.fro_limit):
        return "rounded", SMALL_ERROR
    return None


def _of_layout(answer: Answer, name: str, x: torch.Tensor) -> tuple[str, str] | None:
    """The finding if all numbers are right, but in the order of another layout."""
    for axes in itertools.permutations(range(x.dim())):
        if list(axes) != sorted(axes) and answer.judge(
                name, x.permute(axes).reshape(x.shape)).accepted:
            return ("stored-otherwise", f"All values of {tensor_name(name)} are right but in the "
                    "wrong places: they are stored as in a contiguous tensor, and what is "
                    "returned has other strides.")
    return None


def _of_another(answer: Answer, name: str, x: torch.Tensor) -> tuple[str, str] | None:
    """The finding if these are the right values of another tensor."""
    for other, truth in answer.truth.items():
        if other != name and truth.shape == x.shape and bool(truth.any()) \
                and answer.judge(other, x).accepted:
            return ("another-tensor", f"These are the right values of {tensor_name(other)}: it "
                    f"is returned, or stored, in the place of {tensor_name(name)}.")
    return None


def _of_factor(case: Case, x, truth, bad, verdict: Verdict) -> tuple[str, str] | None:
    """The finding if wrong rows are multiples of right ones; single numbers count as one row."""
    x, truth, row = x[bad], truth[bad], "row"
    if truth.dim() == 1:
        x, truth, row = x[None], truth[None], "value"
    if truth.shape[-1] < 4:
        return None
    which = f"Every {row}" if bool(bad.all()) else f"Every wrong {row}"
    if not bool(x.any()):
        return "zero", f"{which} is 0."
    size = truth.square().sum(-1)
    factor = (x * truth).sum(-1) / size.clamp_min(1e-300)
    rest = (x - factor[:, None] * truth).square().sum(-1).sqrt()
    if not bool((rest <= verdict.row_limit * x.square().sum(-1).sqrt()).all()):
        return None
    if row == "value" and float(rest) > 0.25 * float((x - truth - (x - truth).mean()).norm()):
        return None  # with nearly equal numbers, an addition looks like a factor
    low, high = float(factor.min()), float(factor.max())
    if max(abs(low - 1), abs(high - 1)) < JUST_ROUNDED:
        return None
    if high - low <= 2 * verdict.row_limit * abs(high):
        middle = float(factor.median())
        return "multiple" + "-of-all" * bool(bad.all()), (
            f"{which} is {middle:.5g}{constant(middle, case)} times the right one.")
    return "multiple", f"{which} is the right one times a factor between {low:.4g} and {high:.4g}."


def constant(factor: float, case: Case) -> str:
    """What a factor may be: " (log2(e))", or "" """
    padded = 1 << (case.D - 1).bit_length()  # the width of a tile
    known = {"log2(e)": LOG2E, "ln 2": LN2, "sqrt(2)": sqrt(2), "2": 2.0, "-1": -1.0}
    for words, number in {"sqrt(D)": sqrt(case.D), "D": float(case.D),
                          "HQ / HKV": case.HQ / case.HKV,
                          "sqrt(D) / isqrt(D)": sqrt(case.D) / isqrt(case.D),
                          f"sqrt(D / {padded})": sqrt(case.D / padded)}.items():
        inverse = " / ".join(reversed(words.split(" / "))) if "/" in words else f"1 / {words}"
        known |= {words: number, inverse: 1 / number}
    for words, number in known.items():
        if abs(factor - number) < 1e-3 * abs(number) and number != 1.0:
            return "" if words == f"{number:g}" else f" ({words})"
    twice = round(2 * factor**2) if 0 < factor < 2 else 0  # larger ones are near some root
    return f" (sqrt({twice / 2:g}))" if abs(sqrt(twice / 2) - factor) < 2e-4 * factor else ""


def _pattern(case: Case, bad, columns: list[int]) -> tuple[str, str]:
    """-> id; a sentence on the pattern of wrong rows, or "".  columns: of _columns()."""
    if bad.dim() == 3:
        batches, heads = bad.any(2).any(1), bad.any(2).any(0)
        whole = 2 * int(bad.sum()) > bad[batches][:, heads].numel()  # otherwise single rows
        if whole and bad.shape[0] > 1 and not batches[0] and bool(batches[1:].all()):
            return "batch", "Batch entry 0 is right; all others are wrong."
        if whole and not heads.all():
            return _of_heads(case, heads)
    if columns:
        return "columns", "Only some columns are wrong."
    flat = bad.flatten(0, -2).any(0) if bad.dim() > 1 else bad
    if flat.numel() == 1 or bad.dim() == 1 and not case.course_stage.sums_rows:  # sink logits
        return "rows", ""
    first, length = int(flat.nonzero()[0]), flat.numel()
    for tile in TILES:
        start = length // tile * tile
        if 0 < start < length and first == start:
            return "tail", (f"Only the rows from {start} on are wrong. With {tile} rows per tile "
                            "they are the last tile, which is only partly filled.")
    if case.window is not None and case.window <= first <= case.window + 1 < length:
        return "rows", f"Rows are right until the window (W={case.window}) first hides a key."
    wrong = flat.nonzero().flatten()
    for tile in TILES if len(wrong) > 1 else ():
        for place, which in ((0, "first"), (tile - 1, "last")):
            if bool((wrong % tile == place).all()):
                return "rows", f"All wrong rows are the {which} of a tile of {tile}."
    if first or int(wrong[-1]) < length - 1:
        return "rows", ""
    return ("everywhere", "") if bool(bad.all()) else ("rows", "")


def _of_heads(case: Case, heads: torch.Tensor) -> tuple[str, str]:
    wrong = heads.nonzero().flatten().tolist()
    if len(heads) == case.HQ and case.HQ > case.HKV:
        group = case.HQ // case.HKV
        groups = sorted({h // group for h in wrong})
        if len(wrong) == len(groups) * group:
            return "heads", f"Only heads that read key/value head {ranges(groups, 4)} are wrong."
        if not heads[0]:
            return "heads-in-groups", (
                "The wrong heads are not those that share one key/value head.")
    return "heads", ""


def _where(bad: torch.Tensor, truth: torch.Tensor, columns: Sequence[int] = ()) -> str:
    """The wrong batch entries, heads, rows and columns, as ranges, or "everywhere"."""
    if bool(bad.all()):
        text = "everywhere"
    elif bad.dim() == 3:
        names, parts = ("batch entry/batch entries", "head/heads", "row/rows"), []
        for axis, name in enumerate(names):
            hit = bad.any(tuple(a for a in range(3) if a != axis)) if axis else \
                bad.flatten(1).any(1)
            if not bool(hit.all()):
                wrong = hit.nonzero().flatten().tolist()
                parts.append(_some(name, wrong, hit.numel()))
        wrong, most = int(bad.sum()), 0.9 * bad.numel()
        text = ", ".join(parts) or (
            f"almost everywhere ({wrong} of {bad.numel()} rows)" if wrong > most else
            f"{wrong} of {bad.numel()} rows, scattered")
    else:
        text = _some("row/rows" if truth.dim() == 2 else "element/elements",
                     bad.nonzero().flatten().tolist(), bad.numel())
    if columns:
        wrong = _some("column/columns", columns, truth.shape[-1])
        text = wrong if text == "everywhere" else f"{text}, {wrong}"
    return text


def _some(names: str, wrong: list[int], length: int) -> str:
    """ "heads 2-3 (of 0-3)": no number of them, which could be taken for the last one's."""
    return f"{names.split('/')[len(wrong) > 1]} {ranges(wrong, 4)} (of 0-{length - 1})"


def _columns(answer: Answer, name: str, x: torch.Tensor) -> list[int]:
    """The wrong columns, if with the right values in them the whole would be right."""
    truth = answer.truth[name]
    if truth.dim() not in (2, 4):
        return []
    error = torch.nan_to_num((x - truth).abs(), nan=torch.inf).flatten(0, -2).amax(0)
    columns = error > 0.02 * truth.abs().max()
    if bool(columns.all()) or not answer.judge(name, torch.where(columns, truth, x)).accepted:
        return []
    return columns.nonzero().flatten().tolist()


def _worst(case: Case, name: str, rows: torch.Tensor, x: torch.Tensor, truth: torch.Tensor) -> str:
    """ "o[0, 1, 99, 3] (in the last row) is 0.5 and should be 0.25"."""
    index = tuple(int(i) for i in torch.unravel_index(rows.argmax(), rows.shape))
    got, want = x[index].flatten(), truth[index].flatten()
    column, special = int((got - want).abs().argmax()), ""
    if truth.dim() == 4 and truth.shape[2] > 1:
        special = {truth.shape[2] - 1: "the last row", case.window: "the first row that the window "
                   "hides a key from"}.get(index[2], "")
    place = ", ".join(map(str, (*index, *[column] * (truth.dim() > rows.dim()))))
    return (f"{tensor_name(name)}[{place}]" + f" (in {special})" * bool(special)
            + f" is {got[column]:.5g} and should be {want[column]:.5g}")
