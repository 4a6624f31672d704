"""Hints climb three rungs and remember where they stood."""

from types import SimpleNamespace

import pytest

from grader.assignment import hints
from grader.course.stages import STAGES

TOML = """
["4.2"]
nudge = "Which keys come after the query?"
formula = "keep = j <= i"
near_code = "compare offs_n[None, :] with offs_m[:, None]"

["10.1"]
nudge = "a"
formula = "b"
near_code = "c"
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "hints.toml").write_text(TOML, "utf-8")
    return tmp_path / "hints.toml", tmp_path / "state" / "hints.json"


def test_each_asking_climbs_one_rung_and_stays_on_the_last(files):
    told = [hints.next_hint("4.2", *files) for _ in range(4)]
    assert "Which keys" in told[0] and "hint 1 of 3" in told[0]
    assert "j <= i" in told[1] and "offs_n" in told[2] and "offs_n" in told[3]


def test_steps_are_remembered_apart(files):
    hints.next_hint("4.2", *files)
    assert "hint 1 of 3" in hints.next_hint("10.1", *files)


@pytest.mark.parametrize("step, known", [("10.2", "10.1"), ("9.9", "4.2"), ("p4", "4.2")])
def test_an_unknown_step_is_told_those_of_its_problem(files, step, known):
    with pytest.raises(hints.UnknownStep, match=f"want a step such as {known}; got {step}"):
        hints.next_hint(step, *files)


def test_a_damaged_state_file_means_starting_again(files):
    files[1].parent.mkdir()
    files[1].write_text('["not", "a", "table"', "utf-8")
    assert "hint 1 of 3" in hints.next_hint("4.2", *files)


def test_of_a_copied_step_the_hints_of_its_origin_are_offered():
    stage = SimpleNamespace(number=5, origins={"5.1": "4.1"})
    said = hints.look_at(stage, "5.1")
    assert said.startswith("look at step 5.1, copied from 4.1; ") and said.endswith("--hint 4.1")
    assert hints.look_at(stage, "5.2", "5.3").startswith("look at step 5.2 or 5.3; ")
    assert hints.look_at(STAGES[9], "9.11").endswith("autograder_optional.py --hint 9.11")


@pytest.mark.parametrize("step, chapter", [("4.2", "Stage 4"), ("10.1", "Stage 10"),
                                           ("W.5", "Warm-ups")])
def test_each_hint_says_which_it_is_and_the_last_where_to_go_on(files, step, chapter):
    files[0].write_text(TOML + TOML.replace("4.2", "W.5").replace("10.1", "11.1"), "utf-8")
    first, second, last = (hints.next_hint(step, *files) for _ in range(3))
    assert first.startswith(f"Step {step}, hint 1 of 3 (nudge)\n")
    assert second.startswith(f"Step {step}, hint 2 of 3 (formula)\n")
    assert last.startswith(f"Step {step}, hint 3 of 3 (near code)\n")
    assert first.endswith("Ask again for more.") and second.endswith("Ask again for more.")
    assert f'in "{chapter}": README.md' in last


def test_where_nothing_can_be_written_a_hint_is_shown_and_not_remembered(files, monkeypatch):
    def full(*what):
        raise OSError("read-only file system")

    monkeypatch.setattr(hints, "replace", full)
    assert "hint 1 of 3" in hints.next_hint("4.2", *files)
    assert "hint 1 of 3" in hints.next_hint("4.2", *files)


def test_steps_of_the_course_are_in_order_and_the_likeliest_has_the_hint():
    assert hints.look_at(STAGES[8], "8.17", "8.9", "8.15", marked=False) == (
        "In this course's problem_8.py, this is done in step 8.9, 8.15 or 8.17. For a hint: "
        "python autograder_optional.py --hint 8.17")
