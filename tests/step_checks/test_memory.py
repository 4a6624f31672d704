"""Loads and stores: what is right, and what is said of a row too many, too few or elsewhere."""

import numpy as np
import pytest

from grader.step_checks import memory
from grader.step_checks.examples import Example, Observed
from grader.step_checks.memory import MARK, stored

N, D = 5, 4  # rows and columns of a head; there are three


def wanted(head: int = 1, rows: slice = slice(0, 3)) -> np.ndarray:
    """These rows of a head hold 1, 2, 3 ..., the rest must not be written."""
    want = np.full((3 * N, D), MARK)
    own = want[head * N:][rows]
    own[:] = np.arange(1, own.size + 1).reshape(own.shape)
    return want


def said(got: np.ndarray, want: np.ndarray, width: int = D) -> str:
    found = stored("o", got.reshape(-1), want, width, N)
    return found.lines[0] if found else ""


def changed(at: tuple[int, int], value: float) -> np.ndarray:
    got = wanted()
    got[at] = value
    return got


@pytest.mark.parametrize("got, words", [
    (wanted(), ""),
    (changed((6, 2), 9.0), "o, row 1 of head 1, column 2: want 7; got 9."),
    (changed((6, 2), MARK), "o, row 1 of head 1, column 2: want 7; got not written."),
    (changed((8, 0), 9.0), "This program also writes row 3 of head 1 of o, which belongs to "
                           "another program."),
    (changed((0, 0), 9.0), "This program also writes row 0 of head 0 of o"),
    (wanted(0), "The rows of head 1 are stored in head 0 of o: the head in the address is missing "
                "or wrong."),
    (np.full((3 * N, D), MARK), "Nothing is stored in o: no tl.store reaches it.")])
def test_what_is_stored_where_it_must_not_be_or_not_at_all_is_told(got, words):
    assert said(got, wanted()).startswith(words) and bool(said(got, wanted())) == bool(words)


def test_of_one_head_and_one_column_the_row_alone_is_told():
    want = wanted(0)[:N, :1].copy()
    got = want.copy()
    got[2] = 0.5
    assert said(got, want, 1) == "o, row 2: want 9; got 0.5."


def test_a_factor_that_is_too_large_everywhere_is_known():
    want = wanted()
    got = np.where(want == MARK, MARK, 2 * want)
    assert stored("o", got.reshape(-1), want, D, N).ratio == pytest.approx(2.0)
    assert stored("o", changed((5, 0), 9.0).reshape(-1), want, D, N).ratio is None


def test_what_is_read_is_zero_where_nothing_is():
    found = memory.read(np.array([1.0, 2.0, 3.0]), np.array([0, 2, 3, 1]),
                        np.array([True, True, True, False]))
    assert found.tolist() == [1.0, 3.0, 0.0, 0.0]


def finished(example: Example, natural: bool = False, **changes) -> Observed:
    """What 3.3 leaves in memory."""
    given = example.given | changes
    own = given["bh"] * given["N"] + given["query"][given["query"] < given["N"]]
    inside = given["query"] < given["N"]
    o, lse = (example.memory[name].copy() for name in ("o", "lse"))
    l_i = given["l_i"].astype(np.float64)
    o.reshape(-1, given["D"])[own] = (given["acc"] / l_i[:, None])[inside, :given["D"]]
    m_i = given["m_i"].astype(np.float64) * (1.0 if natural else np.log(2))
    lse[own] = (m_i + np.log(l_i))[inside]
    return Observed([{}], [], {"o": o, "lse": lse})


@pytest.mark.parametrize("spec, natural", [(memory.FINISH, False), (memory.NATURAL, True)])
def test_o_is_divided_and_lse_is_in_base_e_whatever_the_base_of_m(spec, natural):
    for example in spec.examples():
        assert example.check(finished(example, natural)) is None, example.words
        assert example.check(finished(example, not natural)).name == "lse"
        found = example.check(finished(example, natural, l_i=example.given["l_i"] * 3))
        assert found.name == "o" and found.others == ("lse",)
        other = finished(example, natural, bh=3 - example.given["bh"])
        assert example.check(other) is not None


def test_only_rows_that_exist_are_stored_in_the_dtype_of_the_tensor():
    for example in memory.STORE.examples():
        given, x = example.given, example.memory["x"].copy()
        rows = given["rows"][given["rows"] < given["N"]]
        there = x.reshape(-1, given["D"])
        there[given["bh"] * given["N"] + rows] = given["tile"][:len(rows), :given["D"]]
        assert example.check(Observed([{}], [], {"x": x})) is None
        assert example.check(Observed([{}], [], {"x": example.memory["x"]})).id == "nothing-stored"
        there[(given["bh"] * given["N"] + rows[-1] + 1) % len(there)] = 1.0
        assert "belongs to another program" in example.check(Observed([{}], [], {"x": x})).lines[0]


def test_a_float32_tile_that_was_rounded_to_16_bits_is_wrong():
    examples = [one for one in memory.STORE.examples() if one.memory["x"].dtype == np.float32]
    for example in examples:
        given, x = example.given, example.memory["x"].copy()
        rows = given["rows"][given["rows"] < given["N"]]
        own = x.reshape(-1, given["D"])[given["bh"] * given["N"] + rows[0]:][:len(rows)]
        own[:] = given["tile"].astype(np.float16)[:len(rows), :given["D"]]
        assert example.check(Observed([{}], [], {"x": x})).name == "the tensor", example.words
    assert len(examples) == 2


def loaded(example: Example, stride: int | None = None) -> np.ndarray:
    """The tile of 3.7."""
    given, x = example.given, example.memory["x"]
    tile = np.zeros((given["ROWS"], given["BLOCK_D"]))
    for i in range(min(given["ROWS"], given["N"] - given["start"])):
        for j in range(given["D"]):
            tile[i, j] = x[given["start"] * given["stride_n"] + i * (stride or given["stride_n"])
                           + j * given["stride_d"]]
    return tile


def test_a_tile_is_what_its_strides_say_and_zero_past_the_end():
    for example in memory.LOAD.examples():
        right = loaded(example)
        assert example.check(Observed([{"tile": right}], [], {})) is None, example.words
        one = right.copy()
        one[-1, -1] += 0.001
        assert example.check(Observed([{"tile": one}], [], {})).name == "tile"
    gapped = memory.LOAD.examples()[2]
    found = [id for id, fits in gapped.variants().items() if fits(
        Observed([{"tile": loaded(gapped, gapped.given["D"])}], [], {}))]
    assert found == [("row-stride-ignored", "D")]


def wrong(spec, made, **how) -> list[str]:
    """The examples in which what is made is wrong."""
    return [example.words for example in spec.examples() if example.check(made(example, **how))]


def put(example: Example, o=None, lse=None) -> Observed:
    """What 3.3 leaves.  o, lse: a change of the numbers before they are stored."""
    given, dtype = example.given, example.memory["o"].dtype
    acc, l_i = given["acc"], given["l_i"][:, None]
    made = o(acc, l_i, dtype) if o else acc / l_i
    rows = (given["m_i"] * np.log(2) + np.log(given["l_i"])).astype(np.float64)
    found = finished(example)
    own = given["bh"] * given["N"] + given["query"][given["query"] < given["N"]]
    found.memory["o"].reshape(-1, given["D"])[own] = made[:len(own), :given["D"]]
    if lse:
        found.memory["lse"][own] = lse(rows)[:len(own)]
    return found


@pytest.mark.parametrize("how", [
    dict(o=lambda acc, l_i, dtype: acc.astype(dtype) / l_i),  # 200,000 is inf in float16
    dict(o=lambda acc, l_i, dtype: (acc / l_i).astype(np.float16)),
    dict(lse=lambda rows: rows.astype(np.float16))])
def test_what_is_stored_after_it_was_rounded_too_early_is_wrong(how):
    with np.errstate(over="ignore"):
        assert wrong(memory.FINISH, put) == [] and wrong(memory.FINISH, put, **how)


def taken(example: Example, masked=lambda D, RAGGED, BLOCK_D: RAGGED or BLOCK_D != D,
          exists=lambda row, start, N: row < N, column=lambda stride, masked: stride) -> Observed:
    """The tile of 3.7, with a mask where masked() says so."""
    given, x = example.given, example.memory["x"]
    is_masked = masked(given["D"], given["RAGGED"], given["BLOCK_D"])
    i, j = np.arange(given["ROWS"])[:, None], np.arange(given["BLOCK_D"])
    at = (given["start"] + i) * given["stride_n"] + j * column(given["stride_d"], is_masked)
    inside = exists(given["start"] + i, given["start"], given["N"]) & (j < given["D"])
    tile = memory.read(np.append(x, np.full(999, np.nan)), at, inside if is_masked else at >= 0)
    return Observed([{"tile": tile}], [], {})


@pytest.mark.parametrize("how", [
    dict(masked=lambda D, RAGGED, BLOCK_D: BLOCK_D != D),
    dict(masked=lambda D, RAGGED, BLOCK_D: RAGGED),
    dict(exists=lambda row, start, N: (start == 0) | (row < N)),
    dict(exists=lambda row, start, N: row - start < N),
    dict(column=lambda stride, masked: stride if masked else 1),
    dict(column=lambda stride, masked: 1 if masked else stride)])
def test_a_mask_or_stride_that_is_wrong_in_some_tiles_only_is_noticed(how):
    assert wrong(memory.LOAD, taken) == [] and wrong(memory.LOAD, taken, **how)
