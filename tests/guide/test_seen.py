"""What seen.json says of the interpreter and the compiler, they do."""

from importlib.metadata import version

import pytest

from guide import measured, seen


@pytest.fixture(scope="module")
def today():
    return seen.look()


@pytest.mark.interpreter
def test_the_interpreter_computes_as_seen_and_bfloat16_is_nonsense(today):
    for dtype, error in seen.seen()["interpreted"].items():
        assert today["interpreted"][dtype] == pytest.approx(error, rel=0.1)
    assert today["interpreted"]["float16"] < 1e-3 < 1e6 < today["interpreted"]["bfloat16"]


@pytest.mark.interpreter
def test_the_compiler_places_as_seen(today):
    """q lies in shared memory, not in registers.  Other versions of Triton may decide otherwise."""
    if version("triton") != seen.seen()["triton"]:
        pytest.skip(f"seen.json is of Triton {seen.seen()['triton']}")
    assert today["compiled"] == seen.seen()["compiled"]
    assert today["compiled"][0]["scores"] == ["shared memory", "shared memory", "registers"]


def test_the_causal_excess_is_time_over_share_of_tiles():
    row = measured.excess().rows[0]
    full, causal, tiles = float(row[1]), float(row[2]), row[3]
    assert float(row[6]) == pytest.approx(causal / full * tiles - (tiles + 1) / 2, abs=0.1)


def test_rows_that_one_of_the_two_has_not_are_not_counted():
    won, both = map(int, measured.ahead("fa4", "fast").split(" of "))
    lost, again = map(int, measured.ahead("fast", "fa4").split(" of "))
    assert won + lost == both == again < len(measured.TABLE)
