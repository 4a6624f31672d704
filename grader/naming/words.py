"""Where an answer is wrong, what that looks like, and which step to read again.

locate() compares one tensor with its truth and names the pattern it sees; describe() turns that,
and the name of the mistake where search.py found one, into at most 12 lines of 80 columns.
"""

import textwrap
from dataclasses import dataclass

import torch

from grader.assignment import grader_of
from grader.cases import Case
from grader.correctness import Answer, Verdict, row_errors
from grader.stages import Stage
from grader.text import ranges

TILES = (128, 64, 32, 16)  # tile heights a submission may well have chosen

TRY = {
    "nan": "a row with no visible key yet gives -inf - (-inf); a row nobody stores keeps the "
           "poison; a load without a mask reads past the end.",
    "overflow": "exp of a logit of +-128 is 0 or inf: subtract the running maximum first, and "
                "start it at -inf.",
    "rescale": "when the maximum grows, what is summed so far must shrink by exp(m_old - m_new): "
               "the sum and the accumulator alike.",
    "tail": "the last tile hangs over the end: mask its rows at the load and its keys in the "
            "scores.",
    "stride": "use the strides of every axis as they were passed, and never read between them.",
    "width": "D is below 16 or no power of two here, so a tile is wider than its head: mask the "
             "columns that do not exist, at every load and store.",
    "batch": "the batch entries after the first go wrong: is the batch stride in every address?",
    "head": "only some heads are wrong: which key/value head does query head h read? "
            "h // (HQ // HKV).",
    "mask": "compare the mask with the rule in words, at the first wrong row.",
    "window": "query i sees keys i - W + 1 ... i: the window counts the query itself.",
    "sinks": "keys j < S stay visible, still causal; a key in window and sinks counts once.",
    "numbers": "compare the formula with the code: scale, exp base, normalisation, what is "
               "rounded when.",
    "lse": "lse = m + log(l), a natural logarithm, in float32.",
    "d_q": "dQ = scale * dS K, dS = P * (dP - delta), summed over every key tile.",
    "d_k": "dK = scale * dS^T Q, summed over every query tile and every head of the group.",
    "d_v": "dV = P^T dO, summed over every query tile and every head of the group.",
    "d_sink_logits": "d sink_logits = -sum(exp(sink - lse) * delta), one number a query head.",
}


@dataclass(frozen=True)
class Finding:
    """One wrong tensor.  symptom is a key of TRY."""

    symptom: str
    where: str
    what: tuple[str, ...]


def locate(case: Case, answer: Answer, name: str, x: torch.Tensor, verdict: Verdict) -> Finding:
    """Find the wrong rows of x and name their pattern."""
    truth = answer.truth[name]
    x = x.to(truth.device).double()
    rows = row_errors(x, truth, name, answer.scale.get(name), answer.terms.get(name))
    if verdict.nan:  # these rows say more than those that are merely wrong
        bad = ~torch.isfinite(x) if x.dim() == rows.dim() else ~torch.isfinite(x).all(-1)
        what = (f"{verdict.nan} of the {x.numel()} numbers of {tensor_name(name)} are NaN or inf.",
                "Fresh memory is filled with NaN before a call, so a row nobody writes shows.")
        return Finding(_nan_symptom(case, bool(bad.all())), _where(bad, x, truth), what)
    bad = rows > verdict.row_limit
    if not bad.any():  # too many small errors, no large one
        bad = rows > verdict.fro_limit
    if not bad.any():
        bad = torch.ones_like(rows, dtype=torch.bool)
    where = _where(bad, x, truth)
    what = [f"{tensor_name(name)} differs by {_percent(verdict.fro)} (limit "
            f"{_percent(verdict.fro_limit)}), its worst row by {_percent(verdict.row)} (limit "
            f"{_percent(verdict.row_limit)}): {_times(verdict)} what a right kernel may make.",
            _worst(rows, x, truth)]
    symptom, seen = _pattern(case, name, bad)
    return Finding(symptom, where, tuple(what + [seen] * bool(seen)))


def tensor_name(name: str) -> str:
    """As a person says it: "the gradient of k", "o"."""
    return f"the gradient of {name[2:]}" if name.startswith("d_") else name


LINES, WIDTH = 12, 74  # of a message; the report indents it by five


def describe(finding: Finding, stage: Stage, *, name=None, seen: str = "",
             again: str = "") -> tuple[str, ...]:
    """-> verdict, where, the mistake, what to look at, how to see it alone: at most 12 lines.

    name: search.Name or None; seen: what the effective attention matrix shows; again: the command
    that asks this one case.
    """
    symptom = name.symptom if name else finding.symptom
    first, last = finding.what[0], [f"where: {finding.where}."]
    middle = list(finding.what[1:])
    body = []
    if name is not None:
        also = name.also
        words = f"{name.words}; and {also.words}" if also else name.words
        if name.either is not None:
            words += f"; or else {name.either.words} (both give these numbers)"
        body.append(f"the mistake: {words}.")
        body.append(f"it should be: {name.line}" + (f"; {also.line}." if also else "."))
        if name.only:
            body.append(f"It shows in cases like this one ({name.only}), not everywhere.")
        others = "far" if name.runner_up_distance > 1e6 else f"over {name.runner_up_distance:.2g}"
        body.append(f"how sure: your numbers are {name.distance:.2g} limits from it, {others} from "
                    "any other.")
    else:
        body += [seen] * bool(seen)
        body.append("try: " + TRY[symptom])
    step = stage.steps.get(symptom) or stage.steps.get("numbers")
    if step:
        body.append(look_at(stage, step))
    tail = [f"again: {again}"] * bool(again)
    # The command stays in one piece, to be copied; what says least goes first if there is no room.
    for drop in range(len(middle) + 1):
        kept = middle[drop:] if name else middle[:len(middle) - drop]
        lines = [row for line in (first, *last, *kept, *body) for row in _wrapped(line)] + tail
        if len(lines) <= LINES:
            break
    return tuple([*lines[:LINES - len(tail)], *tail] if len(lines) > LINES else lines)


def look_at(stage: Stage, step: str) -> str:
    """Which step to read again."""
    origin = stage.origins.get(step, "")  # whose hints say more
    carried = f", carried from {origin}" * bool(origin)
    return (f"look at step {step}{carried}; more: python {grader_of(stage.number)} "
            f"--hint {origin or step}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False)


def _nan_symptom(case: Case, everywhere: bool) -> str:
    if case.family.startswith("shift"):
        return "overflow"
    if everywhere and case.stage > 2 and case.D not in (16, 32, 64, 128):
        return "width"
    if case.layout in ("transposed", "last"):
        return "stride"
    return "tail" if case.layout == "guarded" and case.n_keys % 16 else "nan"


def _pattern(case: Case, name: str, bad: torch.Tensor) -> tuple[str, str]:
    """-> (symptom, a sentence on the pattern of wrong rows or "")."""
    n_bad, n_rows = int(bad.sum()), bad.numel()
    if name == "lse" or name == "d_sink_logits":
        return name, ""
    if bad.dim() == 3:
        batches, heads = bad.any(2).any(1), bad.any(2).any(0)
        if bad.shape[0] > 1 and not batches[0]:
            return "batch", "The first batch entry is right, later ones are not."
        if not heads.all():
            return "head", _heads_sentence(case, heads)
    flat = bad.flatten(0, -2).any(0) if bad.dim() > 1 else bad
    first, last, length = int(flat.nonzero()[0]), int(flat.nonzero()[-1]), flat.numel()
    for tile in TILES:
        start = length // tile * tile
        if 0 < start < length and first >= start:
            return "tail", f"Only the ragged tail is wrong: what is left after tiles of {tile}."
    if name.startswith("d_"):
        return name, "" if n_bad < n_rows else "It is wrong everywhere."
    if case.window is not None and case.window <= first <= case.window + 1 < length:
        return "window", f"Rows are right until the window (W={case.window}) first cuts a key off."
    if case.family == "rising":
        return "rescale", "The maximum grows in every tile of these inputs."
    if case.family.startswith("shift"):
        return "overflow", f"These inputs have all logits near {case.family[-1]}128."
    if case.family == "needles":
        return _edge(case), "These inputs put the weight on keys at the very edges of the mask."
    if case.is_causal and n_bad < n_rows:
        sentence = "The first rows are right." if first else ""
        return _edge(case), "The last rows are right." if last < length - 1 else sentence
    if case.layout in ("transposed", "last"):
        return "stride", "These inputs are views with gaps between rows, heads or features."
    if case.n_keys % 16 and case.stage != 2:
        return "tail", f"The length, {case.n_keys}, is a multiple of no tile."
    return "numbers", "It is wrong everywhere." if n_bad == n_rows else ""


def _edge(case: Case) -> str:
    if case.sinks:
        return "sinks"
    return "window" if case.window is not None else "mask"


def _heads_sentence(case: Case, heads: torch.Tensor) -> str:
    wrong = heads.nonzero().flatten().tolist()
    if len(heads) == case.HQ and case.HQ > case.HKV:
        group = case.HQ // case.HKV
        groups = sorted({h // group for h in wrong})
        if len(groups) < case.HKV:
            return f"Only heads that read key/value head {ranges(groups, 4)} are wrong."
        if min(wrong) >= case.HKV:
            return f"Heads from {case.HKV} (= HKV) on are wrong."
    return f"{len(wrong)} of {len(heads)} heads are wrong."


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
    if truth.dim() == 4:
        error = torch.nan_to_num((x - truth).abs(), nan=torch.inf).flatten(0, 2)
        columns = error.amax(0) > 0.02 * truth.abs().max()
        if bool(columns.any()) and not bool(columns.all()):
            text += f", columns {ranges(columns.nonzero().flatten().tolist(), 4)} of {len(columns)}"
    return text


def _worst(rows: torch.Tensor, x: torch.Tensor, truth: torch.Tensor) -> str:
    index = torch.unravel_index(rows.argmax(), rows.shape)
    index = tuple(int(i) for i in index)
    names = {3: ("batch", "head", "row"), 1: ("entry",)}[rows.dim()]
    place = ", ".join(f"{n} {i}" for n, i in zip(names, index, strict=True))
    got, want = x[index].flatten(), truth[index].flatten()
    column = int((got - want).abs().argmax())
    if got.numel() > 1:
        place += f", column {column}"
    return f"worst at {place}: got {got[column]:.5g}, want {want[column]:.5g}."


def _times(verdict: Verdict) -> str:
    return f"{verdict.times:.2g} times" if verdict.times < 10 else f"{verdict.times:.0f} times"


def _percent(error: float) -> str:
    if error < 0.001:
        return f"{100 * error:.1g} %"
    return f"{100 * error:.2g} %" if error < 1 else f"{100 * error:.0f} %"
