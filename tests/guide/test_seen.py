"""What seen.json says of the interpreter and the compiler, they do."""

from importlib.metadata import version

import pytest

from guide import measured, seen, timed


@pytest.fixture(scope="module")
def today():
    return seen.look()


@pytest.mark.slow
@pytest.mark.interpreter
def test_the_interpreter_computes_as_seen_and_bfloat16_is_nonsense(today):
    for dtype, error in seen.seen()["interpreted"].items():
        assert today["interpreted"][dtype] == pytest.approx(error, rel=0.1)
    assert today["interpreted"]["float16"] < 1e-3 < 1e6 < today["interpreted"]["bfloat16"]


@pytest.mark.slow
@pytest.mark.interpreter
def test_a_dumped_tile_tells_where_a_mistake_begins_and_a_hunt_where_a_nan_does(today):
    was = seen.seen()
    assert today["hunt"] == was["hunt"] and "NaN in 5 of 16" in was["hunt"][-1]
    right, rescaled, base = (list(map(float, today["compared"][name])) for name in (
        "None", "sum_not_rescaled", "no_log2e"))
    assert max(right) < 1e-5 and rescaled[0] < 1e-5 < 0.1 < min(rescaled[1:]) and min(base) > 0.1
    for name, found in was["compared"].items():
        for before, now in zip(found, today["compared"][name], strict=True):
            assert (float(before) < 1e-5) == (float(now) < 1e-5)


@pytest.mark.slow
@pytest.mark.interpreter
def test_other_warps_stages_and_tiles_need_what_was_seen(today):
    if version("triton") != seen.seen()["triton"]:
        pytest.skip(f"seen.json is of Triton {seen.seen()['triton']}")
    assert today["chosen"] == seen.seen()["chosen"] and today["looked"] == seen.seen()["looked"]
    assert len(today["looked"][0]) >= 10


def test_as_many_programs_fit_as_their_scarcest_resource_allows():
    assert measured.programs(4, 128, 1024)["registers"] == 4  # 65536 / (128 * 128)
    assert measured.programs(4, 129, 1024)["registers"] == 3  # handed out by eights
    assert measured.programs(4, 32, 75 * 1024)["shared memory"] == 3  # 228 KiB, 1 more a program
    assert measured.programs(32, 32, 1024)["threads"] == 2  # 2048 / 1024


def test_what_the_chapter_on_tools_says_of_the_choices_is_so():
    """Two programs for up to three stages; eight warps: one by one compiler, two by another."""
    assert [(row[-2], row[-1]) for row in measured.choices().rows] == [
        (2, "registers"), (2, "shared memory"), (2, "registers and shared memory"),
        (1, "registers"), (1, "shared memory"), (1, "registers and shared memory")]
    assert [row[-2] for row in measured.choices_timed().rows] == [2, 2, 2, 2, 1, 1]
    one, two, three, more_warps, spilling, tall = (x["ms"] for x in timed.timed()["choices"])
    assert one > two > three and more_warps > three and tall < three and spilling > 2 * tall


def test_the_clock_of_the_host_is_longer_for_the_shorter_kernel():
    """So it tells nothing, as the chapter on tools says."""
    short, long = (timed.timed()["clocks"][name] for name in timed.WORKS)
    host, warm = ("clock of the host, second call, not waited for",
                  "do_bench, warm (warmup=100, rep=100)")
    assert short[host] > long[host] and 10 * short[warm] < long[warm]


def test_what_l2_served_at_least_is_what_device_memory_could_not_deliver():
    label = "stage 3, D=64, forward"  # 4 batch entries, 32 heads, N = 4096: 64 tiles of 64 queries
    asked = 4 * 32 * 64 * (2 * 4096 * 64 * 2)
    share = 1 - measured.entry(label, "stages")["ms"] / 1e3 * 4.3e12 / asked
    assert 0 < share < 1
    assert measured.value(f"elsewhere {label} | 64") == f"{100 * share:.0f} %"


@pytest.mark.slow
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
