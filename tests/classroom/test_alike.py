"""Who wrote the same is listed, whatever it is called there; what the course gave is not."""

import pytest

from classroom.alike import alike
from classroom.gather import Submitted
from grader import starter
from grader.assignment import ROOT

SHIPPED = (ROOT / "problem_3.py").read_text("utf-8")


def work(*lines: str, step: str = "3.5") -> bytes:
    rows = "".join(f"    {line}\n" for line in lines)
    return (f"def f():\n    # Step {step} -- One.\n    # BEGIN SOLUTION {step}\n{rows}"
            f"    # END SOLUTION {step}\n").encode()


def own(seed: int, count: int = 18, name: str = "x") -> list[str]:
    """Lines that nobody else writes."""
    return [f"{name}{i} = tl.sum({name} * {seed * 100 + i}, axis={i % 2})" for i in range(count)]


def pairs(**files: bytes) -> list[tuple]:
    found = alike([Submitted(name, name, {3: data}) for name, data in files.items()], [3])
    return [(*each["students"], each["lines"], each["stages"]) for each in found]


def test_the_same_lines_under_other_names_and_spacing_are_found():
    renamed = [line.replace(" = ", "=") + "  # mine" for line in own(1, name="total")]
    assert pairs(anna=work(*own(1)), ben=work("y = 7 // 3", *renamed), cleo=work(*own(2))) == [
        ("anna", "ben", 18, [3])]


def test_fewer_than_fifteen_lines_are_not_listed():
    assert pairs(anna=work(*own(1, 14)), ben=work(*own(1, 14))) == []
    assert pairs(anna=work(*own(1, 15)), ben=work(*own(1, 15))) == [("anna", "ben", 15, [3])]


def test_what_more_than_three_have_is_the_courses():
    three = {name: work(*own(1)) for name in ("anna", "ben", "cleo")}
    assert len(pairs(**three)) == 3
    assert pairs(**three, dora=work(*own(1))) == []


def test_the_shipped_solution_and_the_starter_are_nobodys():
    assert "3.5" in SHIPPED
    blank = starter.blank(SHIPPED).encode()
    assert pairs(anna=SHIPPED.encode(), ben=SHIPPED.replace("acc", "total").encode()) == []
    assert pairs(anna=blank, ben=blank) == []


def test_lines_outside_of_the_regions_and_carried_ones_do_not_count():
    outside = ("\n".join(own(1)) + "\n").encode()
    assert pairs(anna=outside + work("a = 1"), ben=outside + work("b = 2")) == []
    carried = work(*own(1)).replace(b"-- One.", b"-- Carried over: step 1.2.")
    assert pairs(anna=carried, ben=carried) == []


@pytest.mark.parametrize("data", [b"\xff\xfe", b"", b"# BEGIN SOLUTION 3.1\n", b"# coding: x\n"])
def test_what_cannot_be_read_is_left_out(data):
    assert pairs(anna=data, ben=data) == []
