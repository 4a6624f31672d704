"""Kernels in the interpreter are held to the tensors there are."""

from types import SimpleNamespace

import numpy as np
import pytest

from grader.sandbox.kernels import bounds
from grader.sandbox.kernels.hooks import Access

# 100 numbers each, as Recorder.named() has them, in storages of which X's is 20 numbers longer.
X, Y = ("x_ptr", 10_000, 4, [100], [1]), ("y_ptr", 20_000, 4, [100], [1])
STORAGES = [(9_960, 10_440), (20_000, 20_400)]


def outside(addresses, mask=None, verb="reads", base=None, tensors=(X, Y)) -> str:
    """What is said of a tile that goes outside of X and Y."""
    pointers = SimpleNamespace(data=np.asarray(addresses, np.uint64))
    if base is not None:
        pointers.base = base
    if mask is not None:
        mask = SimpleNamespace(data=np.asarray(mask))
    with pytest.raises(bounds.OutOfBounds) as caught:
        bounds.Bounds(lambda: STORAGES, lambda: list(tensors))._check(Access(pointers, mask), verb)
    return str(caught.value)


ADVICE = "Either the mask is missing or wrong, or the address is wrong: check its tile and strides"


def test_lanes_outside_are_told_with_their_tensor_as_loads_or_stores():
    lanes = 20_000 + 4 * np.arange(128)
    assert outside(lanes) == ("tl.load reads 28 numbers outside the tensor at y_ptr. "
                              f"They are elements 100-127 of 128. {ADVICE}")
    assert outside(lanes, np.arange(128) < 101, "writes") == (
        "tl.store writes 1 number outside the tensor at y_ptr. It is element 100 of 128. "
        f"{ADVICE}")


def test_what_lies_around_a_tensor_in_its_storage_is_outside_of_it():
    assert outside(10_000 + 4 * np.arange(128)) == (
        "tl.load reads 28 numbers outside the tensor at x_ptr. They are elements 100-127 of 128. "
        + ADVICE)
    said = outside(9_952 + 4 * np.arange(128), np.arange(128) < 112)
    assert "12 numbers outside the tensor at x_ptr. They are elements 0-11 of 128." in said


@pytest.mark.parametrize("rows, columns, step, first, said", [
    (16, 8, 8, 0, "y_ptr. They are in rows 12-15 of the (16, 8) tile"),
    (4, 16, 0, 92, "y_ptr. They are in columns 8-15 of the (4, 16) tile"),
    (10, 12, 10, 0, "y_ptr. They are in row 9, columns 10-11 of the (10, 12) tile"),
    (4, 8, 8, 101, "y_ptr. They are the whole (4, 8) tile"),
    (4, 4, 31, 99, "y_ptr. They are among the 16 elements of the (4, 4) tile"),  # all but one
    (4, 8, 8, 1 << 30, "every tensor. They are the whole (4, 8) tile"),  # near none
])
def test_of_a_tile_its_rows_and_columns_outside_are_told(rows, columns, step, first, said):
    tile = first + step * np.arange(rows)[:, None] + np.arange(columns)
    assert f"{said}. {ADVICE}" in outside(20_000 + 4 * tile)


def test_the_tensor_is_the_one_that_the_pointer_was_made_of():
    tile = 20_000 + 4 * np.arange(128)  # in Y, and past its end
    said = outside(tile, base=10_000)
    assert "128 numbers outside the tensor at x_ptr. They are all 128 el" in said
    assert "at x_ptr" in outside(1 << 30, base=10_000)
    assert "y_ptr. They are elements 100-127 of 128." in outside(tile, base=20_000)


def test_rows_of_another_head_are_told_apart_from_those_outside():
    heads = ("k_ptr", 20_000, 4, [1, 2, 5, 10], [100, 50, 10, 1])
    tile = 20_000 + 4 * (10 * np.arange(16)[:, None] + np.arange(10))
    assert ("They are in rows 10-15 of the (16, 10) tile; 50 more, in rows 5-9, are in another "
            "head. ") in outside(tile, tensors=[X, heads])
    strided = ("k_ptr", 20_000, 4, [1, 2, 5, 10], [100, 10, 20, 1])  # head by head in each row
    rows = 20_000 + 4 * (10 + 20 * np.arange(16)[:, None] + np.arange(10))
    assert "They are in rows 5-15 of the (16, 10) tile. " in outside(rows, tensors=[X, strided])


def test_a_single_number_outside_has_no_lanes():
    assert outside(20_400) == f"tl.load reads 1 number outside the tensor at y_ptr. {ADVICE}"


def test_only_where_there_are_heads_is_a_head_to_be_checked():
    heads = ("k_ptr", 20_000, 4, [1, 2, 5, 10], [100, 50, 10, 1])
    wrong = "or the address is wrong"
    assert outside(20_400).endswith(f"{wrong}: check its tile and strides")
    assert outside(20_400, tensors=[X, heads]).endswith(
        f"{wrong}: check its tile, strides, head and batch entry")
    assert outside(20_400, tensors=[]).endswith(wrong)  # a step, of whose tensors less is known
