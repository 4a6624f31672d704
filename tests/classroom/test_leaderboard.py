"""Boards of what passed and was timed, under aliases; the first ones can be run again."""

import csv
import json
import re

import pytest

from classroom import __main__ as program
from classroom import leaderboard, machine
from classroom.machine import Machine
from classroom.reports import as_json
from tests.classroom.classes import AS, NOON, grade, make, obedient

HERE = Machine(("0",), "a GPU", 1, 2, 2.0)


def entry(student: str, ms: float, spread: float = 0.02, **more) -> dict:
    return {"student": student, "key": student, "stage": 4, "title": "Causal", "gpu": "H200",
            "sha256": student, "case": "standard/one", "ms": ms, "spread_ms": spread,
            "naive_ms": 5.0, "sdpa_ms": 0.5, "peak_mib": 2.0, "naive_peak_mib": 9.0} | more


def ranked(*found: dict) -> list[list[tuple]]:
    made = leaderboard.boards(list(found), {each["student"]: each["student"] for each in found}, {})
    return [[(row["place"], row["alias"]) for row in board["rows"]] for board in made]


@pytest.fixture
def graded(monkeypatch, tmp_path):
    """Results of a class on a GPU that is made up."""
    asked = obedient(monkeypatch, tmp_path)
    make(tmp_path / "class", {"anna": {2: "pass # a", 3: "wrong"}, "ben": {2: "pass # moves"},
                              "<i>cleo</i>": {4: "pass # c"}} | {"dora": {2: "not_started"}})
    reports = grade(tmp_path / "class", tmp_path / "out", gpus=("0",))
    (tmp_path / "out/students").mkdir()
    for key in ("anna", "ben", "dora"):
        (tmp_path / f"out/students/{key}.json").write_bytes(as_json(reports[key]))
    monkeypatch.setattr(machine, "look", lambda device, jobs: HERE)
    return tmp_path / "out", asked


# ------------------------------------------------------------------------- places
def test_the_fastest_is_first():
    assert ranked(entry("slow", 2.0), entry("fast", 1.0)) == [[(1, "fast"), (2, "slow")]]


def test_who_is_within_the_spreads_of_the_first_of_a_place_shares_it():
    found = [entry("a", 1.0), entry("b", 1.015), entry("c", 1.025), entry("d", 1.04)]
    assert ranked(*found) == [[(1, "a"), (1, "b"), (3, "c"), (3, "d")]]


def test_gpus_and_stages_have_boards_of_their_own():
    assert len(ranked(entry("a", 1.0), entry("b", 1.0, gpu="A100"), entry("c", 1.0, stage=5))) == 3


def test_where_sdpa_computes_something_else_there_is_no_ratio():
    (board,) = leaderboard.boards([entry("a", 2.0, sdpa_ms=None)], {"a": "x"}, {})
    assert board["rows"][0]["over_sdpa"] is None and board["rows"][0]["over_naive"] == 2.5


# ------------------------------------------------------------------------ aliases
def test_an_alias_stays_a_students_and_new_ones_are_added(tmp_path):
    first = leaderboard.read_aliases(tmp_path, ["anna", "ben"])
    text = (tmp_path / "aliases.csv").read_text().replace(first["ben"], "The Tile")
    (tmp_path / "aliases.csv").write_text(text)
    again = leaderboard.read_aliases(tmp_path, ["anna", "ben", "cleo"])
    assert again["anna"] == first["anna"] and again["ben"] == "The Tile"
    assert len(set(again.values())) == 3


def test_five_hundred_students_have_an_alias_each(tmp_path):
    names = [f"s{i}" for i in range(500)]
    assert len(set(leaderboard.read_aliases(tmp_path, names).values())) == 500


def test_neither_a_name_nor_an_alias_is_a_formula(tmp_path):
    names = ["=SUM(1)", "+x", "'-y", "'z", "@w"]
    first = leaderboard.read_aliases(tmp_path, names)
    text = (tmp_path / "aliases.csv").read_text().replace(first["@w"], "=2+2")
    (tmp_path / "aliases.csv").write_text(text)
    assert leaderboard.read_aliases(tmp_path, names) == first | {"@w": "=2+2"}
    assert leaderboard.read_aliases(tmp_path, names) == first | {"@w": "=2+2"}
    with open(tmp_path / "aliases.csv", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


@pytest.mark.parametrize(("text", "says"), [
    ("", "got nothing"), ("name,alias\na,x\n", "got name, alias"), ('student,alias\n"a', "table"),
    ("student,alias\na,x\nb,x\n", "got one twice")])
def test_a_table_that_has_no_aliases_is_refused(tmp_path, text, says):
    (tmp_path / "aliases.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        leaderboard.read_aliases(tmp_path, ["a"])
    assert (tmp_path / "aliases.csv").read_text() == text


# ----------------------------------------------------------------------- the page
def test_only_what_passed_is_on_the_page_and_no_name(graded, tmp_path, capsys):
    results, _ = graded
    assert program.main(["leaderboard", str(results), "--out", str(tmp_path / "board")]) == 0
    page = (tmp_path / "board/index.html").read_text("utf-8")
    assert not re.search("anna|ben|dora", page) and page.count('<th scope="row">') == 2
    assert "P2" in page and "P3" not in page
    assert not re.search(r"https?://|src=|@import|url\(|<script", page)


def test_an_alias_is_shown_as_text():
    made = leaderboard.boards([entry("a", 1.0)], {"a": "<img src=x>"}, {})
    assert "<img" not in leaderboard.page(made, NOON).decode()


@pytest.mark.parametrize(("row", "count"), [("ben,-", 1), ("ben,-\nanna,-", 0)])
def test_who_has_a_dash_for_an_alias_is_on_no_board(graded, tmp_path, capsys, row, count):
    results, asked = graded
    (results / "aliases.csv").write_text(f"student,alias\n{row}\n")
    for options in ((), ("--verify", "1", *AS)):
        before = len(asked())
        assert program.main(["leaderboard", str(results), "--out", str(tmp_path / "board"),
                             *options]) == 0
        page = (tmp_path / "board/index.html").read_text("utf-8")
        assert page.count('<th scope="row">') == count
        assert len(asked()) - before == count * bool(options), "nor is their file run again"


# -------------------------------------------------------------------- run again
def test_the_first_ones_are_run_again_from_other_bytes_and_what_moved_is_said(
        graded, tmp_path, capsys):
    results, asked = graded
    before = len(asked())
    board = ["leaderboard", str(results), "--out", str(tmp_path / "board"), "--verify", "1", *AS]
    assert program.main(board) == 0
    again = asked()[before:]
    assert sorted(re.sub("[0-9a-f]{16}", "NEW", line) for line in again) == [
        "2 pass # a # NEW True 0", "2 pass # moves # NEW True 0"]
    assert "P2 of ben on a GPU: 0.5000 ms, again pass, 0.7000 ms" in capsys.readouterr().out
    verified = json.loads((results / "verified.json").read_text())
    assert len(verified) == 2 and {each["outcome"] for each in verified.values()} == {"pass"}
    page = (tmp_path / "board/index.html").read_text("utf-8")
    assert page.count("pass, 0.5000 ms") == page.count("pass, 0.7000 ms") == 1
    assert not list(results.glob(".verify-*"))
