"""Names what a weighted row sum leaves out, repeats or mixes up.

y = x w is linear in x: if a row of x has a single element, y says which weight it met.  dw = dy x
says in the same way which element of dy met it, and dx = dy w shows both as it is.
"""

from dataclasses import replace

import torch

from grader.course.calls import TensorInput
from grader.course.inputs import build
from grader.diagnosis.describe import TILES
from grader.diagnosis.samples import Samples
from grader.step_checks import mistakes
from grader.text import ranges, tensor_name

M, N = 300, 333  # several tiles each way, the last one cut
NEAR = 1e-4  # relative error of what agrees
X = 3.0  # every element of x that is not 0


def name(samples: Samples) -> tuple[str, str, str]:
    """-> the mistake of the first wrong tensor, as its id, in words, and the rule that it breaks;
    "" where none fits."""
    wrong = next(name for name in samples.names if name in samples.wrong.wrong)
    gen = torch.Generator().manual_seed(1)
    w, dy = (1 + torch.randperm(n, generator=gen).double() / n for n in (N, M))  # all differ
    row = torch.arange(M)
    columns = [(7 * (row + shift) + 3) % N for shift in (0, M)]  # together they meet every one
    got = [_ask(samples, wrong, column, w, dy) for column in columns]
    if any(x is None or not bool(torch.isfinite(x).all()) for x in got):
        return "", "", ""
    if wrong == "y":
        met = torch.zeros(N, dtype=torch.float64)
        for column, y in zip(columns, got, strict=True):
            met[column] = y / X
        id, words = _sum(met, w, "column", "w")
    elif wrong == "d_w":
        id, words = _sum(got[0][columns[0]] / X, dy, "row", "dy")
    else:
        id, words = _product(got[0], dy, w)
    return id, f"{tensor_name(wrong)} in another case (M={M}, N={N}): {words}" * bool(id), (
        mistakes.of("w-ignored").rule * (wrong == "y" and bool(id)))


def _ask(samples: Samples, wrong: str, column: torch.Tensor, w: torch.Tensor, dy: torch.Tensor
         ) -> torch.Tensor | None:
    """The wrong tensor, of an x with one element per row, in this column."""
    case = samples.wrong.built.case
    built = build(replace(
        case, group="probe", M=M, N=N, dtype=torch.float32, family="randn", layout="dense",
        dout="dense", repeats=1, refill=False, growth=False,
        grads=case.grads if wrong[:2] == "d_" else ()), 1)
    x = torch.zeros(M, N)
    x[torch.arange(M), column] = X
    built.call.inputs.update(x=TensorInput.dense(x), w=TensorInput.dense(w.float()))
    if built.call.grads:
        built.call.douts["y"] = TensorInput.dense(dy.float())
    answer = samples.ask(built)
    return None if answer is None else answer[wrong].cpu().double()


def _near(got: torch.Tensor, want: torch.Tensor | float) -> bool:
    return bool(((got - want).abs() <= NEAR * torch.as_tensor(want).abs()).all())


def _sum(met: torch.Tensor, right: torch.Tensor, part: str, weight: str) -> tuple[str, str]:
    """What the elements of every column, or row, of x were multiplied with: met, and right."""
    if _near(met, 1.0):
        return "w-ignored", f"{weight} is missing"
    if _near(met, right**2):
        return "w-squared", f"{weight} is applied twice"
    if _near(met, float(right.sum())):
        return "sums-multiplied", f"the sum of x is multiplied by the sum of {weight}"
    off = (met - right).abs() > NEAR * right
    if bool(off.all()) and _near(met / right, float((met / right)[0])):
        return "", ""  # a factor: describe.py says which
    which, at = off.nonzero().flatten().tolist(), f"{part}s "
    if not which:  # it is wrong in the case alone
        return "", ""
    if len(which) == 1:
        at = f"{part} "
    if not bool(met[off].any()):
        verb = "are" if len(which) > 1 else "is"
        return f"effect-{part}s-left-out", (
            f"{at}{ranges(which, 4)} of x {verb} left out{_which(which, len(met), part)}")
    times = (met / right)[off]
    if bool((times > 1.5).all()) and _near(times, times.round()):
        low, high = int(times.min().round()), int(times.max().round())
        count = f"{low} times" if low == high else f"{low} to {high} times"
        return f"effect-{part}s-repeated", f"{at}{ranges(which, 4)} of x count {count}"
    return _other(met, right, part, weight)


def _which(lost: list[int], length: int, part: str) -> str:
    """What is special about the columns or rows left out, or "" """
    if lost == [length - 1]:
        return f": it is the last {part}"
    for tile in TILES:
        cut = length // tile * tile
        if lost == list(range(cut, length)):
            return ": they are the last tile, which is only partly filled"
        if lost == list(range(cut)):
            return ": only the last tile counts"
        if lost == list(range(tile, length)):
            return ": only the first tile counts"
    return ""


def _other(met: torch.Tensor, right: torch.Tensor, part: str, weight: str) -> tuple[str, str]:
    """Where every column met the weight of another one."""
    near = (met[:, None] - right).abs() <= NEAR * right
    if not bool(near.any(1).all()):
        return "", ""
    index, own = near.int().argmax(1), torch.arange(len(right))
    off, letter = index != own, {"column": "j", "row": "i"}[part]
    for tile in TILES:
        if torch.equal(index, own % tile):
            return f"effect-{weight}-repeated", (
                f"every tile of {part}s is multiplied with the first {tile} elements of {weight}")
    ahead = (index - own)[off].unique().tolist()
    if len(ahead) == 1:
        place = f"{letter} {'+' if ahead[0] > 0 else '-'} {abs(ahead[0])}"
        return f"effect-{weight}-shifted", (
            f"{part} {letter} of x is multiplied with {weight}[{place}], and not with "
            f"{weight}[{letter}]")
    i = int(off.nonzero()[0])
    return f"effect-{weight}-of-another", (
        f"{part} {i} of x is multiplied with {weight}[{int(index[i])}], and not with {weight}[{i}]")


def _product(dx: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> tuple[str, str]:
    """What dx is made of, if it is not dy w."""
    if _near(dx, dy[:, None]):
        return "w-ignored", "w is missing"
    if _near(dx, w):
        return "effect-dy-ignored", "dy is missing"
    for met, right, part, weight in (((dx / w), dy, "row", "dy"),
                                     ((dx / dy[:, None]).T, w, "column", "w")):
        if bool((met.std(1) <= NEAR * met.abs().mean(1)).all()) and not _near(met.mean(1), right):
            return _other(met.mean(1), right, part, weight)
    return "", ""
