"""Stage 2's steps: each of these mistakes is wrong in an example, and a right step in none."""

import numpy as np
import pytest

from grader.step_checks import row_sum
from grader.step_checks.examples import Example, Observed


def wrong(step: str, made, **how) -> list[str]:
    """The words of the examples in which what is made is wrong."""
    return [example.words for example in row_sum.ENTRIES[step].examples()
            if (found := example.check(made(example, **how))) and not found.note]


def read(example: Example, name: str, at, mask) -> np.ndarray:
    """tl.load of these elements; NaN past the end."""
    memory = np.append(example.memory[name], np.full(9999, np.nan)).astype(np.float64)
    return np.where(mask, memory[np.where(mask, at, 0)], 0)


def as_they_are(g: dict) -> dict:
    return {}


def loads(example: Example, change=as_they_are) -> Observed:
    """2.2, with a change of what is given."""
    g = example.given | change(example.given)
    m, n = g["offs_m"][:, None], g["offs_n"]
    return Observed([{
        "x": read(example, "x", m * g["stride_xm"] + n * g["stride_xn"],
                  g["mask_m"][:, None] & g["mask_n"]),
        "w": read(example, "w", n * g["stride_wn"], g["mask_n"])}], [], {})


def test_a_row_past_the_end_that_is_not_masked_is_named():
    [example] = row_sum.ENTRIES["2.1"].examples()
    rows = [start + np.arange(row_sum.BM) for start in (0, row_sum.BM, 2 * row_sum.BM)]
    found = example.check(Observed([{"offs_m": row, "mask_m": row <= 40} for row in rows], [], {}))
    assert found.got == "True for row 40" and "below 40" in found.want


ONES = np.ones(row_sum.BM, bool), np.ones(row_sum.BN, bool)


@pytest.mark.parametrize("change", [
    lambda g: {"stride_xm": g["N"]}, lambda g: {"stride_xn": 1}, lambda g: {"stride_wn": 1},
    lambda g: {"stride_xm": max(g["stride_xm"], g["stride_xn"]),
               "stride_xn": min(g["stride_xm"], g["stride_xn"])},
    lambda g: {"mask_m": ONES[0]}, lambda g: {"mask_n": ONES[1]},
    lambda g: {"mask_n": g["mask_n"] | (g["start_n"] == 0)},
    lambda g: {"mask_n": g["offs_n"] < g["N"] - 1}, lambda g: {"offs_m": np.arange(row_sum.BM)}])
def test_a_wrong_load_is_noticed(change):
    assert wrong("2.2", loads) == [] and wrong("2.2", loads, change=change)


@pytest.mark.parametrize("to", [lambda dtype: dtype, lambda dtype: np.float16])
def test_a_product_in_16_bits_is_noticed(to):
    def summed(example: Example, to=lambda dtype: np.float64) -> Observed:
        x, w, acc = (example.given[name] for name in ("x", "w", "acc"))
        product = x.astype(to(x.dtype)) * w.astype(to(x.dtype))
        return Observed([{"acc": acc + product.astype(np.float64).sum(1)}], [], {})

    assert wrong("2.3", summed) == [] and wrong("2.3", summed, to=to)


def outer(example: Example, change=as_they_are, to=np.float64) -> Observed:
    """2.4, with a change of what is given."""
    g = example.given | change(example.given)
    dy = read(example, "dy", g["offs_m"] * g["stride_dym"], g["mask_m"])
    w = read(example, "w", g["offs_n"] * g["stride_wn"], g["mask_n"])
    at = g["offs_m"][:, None] * g["stride_dxm"] + g["offs_n"] * g["stride_dxn"]
    dx = np.append(example.memory["dx"], np.zeros(9999, example.memory["dx"].dtype))
    inside = g["mask_m"][:, None] & g["mask_n"]
    dx[at[inside]] = (dy[:, None] * w).astype(to)[inside]
    if dx[-9999:].any():  # it would raise an error
        dx[:] = np.nan
    return Observed([{}], [], {"dx": dx[:-9999]})


@pytest.mark.parametrize("how", [
    dict(to=np.float16), *(dict(change=change) for change in (
        lambda g: {"stride_dym": 1}, lambda g: {"stride_dym": max(g["stride_dym"], 1)},
        lambda g: {"stride_wn": 1}, lambda g: {"stride_dxm": g["N"]}, lambda g: {"stride_dxn": 1},
        lambda g: {"mask_m": ONES[0]}, lambda g: {"mask_n": ONES[1]},
        lambda g: {"mask_n": g["mask_n"] | (g["start_n"] == 0)},
        lambda g: {"offs_n": g["offs_n"] - g["start_n"]}))])
def test_a_wrong_outer_product_is_noticed(how):
    assert wrong("2.4", outer) == [] and wrong("2.4", outer, **how)


def columns(example: Example, change=as_they_are, to=np.float64) -> Observed:
    """2.5, with a change of what is given."""
    g = example.given | {"offs_m": example.given["start_m"] + np.arange(row_sum.BM)}
    g |= {"mask_m": g["offs_m"] < g["M"]}
    g |= change(g)
    dy = read(example, "dy", g["offs_m"] * g["stride_dym"], g["mask_m"])
    x = read(example, "x", g["offs_m"][:, None] * g["stride_xm"] + g["offs_n"] * g["stride_xn"],
             g["mask_m"][:, None] & g["mask_n"])
    return Observed([{"acc": g["acc"] + (dy[:, None] * x).astype(to).sum(0)}] * 2, [], {})


@pytest.mark.parametrize("how", [
    dict(to=np.float16), *(dict(change=change) for change in (
        lambda g: {"stride_dym": min(g["stride_dym"], 1)},
        lambda g: {"stride_dym": max(g["stride_dym"], 1)},
        lambda g: {"stride_xm": g["N"]}, lambda g: {"stride_xn": 1},
        lambda g: {"mask_m": ONES[0]}, lambda g: {"mask_m": g["mask_m"] | (g["start_m"] == 0)},
        lambda g: {"offs_m": np.arange(row_sum.BM)}))])
def test_a_wrong_sum_of_columns_is_noticed(how):
    assert wrong("2.5", columns) == [] and wrong("2.5", columns, **how)


def packed(x: np.ndarray) -> np.ndarray:
    """x as a kernel reads it that takes it for contiguous; NaN past the end of its memory."""
    memory = (x if x.base is None else x.base).ravel(order="K")
    return np.append(memory, np.full(x.size, np.nan))[:x.size].reshape(x.shape)


def launched(example: Example, contiguous=lambda name, x: False, always=(False, False)
             ) -> Observed:
    """What 2.6 leaves with right kernels.  always: which gradients are made without need."""
    x, w, dy = (packed(x) if contiguous(name, x) else x
                for name, x in ((name, example.given[name]) for name in ("x", "w", "dy")))
    needs = np.logical_or(example.given["ctx"].needs_input_grad, always)
    calls = [(f"_{name}_kernel", {"programs": 3, "wanted": 3})
             for name, needed in zip(("dx", "dw"), needs, strict=True) if needed]
    return Observed([{"dx": np.outer(dy, w) if needs[0] else None,
                      "dw": dy @ x if needs[1] else None}], calls, {})


@pytest.mark.parametrize("how", [
    dict(contiguous=lambda name, x: name == "x"), dict(contiguous=lambda name, x: name == "w"),
    dict(contiguous=lambda name, x: name == "dy"), dict(contiguous=lambda name, x: 0 in x.strides),
    dict(always=(True, False)), dict(always=(False, True))])
def test_a_wrong_launch_is_noticed(how):
    assert wrong("2.6", launched) == [] and wrong("2.6", launched, **how)
