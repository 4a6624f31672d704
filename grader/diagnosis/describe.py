"""Where an answer is wrong, what that looks like, and the message that says so.

locate() compares one tensor with its truth and says what it sees; describe() puts that into at most
12 lines of 80 columns.  Nothing is guessed: a hint and a step follow from what was seen.
"""

import itertools
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, log10, prod, sqrt

import torch

from grader.assignment.record import grader_of
from grader.course.cases import Case
from grader.course.correctness import Answer, Verdict, row_errors
from grader.course.stages import Stage
from grader.course.trace import Trace
from grader.sandbox.wire import POISON, dtype_name
from grader.step_checks.examples import LN2, LOG2E
from grader.text import escape, ranges

TILES = (128, 64, 32, 16)  # tile heights a submission may well have chosen

# What was seen -> what it means to look at; "" where it means nothing in particular.  A hint holds
# in every stage and for every case that its pattern is seen in.
PATTERNS = {
    "never-stored": "is every row worked on, and stored where it belongs? Which ones are not says "
                    "what counts wrongly.",
    "nan": "NaN comes of inf - inf, of 0 * inf and of 0 / 0, or it was read: the grader fills "
           "fresh memory with it, and what lies around and between the inputs.",
    "stored-otherwise": "was it allocated with the strides of an input, as empty_like does? What "
                        "torch.empty(shape, ...) gives is contiguous.",
    "rounded": "what holds a sum, a weight or the result in 16 bits?",
    "zero": "these rows are exactly 0: were the values added, and to what is stored?",
    "multiple": "the right keys in the right proportions, but not the right sum: what divides the "
                "row, or what was added to that?",
    "batch": "is the batch stride in every address?",
    "heads": "",
    "heads-in-groups": "which key/value head does query head h read? The first HQ / HKV heads read "
                       "the first one, the next ones the second, and so on.",
    "columns": "the other columns are right in every row: look at the addresses along a row, and "
               "at what masks them.",
    "tail": "what is left after the last whole tile hangs over the end: what masks its rows, and "
            "its keys?",
    "rows": "",
    "everywhere": "",
}


@dataclass(frozen=True)
class Finding:
    """One wrong tensor.  id: of PATTERNS.  places: as of known.py, where what was seen fixes it."""

    id: str
    where: str
    what: tuple[str, ...]
    places: tuple[str, ...] = ()

    @property
    def seen(self) -> str:
        """What is special about the wrong rows, or how far they are off."""
        return self.what[-1] if len(self.what) > 1 else self.what[0]


def locate(case: Case, answer: Answer, name: str, x: torch.Tensor, verdict: Verdict) -> Finding:
    """Find the wrong rows of x and name their pattern."""
    truth, sent = answer.truth[name], x
    x = x.to(truth.device).double()
    rows = row_errors(x, truth, name, answer.scale.get(name), answer.terms.get(name))
    if verdict.nan:  # these rows say more than those that are merely wrong
        bad = ~torch.isfinite(x) if x.dim() == rows.dim() else ~torch.isfinite(x).all(-1)
        id, sentence = _of_nan(sent, x)
        what = (f"{verdict.nan} of the {x.numel()} numbers of {tensor_name(name)} are NaN or inf.",
                sentence)
        places = WRITERS.get(name, ()) if id == "never-stored" else ()
        return Finding(id, _where(bad, x, truth), what, places)
    bad = rows > verdict.row_limit
    if not bad.any():  # too many small errors, no large one
        bad = rows > verdict.fro_limit
    if not bad.any():
        bad = torch.ones_like(rows, dtype=torch.bool)
    what = [f"{tensor_name(name)} differs by {_percent(verdict.fro)} (limit "
            f"{_percent(verdict.fro_limit)}), its worst row by {_percent(verdict.row)} (limit "
            f"{_percent(verdict.row_limit)}): {_times(verdict)} the limit.", _worst(rows, x, truth)]
    id, seen = (_of_rounding(sent, tensor_name(name)) or _of_layout(answer, name, x)
                or _of_factor(case, x, truth, bad, verdict) or _pattern(case, bad, x, truth))
    return Finding(id, _where(bad, x, truth), tuple(what + [seen] * bool(seen)))


# Where rows that are never stored are written: what says which they are, and what stores them.
WRITERS = {"o": ("rows", "store"), "y": ("rows",), "d_x": ("dx", "launch"), "d_w": ("dw", "launch"),
           "d_q": ("dq rows", "dq walk"), "d_k": ("dkdv rows", "store"),
           "d_v": ("dkdv rows", "store")}


def tensor_name(name: str) -> str:
    """As a person says it: "the gradient of k", "o"."""
    return f"the gradient of {name[2:]}" if name.startswith("d_") else name


JUST_ROUNDED = 0.01  # a row that is so near a multiple of the right one is no multiple of it
LINES, WIDTH = 12, 74  # of a message; the report indents it by five


def describe(finding: Finding, stage: Stage, steps: Sequence[str] = (), *,
             seen: tuple[str, ...] = (), again: str = "", right: Collection[str] = ()
             ) -> tuple[str, ...]:
    """-> verdict, where, what was seen, how to see more: at most 12 lines.

    steps: to look at, where they are known; right: those that are right when run on their own;
    seen: what follow_up.py saw in further cases; again: the command that asks this one case.
    """
    first, where = finding.what[0], f"where: {finding.where}."
    middle = list(finding.what[1:])
    body = list(seen)
    if PATTERNS[finding.id] and not seen and (finding.places or not steps):  # else these say more
        body.append("try: " + PATTERNS[finding.id])
    tail, steps = [], steps or stage.steps_of(finding.places)
    if left := [step for step in steps if step not in right]:
        tail = _wrapped(look_at(stage, *left))
    elif any("launch" in stage.steps.get(step, "") for step in steps):
        tail = _wrapped("each step that does this is right when it is run on its own; the whole "
                        "call is not")
        tail += _wrapped(look_at(stage, *steps))
    elif steps:
        tail = _wrapped("the steps that do this are right when they are run on their own: look "
                        "outside of the steps, at what launches or calls them")
    tail += [f"again: {again}"] * bool(again)  # in one piece, to be copied

    def head() -> list[str]:
        return [row for line in (first, where, *middle, *body) for row in _wrapped(line)]

    while len(head()) + len(tail) > LINES and (middle or len(body) > 1):
        (middle or body).pop()  # whole sentences, those that say least first
    return *head()[:LINES - len(tail)], *tail


def kept_in_16_bits(case: Case, trace: Trace) -> str:
    """A sentence on a statistic of attention's rows, one number for every query of every head,
    that a kernel was given in 16 bits; "" where there is none."""
    if case.course_stage.sums_rows or case.HQ == case.HKV * case.D:  # k has as many numbers then
        return ""
    given = {number for number, about in enumerate(trace.value["storages"]) if "input" in about}
    given |= {one["tensor"][0] for one in trace.value["outputs"] + trace.value["gradients"]}
    launches = [step for step in trace.steps if step[0] == "launch"]
    for name, value in (one for step in launches for one in step[3].items()):
        if not (isinstance(value, dict) and "tensor" in value):
            continue
        number, _, shape, _, dtype = value["tensor"]
        if dtype in ("float16", "bfloat16") and number not in given \
                and prod(shape) == case.B * case.HQ * case.N and case.N in shape[-2:]:
            return (f"{escape(name)[:50]} holds one number per row, in {dtype}: lse, delta and "
                    "other statistics of a row belong in float32.")
    return ""


def either(words) -> str:
    """ "6.3, 6.4 or 6.8"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def look_at(stage: Stage, *steps: str) -> str:
    """Which of its steps to read again."""
    origin = stage.origins.get(steps[0], "")  # whose hints say more
    carried = f", carried from {origin}" * (bool(origin) and len(steps) == 1)
    return (f"look at step {either(steps)}{carried}; more: python {grader_of(stage.number)} "
            f"--hint {origin or steps[0]}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False)


# ------------------------------------------------------------------- patterns
def _of_nan(sent: torch.Tensor, x: torch.Tensor) -> tuple[str, str]:
    """Untouched, or computed?  -> id, sentence."""
    bad = ~torch.isfinite(x)
    untouched = torch.zeros_like(bad)
    if sent.dtype in POISON:
        dtype, bits = POISON[sent.dtype]
        untouched = (sent.contiguous().view(dtype) == bits).to(bad.device)
    if not bool((bad & untouched).any()):
        inf = " (inf, in part)" * bool(torch.isinf(x).any())
        return "nan", f"They were computed{inf}: something was stored there."
    known = "nothing was stored there"
    if sent.dtype == torch.float32:
        known += ", or what was computed from such memory"
    if bool((bad & ~untouched).any()):
        return "nan", (f"{int(untouched.sum())} of them are what fresh memory is filled with: "
                       f"{known}. The others were computed.")
    return "never-stored", f"They are what fresh memory is filled with: {known}."


def _of_rounding(sent: torch.Tensor, name: str) -> tuple[str, str] | None:
    """All of float32, and yet no number that 16 bits cannot hold."""
    if sent.dtype != torch.float32 or sent.numel() < 16 or not bool(sent.any()):
        return None
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(sent.to(dtype).float(), sent):
            return "rounded", f"Every number of {name} is one that {dtype_name(dtype)} can hold."
    return None


def _of_layout(answer: Answer, name: str, x: torch.Tensor) -> tuple[str, str] | None:
    """All of it right, in the order of another layout."""
    for axes in itertools.permutations(range(x.dim())):
        if list(axes) != sorted(axes) and answer.judge(
                name, x.permute(axes).reshape(x.shape)).accepted:
            return ("stored-otherwise", f"All numbers of {tensor_name(name)} are right and in the "
                    "wrong places: it is stored as if it were contiguous, and returned with other "
                    "strides.")
    return None


def _of_factor(case: Case, x, truth, bad, verdict: Verdict) -> tuple[str, str] | None:
    """Wrong rows that are multiples of the right ones."""
    if truth.dim() == bad.dim() or truth.shape[-1] < 4:
        return None
    x, truth = x[bad], truth[bad]
    which = "Every row" if bool(bad.all()) else "Every wrong row"
    if not bool(x.any()):
        return "zero", f"{which} is 0."
    size = truth.square().sum(-1)
    factor = (x * truth).sum(-1) / size.clamp_min(1e-300)
    rest = (x - factor[:, None] * truth).square().sum(-1).sqrt()
    if not bool((rest <= verdict.row_limit * x.square().sum(-1).sqrt()).all()):
        return None
    low, high = float(factor.min()), float(factor.max())
    if max(abs(low - 1), abs(high - 1)) < JUST_ROUNDED:
        return None
    if high - low <= 2 * verdict.row_limit * abs(high):
        middle = float(factor.median())
        return "multiple", f"{which} is {middle:.5g}{constant(middle, case)} times the right one."
    return "multiple", f"{which} is a multiple of the right one, by {low:.4g} to {high:.4g}."


def constant(factor: float, case: Case) -> str:
    """What a factor may well be: " = log2(e)", or ""."""
    known = {"log2(e)": LOG2E, "ln 2": LN2, "sqrt(2)": sqrt(2), "2": 2.0, "1 / 2": 0.5, "-1": -1.0}
    for words, number in {"sqrt(D)": sqrt(case.D), "D": float(case.D),
                          "HQ / HKV": case.HQ / case.HKV}.items():
        known |= {words: number, f"1 / {words}" if "/" not in words else "HKV / HQ": 1 / number}
    for words, number in known.items():
        if abs(factor - number) < 1e-3 * abs(number) and number != 1.0:
            return "" if words == f"{number:g}" else f" = {words}"
    return ""


def _pattern(case: Case, bad, x, truth) -> tuple[str, str]:
    """-> id, and a sentence on the pattern of wrong rows, or ""."""
    if bad.dim() == 3:
        batches, heads = bad.any(2).any(1), bad.any(2).any(0)
        if bad.shape[0] > 1 and not batches[0] and bool(batches[1:].all()):
            return "batch", "The first batch entry is right, all others are wrong."
        if not heads.all():
            return _of_heads(case, heads)
    columns = _columns(x, truth)
    if columns is not None:
        return "columns", "Only some columns are wrong."
    flat = bad.flatten(0, -2).any(0) if bad.dim() > 1 else bad
    if flat.numel() == 1 or bad.dim() == 1 and not case.course_stage.sums_rows:  # the heads' sinks
        return "rows", ""
    first, last, length = int(flat.nonzero()[0]), int(flat.nonzero()[-1]), flat.numel()
    for tile in TILES:
        start = length // tile * tile
        if 0 < start < length and first == start:
            return "tail", f"Only what is left after tiles of {tile} is wrong."
    if case.window is not None and case.window <= first <= case.window + 1 < length:
        return "rows", f"Rows are right until the window (W={case.window}) first cuts a key off."
    if first:
        return "rows", f"Rows before {first} are right."
    if last < length - 1:
        return "rows", f"Rows after {last} are right."
    return ("everywhere", "") if bool(bad.all()) else ("rows", "")


def _of_heads(case: Case, heads: torch.Tensor) -> tuple[str, str]:
    wrong = heads.nonzero().flatten().tolist()
    if len(heads) == case.HQ and case.HQ > case.HKV:
        group = case.HQ // case.HKV
        groups = sorted({h // group for h in wrong})
        if len(wrong) == len(groups) * group:
            return "heads", f"Only heads that read key/value head {ranges(groups, 4)} are wrong."
        if not heads[0]:
            return ("heads-in-groups",
                    f"{len(wrong)} of {len(heads)} heads are wrong, not the first.")
    return "heads", f"{len(wrong)} of {len(heads)} heads are wrong."


def _where(bad: torch.Tensor, x: torch.Tensor, truth: torch.Tensor) -> str:
    """Wrong batch entries, heads, rows and columns, as ranges; "everywhere" where it is."""
    if bool(bad.all()) and truth.dim() > 1:
        text = "everywhere"
    elif bad.dim() == 3:
        names, parts = ("batch entry", "heads", "rows"), []
        for axis, label in enumerate(names):
            hit = bad.any(tuple(a for a in range(3) if a != axis)) if axis else \
                bad.flatten(1).any(1)
            if not bool(hit.all()):
                wrong = hit.nonzero().flatten().tolist()
                label = label.removesuffix("s") if len(wrong) == 1 else label
                parts.append(f"{label} {ranges(wrong, 4)} of {hit.numel()}")
        text = ", ".join(parts) or f"{int(bad.sum())} of {bad.numel()} rows, all over"
    else:
        text = f"entries {ranges(bad.nonzero().flatten().tolist(), 4)} of {bad.numel()}"
    columns = _columns(x, truth)
    if columns is not None:
        text += f", columns {ranges(columns, 4)} of {truth.shape[-1]}"
    return text


def _columns(x: torch.Tensor, truth: torch.Tensor) -> list[int] | None:
    """The wrong columns, where the others are right."""
    if truth.dim() != 4:
        return None
    error = torch.nan_to_num((x - truth).abs(), nan=torch.inf).flatten(0, 2)
    error = error.amax(0)
    columns = error > 0.02 * truth.abs().max()
    if not bool(columns.any()) or bool(columns.all()):
        return None
    if error[~columns].max() > 0.1 * error.max():  # a little less wrong: chance, no pattern
        return None
    return columns.nonzero().flatten().tolist()


def _worst(rows: torch.Tensor, x: torch.Tensor, truth: torch.Tensor) -> str:
    index = torch.unravel_index(rows.argmax(), rows.shape)
    index = tuple(int(i) for i in index)
    one = "entry" if truth.dim() == rows.dim() else "row"
    names = {3: ("batch", "head", "row"), 1: (one,)}[rows.dim()]
    place = ", ".join(f"{n} {i}" for n, i in zip(names, index, strict=True))
    got, want = x[index].flatten(), truth[index].flatten()
    column = int((got - want).abs().argmax())
    if got.numel() > 1:
        place += f", column {column}"
    return f"worst at {place}: got {got[column]:.5g}, want {want[column]:.5g}."


def _times(verdict: Verdict) -> str:
    """ "1.3 times": below 10 with a decimal, and near 1 with as many as tell it from 1."""
    if verdict.times >= 9.95:
        return f"{verdict.times:.0f} times"
    return f"{verdict.times:.{max(1, ceil(-log10(max(verdict.times - 1, 1e-6))))}f} times"


def _percent(error: float) -> str:
    if error < 0.001:
        return f"{100 * error:.1g} %"
    return f"{100 * error:.2g} %" if error < 0.995 else f"{100 * error:.0f} %"
