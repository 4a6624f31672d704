"""Cuts what a wrong step was given, should have returned and did return to a size to draw.

It is the step's "evidence" in the JSON: tables of numbers (as text, because JSON has no infinity),
a mask, or the tiles of a loop.  grader/page/pictures.py draws it.
"""

import numpy as np

from grader.step_checks.examples import Example, Wrong

ROWS, COLUMNS = 6, 5  # the most of a table
MOST = 32  # tiles of a loop
GIVEN = 3  # the most tables of given values


def evidence(one: Example, found: Wrong) -> dict:
    """The evidence; {} if there is nothing to draw."""
    if found.array is None:
        return found.drawn
    name, want, got, wrong = found.array
    if not want.ndim:
        return found.drawn
    at = np.argwhere(wrong)[0]
    around = dict(zip(range(-min(want.ndim, 2), 0), at[-2:], strict=True)) if want.ndim > 1 else {
        -2: at[0]}
    given = [(other, value) for other, value in one.given.items() if isinstance(value, np.ndarray)
             and value.ndim and value.dtype.kind in "fiub"]
    rows = want.shape[-2] if want.ndim > 1 else want.shape[0]
    given.sort(key=lambda pair: rows not in pair[1].shape[-2:])  # first those with the same rows
    return {"tables": [
        *(_table(other, "given", value, around, want.shape, at) for other, value in given[:GIVEN]),
        _table(name, "expected", want, around, want.shape, at),
        _table(name, "got", got, around, want.shape, at, wrong)]}


def _table(name: str, role: str, x: np.ndarray, around: dict, shape: tuple, at, wrong=None) -> dict:
    """The part of x around the first wrong number, if x has as many rows or columns."""
    leading = tuple(at[:x.ndim - 2]) if x.ndim == len(shape) else (0,) * (x.ndim - 2)
    if x.ndim > 2:
        leading = tuple(min(int(i), n - 1) for i, n in zip(leading, x.shape, strict=False))
        name += f"[{', '.join(map(str, leading))}]"
        x, wrong = x[leading], None if wrong is None else wrong[leading]
    if x.ndim == 1:
        x, wrong = x[:, None], None if wrong is None else wrong[:, None]
    size = (shape[0], 1) if len(shape) == 1 else shape[-2:]
    spans = [_span(x.shape[axis], most, around.get(axis, 0) if x.shape[axis] == size[axis] else 0)
             for axis, most in ((-2, ROWS), (-1, COLUMNS))]
    part = np.ix_(*spans)
    table = {"name": name, "role": role, "rows": spans[0].tolist(), "columns": spans[1].tolist(),
             "cells": [[_text(value) for value in row] for row in x[part].tolist()]}
    return table if wrong is None else table | {"wrong": wrong[part].astype(int).tolist()}


def _span(n: int, most: int, around: int) -> np.ndarray:
    first = max(0, min(int(around) - most // 2, n - most))
    return np.arange(first, min(n, first + most))


def _text(value) -> str:
    return str(value) if isinstance(value, bool | int) else f"{value:.4g}"


def mask(wanted: np.ndarray, got: np.ndarray, first: tuple[int, int]) -> dict:
    """A row per query, x visible, . hidden.  first: the first query and the first key."""
    def rows(keep):
        return ["".join("x" if one else "." for one in row) for row in keep]
    return {"mask": {"first": [int(n) for n in first], "want": rows(wanted), "got": rows(got)}}


def tiles(names: tuple[str, str], own: np.ndarray, size: int, wanted: list, visited: list) -> dict:
    """The loop of a program, and the right one.

    names: of the rows that the program owns, own, and of those that its loop is over; wanted,
    visited: first row and MASKED of each tile.  -> begins: first rows of tiles; for each, of the
    program's loop and of the right one: visits, how often; masked.
    """
    begins = sorted({begin for begin, _ in (*wanted, *visited)})[:MOST]
    visits, masked = ([[combine([masked for begin, masked in loop if begin == at])
                        for at in begins] for loop in (visited, wanted)] for combine in (len, any))
    return {"tiles": {"names": list(names), "own": [int(own[0]), int(own[-1])], "size": size,
                      "begins": [int(at) for at in begins], "visits": visits, "masked": masked}}
