"""What a weighted row sum leaves out, repeats or mixes up is named, and nothing else is."""

import pytest
import torch

from grader.course.cases import Case
from grader.course.inputs import build
from grader.diagnosis import sums
from grader.diagnosis.samples import Sample, Samples

T = 64  # columns, or rows, of a tile


def tiles(length):
    return [(at, min(at + T, length)) for at in range(0, length, T)]


def row_sum(x, w, visits=tiles, of_w=lambda w, i, j: w[i:j], total=torch.add):
    y = torch.zeros(len(x), dtype=x.dtype)
    for i, j in visits(x.shape[1]):
        y = total(y, (x[:, i:j] * of_w(w, i, j)).sum(1))
    return y


def right(x, w, dy):
    return {"y": row_sum(x, w), "d_x": torch.outer(dy, w), "d_w": row_sum(x.T, dy)}


def named(**wrong):
    """What is said of a submission whose tensors are those, by functions of x, w and dy."""
    def answer(built):
        x, w = (built.call.inputs[name].view().double() for name in "xw")
        dy = built.call.douts["y"].view().double() if built.call.grads else x[:, 0]
        got = right(x, w, dy) | {name: made(x, w, dy) for name, made in wrong.items()}
        return {name: x.float() for name, x in got.items()
                if built.call.grads or name[:2] != "d_"}

    built = build(Case(2, "standard", 200, M=70, dtype=torch.float32,
                       grads=("x", "w") if "y" not in wrong else ()), 1)
    return sums.name(Samples(Sample.of(built, answer(built), "cpu"), answer, "cpu"))


@pytest.mark.parametrize("y, words", [
    (lambda x, w, dy: x.sum(1), "w is missing"),
    (lambda x, w, dy: x @ w**2, "w is applied twice"),
    (lambda x, w, dy: x.sum(1) * w.sum(), "the sum of x is multiplied by the sum of w"),
    (lambda x, w, dy: row_sum(x, w, lambda N: tiles(N - 1)),
     "column 332 of x is left out: it is the last column"),
    (lambda x, w, dy: row_sum(x, w, lambda N: tiles(N // T * T)),
     "columns 320-332 of x are left out: they are the last tile, which is only partly filled"),
    (lambda x, w, dy: row_sum(x, w, total=lambda y, more: more),
     "columns 0-319 of x are left out: only the last tile counts"),
    (lambda x, w, dy: row_sum(x, w, lambda N: tiles(N)[:1]),
     "columns 64-332 of x are left out: only the first tile counts"),
    (lambda x, w, dy: row_sum(x, w, lambda N: tiles(N)[:2] + tiles(N)[3:]),
     "columns 128-191 of x are left out"),
    (lambda x, w, dy: row_sum(x, w, lambda N: tiles(N) + tiles(N)[:1]),
     "columns 0-63 of x count 2 times"),
    (lambda x, w, dy: row_sum(x, w, of_w=lambda w, i, j: w[:j - i]),
     "every tile of columns is multiplied with the first 64 elements of w"),
    (lambda x, w, dy: x @ w.roll(-1),
     "column 0 of x is multiplied with w[1], and not with w[0]"),
    (lambda x, w, dy: x[:, :-1] @ w[1:] + x[:, -1] * w[-1],
     "column j of x is multiplied with w[j + 1], and not with w[j]"),
    (lambda x, w, dy: x @ w.flip(0),
     "column 0 of x is multiplied with w[332], and not with w[0]")])
def test_what_y_adds_up_is_read_column_by_column(y, words):
    id, said, rule = named(y=y)
    assert id and said == f"y in another case (M=300, N=333): {words}" and rule.startswith("y_i = ")


@pytest.mark.parametrize("d_w, words", [
    (lambda x, w, dy: x.sum(0), "dy is missing"),
    (lambda x, w, dy: row_sum(x.T, dy, of_w=lambda dy, i, j: dy[:j - i]),
     "every tile of rows is multiplied with the first 64 elements of dy"),
    (lambda x, w, dy: row_sum(x.T, dy, lambda M: tiles(M // T * T)),
     "rows 256-299 of x are left out: they are the last tile, which is only partly filled")])
def test_what_dw_adds_up_is_read_row_by_row(d_w, words):
    assert named(d_w=d_w)[1] == f"w.grad in another case (M=300, N=333): {words}"


@pytest.mark.parametrize("d_x, words", [
    (lambda x, w, dy: dy[:, None].expand(x.shape), "w is missing"),
    (lambda x, w, dy: w.expand(x.shape), "dy is missing"),
    (lambda x, w, dy: torch.outer(dy, w[torch.arange(len(w)) % T]),
     "every tile of columns is multiplied with the first 64 elements of w"),
    (lambda x, w, dy: torch.outer(dy[torch.arange(len(dy)) % T], w),
     "every tile of rows is multiplied with the first 64 elements of dy")])
def test_what_dx_is_made_of_is_read_from_its_elements(d_x, words):
    assert named(d_x=d_x)[1] == f"x.grad in another case (M=300, N=333): {words}"


@pytest.mark.parametrize("y", [
    lambda x, w, dy: 1.5 * (x @ w), lambda x, w, dy: x @ w + 1, lambda x, w, dy: x @ w * torch.nan])
def test_what_no_column_explains_gets_no_name(y):
    assert named(y=y) == ("", "", "")
