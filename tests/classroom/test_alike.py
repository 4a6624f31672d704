"""Who wrote the same is listed, whatever it is called there; what the course gave is not."""

import pytest

from classroom.alike import Alike, alike
from classroom.gather import Submitted
from grader import starter
from grader.assignment.record import ROOT

SHIPPED = (ROOT / "problem_3.py").read_text("utf-8")


def work(*lines: str, step: str = "3.5") -> bytes:
    rows = "".join(f"    {line}\n" for line in lines)
    return (f"def f():\n    # Step {step} -- One.\n    # BEGIN SOLUTION {step}\n{rows}"
            f"    # END SOLUTION {step}\n").encode()


def own(seed: int, count: int = 18, name: str = "x") -> list[str]:
    """Lines that nobody else writes."""
    return [f"{name}{i} = tl.sum({name} * {seed * 100 + i}, axis={i % 2})" for i in range(count)]


def compared(**files: bytes) -> Alike:
    return alike([Submitted(name, name, {3: data}) for name, data in files.items()], [3])


def groups(**files: bytes) -> list[tuple]:
    return [(*each["students"], *sorted({*each["lines"]}), each["stages"])
            for each in compared(**files).groups]


def equal(**files: bytes) -> list[tuple]:
    return [each["students"] for each in compared(**files).equal]


def test_the_same_lines_under_other_names_and_spacing_are_found():
    renamed = [line.replace(" = ", "=") + "  # mine" for line in own(1, name="total")]
    assert groups(anna=work(*own(1)), ben=work("y = 7 // 3", *renamed), cleo=work(*own(2))) == [
        ("anna", "ben", 18, [3])]


def test_fewer_than_fifteen_lines_are_not_listed():
    assert groups(anna=work(*own(1, 14)), ben=work(*own(1, 14), "y = 7")) == []
    assert groups(anna=work(*own(1, 15)), ben=work(*own(1, 15), "y = 7")) == [
        ("anna", "ben", 15, [3])]


@pytest.mark.parametrize(("count", "listed"), [(9, [("anna", "ben", 9, [3])]), (8, [])])
def test_a_short_file_under_other_names_is_listed_from_nine_lines_on(count, listed):
    renamed = work(*own(1, count, name="total"), "pass  # mine")
    assert groups(anna=work(*own(1, count)), ben=renamed, cleo=work(*own(2, count))) == listed
    assert groups(anna=work(*own(1, count)), ben=work(*own(1, count), "y = 7")) == []


@pytest.mark.parametrize("copies", [2, 3, 4, 15, 40])
def test_a_common_source_is_found_with_the_lines_that_only_they_have(copies):
    files = {f"copy{i:02}": work(*own(1), f"y = {i} // 7", *own(i + 2, 3)) for i in range(copies)}
    files |= {f"honest{i}": work(*own(1)[:6], *own(100 + i)) for i in range(3)}
    (group,) = compared(**files).groups
    assert group["students"] == tuple(sorted(files)[:copies])
    assert group["lines"] == (15, 15), "the first three lines are in no run that the honest lack"
    assert group["text"].keys() == {*group["students"]} and group["stages"] == [3]
    for lines in group["text"].values():
        assert lines[0] == "P3, 7: x3 = tl.sum(x * 103, axis=1)" and len(lines) == 15


def test_a_ring_within_a_crowd_with_one_source_is_found_too():
    ring = {f"a{i}": work(*own(1), *own(2), f"y = {i} // 3") for i in range(3)}
    crowd = {f"b{i}": work(*own(1), *own(i + 9)) for i in range(5)}
    assert [each["students"] for each in compared(**ring, **crowd).groups] == [
        tuple(sorted(ring | crowd)), tuple(ring)]
    others = {f"c{i}": work(*own(i + 20)) for i in range(9)}
    assert [each["students"] for each in compared(**ring, **crowd, **others).groups] == [
        tuple(sorted(ring | crowd))]


@pytest.mark.parametrize("idle", ["pass", "'a word'", "...", "x = x", "y: int", "assert True", "y"])
def test_statements_without_effect_between_the_lines_hide_nothing(idle):
    padded = [line for each in own(1) for line in (each, idle)]
    assert groups(anna=work(*own(1)), ben=work(*padded)) == [("anna", "ben", 18, [3])]


def test_a_statement_over_two_lines_is_the_same_statement():
    broken = [line.replace(", ", ",\n        ") for line in own(1)]
    assert groups(anna=work(*own(1)), ben=work(*broken)) == [("anna", "ben", 18, [3])]


# ------------------------------------------------------------------------ equal files
def test_equal_files_are_listed_whatever_they_are():
    for data in (SHIPPED.encode(), b"def f():\n    return 1\n", b"no Python (", b"\xff\xfe"):
        assert equal(anna=data, ben=data, cleo=b"x = 1\n") == [("anna", "ben")]
        assert groups(anna=data, ben=data) == []
    crowd = {f"s{i}": SHIPPED.encode() for i in range(5)}
    assert equal(**crowd) == [tuple(crowd)]


def test_line_ends_make_no_difference():
    assert equal(anna=work(*own(1)), ben=work(*own(1)).replace(b"\n", b"\r\n")) == [
        ("anna", "ben")]


def test_a_stage_that_nobody_began_is_nobodys():
    blank = starter.blank(SHIPPED).encode()
    assert compared(anna=blank, ben=blank) == Alike([], [], {}, [])
    assert equal(anna=b"", ben=b"") == []


# --------------------------------------------------------------- the published solution
def test_how_much_is_as_published_is_said_of_everyone():
    renamed = SHIPPED.replace("acc", "total").replace("    # END SOL", "    pass\n    # END SOL")
    found = compared(anna=SHIPPED.encode(), ben=renamed.encode(), cleo=work(*own(1))).published
    lines, of = found["anna"]
    assert lines == of > 20 and found["ben"] == (lines, of) and found["cleo"] == (0, 18)


def test_a_published_solution_under_other_names_is_no_pair():
    assert groups(anna=SHIPPED.encode(), ben=SHIPPED.replace("acc", "total").encode()) == []


@pytest.mark.parametrize(("count", "listed"), [(4, []), (15, [("anna", "ben", 15, [3])])])
def test_published_lines_beside_own_ones_in_common_do_not_count(count, listed):
    end = "    # END SOLUTION 3.5"
    text = SHIPPED.replace(end, "\n".join(f"    {line}" for line in own(1, count)) + f"\n{end}")
    assert groups(anna=text.encode(), ben=text.replace("acc", "total").encode()) == listed


def test_a_published_step_in_a_file_of_another_stage_is_as_published():
    moved = SHIPPED.replace("Step 3.", "Step 4.").replace("SOLUTION 3.", "SOLUTION 4.")
    renamed = moved.replace("acc", "total").encode()
    found = alike([Submitted("anna", "anna", {4: moved.encode()}),
                   Submitted("ben", "ben", {4: renamed})], [4])
    assert found.groups == [] and found.published["ben"] == found.published["anna"]
    assert found.published["anna"][0] == found.published["anna"][1] > 20


def test_lines_outside_of_the_regions_and_carried_ones_do_not_count():
    outside = ("\n".join(own(1)) + "\n").encode()
    assert groups(anna=outside + work("a = 1"), ben=outside + work("b = 2")) == []
    carried = work(*own(1)).replace(b"-- One.", b"-- Carried over: step 1.2.")
    assert groups(anna=carried, ben=carried + b"b = 2\n") == []


@pytest.mark.parametrize(("data", "why"), [
    (b"def f():\n    return 1\n", "no markers"), (b"", "no markers"),
    (b"\xff\xfe", "no Python, or damaged markers"),
    (b"# BEGIN SOLUTION 3.1\n", "no Python, or damaged markers"),
    (b"# coding: x\n", "no Python, or damaged markers"),
    (work("x = " + "(" * 5000 + ")" * 5000), "no Python, or damaged markers"),
    (work("x = " + "-" * 900 + "1"), "no Python, or damaged markers"),
    (work("x = 1" + "0" * 5000), "no Python, or damaged markers")])
def test_what_cannot_be_compared_is_said(data, why):
    found = compared(anna=data, ben=work(*own(1)))
    assert found.groups == [] and found.incomparable == [
        {"student": "anna", "stages": [3], "why": why}]
