"""The JSON file: in the published format, and whole at every moment."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from grader.host import files
from grader.report import results
from grader.report.results import WRONG, Check, Run, StageResult, StepCheck, as_dict, told


def run() -> Run:
    checks = [Check("robust/HQ8-HKV2-N257-D64-W100", "robust", "wrong",
                    errors={"o": {"fro": math.nan, "fro_limit": 0.006, "row": math.inf,
                                  "row_limit": 0.03}},
                    where="rows 100-256", what="o differs", advice="this")]
    result = StageResult(6, "Sliding window", 50, "wrong", 35.0, "abc", 4.2, checks)
    return Run("cpu", "2.13", "3.7", 1234, "0.2.0+abc", [result])


def test_the_file_has_the_published_fields(tmp_path):
    results.write(run(), tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert data["grader"] == "0.2.0+abc"
    assert {"format", "grader", "device", "torch", "triton", "seed", "stages"} == set(data)
    stage = data["stages"][0]
    assert {"stage", "title", "outcome", "points", "max_points", "earned", "sha256", "seconds",
            "checks", "benchmark"} <= set(stage)
    assert set(stage["checks"][0]) == {"name", "group", "outcome", "errors", "where", "diagnosis",
                                       "message", "not_checked"}
    assert stage["checks"][0]["message"] == "o differs\ntip: this"


def test_every_field_of_the_file_holds_what_its_name_says():
    skipped = Check("a", "standard", "skipped", diagnosis={"id": "x"}, what="late").excused()
    result = StageResult(
        6, "Sliding window", 50, "wrong", 35.0, "abc", 4.2004, [skipped], {"ms": 1.5}, {"k@1"},
        ("network",), "a sentence", "a trace", [{"id": "6.1", "light": "right"}], ["standard"],
        ["a remark"])
    found = as_dict(Run("cuda", "2.13", "3.7", 1234, "0.2.0+abc", [result]))
    stage, = found.pop("stages")
    assert found == {"format": 1, "grader": "0.2.0+abc", "device": "cuda", "torch": "2.13",
                     "triton": "3.7", "seed": 1234}
    check, = stage.pop("checks")
    assert stage == {
        "stage": 6, "title": "Sliding window", "outcome": "wrong", "points": 35.0, "max_points": 50,
        "earned": ["standard"], "sha256": "abc", "seconds": 4.2, "message": "a sentence",
        "remarks": ["a remark"], "detail": "a trace", "confined": ["network"],
        "steps": [{"id": "6.1", "light": "right"}], "benchmark": {"ms": 1.5}}
    assert check == {"name": "a", "group": "standard", "outcome": "skipped", "errors": {},
                     "where": "", "diagnosis": None, "message": "late", "not_checked": True}


def test_numbers_json_cannot_say_become_null(tmp_path):
    results.write(run(), tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text("utf-8")
    errors = json.loads(text)["stages"][0]["checks"][0]["errors"]["o"]
    assert errors["fro"] is None and errors["row"] is None and errors["row_limit"] == 0.03
    assert "NaN" not in text and "Infinity" not in text


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    results.write(run(), path)
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.write(Run("x", "x", None, 0, "x"), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


RED = {"id": "4.8", "light": "wrong"}
GREEN = {"id": "4.2", "light": "right"}


def failed(*checks: Check, steps=(), outcome="wrong") -> StageResult:
    return StageResult(4, "x", 100, outcome, checks=list(checks), steps=list(steps))


def test_to_be_fixed_is_a_red_step_or_else_what_the_first_case_points_to():
    passed = Check("a", "standard", "pass")
    wrong = Check("b", "standard", "wrong", diagnosis={"id": "x", "step": "4.2 or 4.3"})
    assert failed(passed, wrong, steps=[GREEN, RED]).to_fix == "fix step 4.8"
    assert failed(passed, wrong, steps=[GREEN]).to_fix == "look at step 4.2 or 4.3"
    assert failed(passed, Check("b", "standard", "wrong")).to_fix == ""


def test_wasted_tiles_point_to_their_step_and_what_decides_nothing_to_none():
    wasted = Check("needless-work", "walk", "needless work", steps=("4.2",))
    other = Check("a", "beyond", "wrong", diagnosis={"id": "x", "step": "4.9"})
    skipped = Check("a", "robust", "skipped", diagnosis={"id": "x", "step": "4.9"})
    assert failed(other, skipped, wasted, outcome="pass").to_fix == "look at step 4.2"
    assert failed(other, skipped).to_fix == ""


def test_the_first_wrong_case_that_counts_is_the_one_to_run_again():
    def wrong(name, group="robust", again=True):
        return Check(name, group, "wrong", again=f"... --case {name}" * again)

    assert failed(wrong("a", again=False), wrong("b", "beyond"), wrong("c"),
                  wrong("d")).first_wrong == "c"
    assert failed(Check("a", "robust", "wrong")).first_wrong == ""
    assert failed(Check("a", "robust", "crashed"), wrong("c")).first_wrong == ""


@pytest.mark.parametrize("check, costs", [
    (Check("a", "robust", "pass"), False), (Check("a", "robust", "wrong"), True),
    (Check("a", "robust", "skipped"), True), (Check("a", "robust", "wrong").excused(), False)])
def test_what_was_not_checked_costs_no_points(check, costs):
    assert check.stands != costs


def test_a_check_that_fails_says_only_what_it_failed_by():
    before = Check("a", "robust", "pass", what="x", place="row 1", advice="y", look_at="z",
                   again="python", steps=("4.2",))
    check = before.fail("wrong", "o is off.", "it is.", advice="this", id="race", step="4.8")
    assert check.lines == ("o is off.", "it is.", "tip: this")
    assert check.diagnosis == {"id": "race", "kind": "observed", "text": "o is off.", "step": "4.8"}
    assert check.points_to == "4.8" and before.fail("wrong", "no.").diagnosis is None


@pytest.mark.parametrize("points, doubtful, said", [
    (100, False, "All tests pass, but this step does not do what its comment asks. It costs no "
                 "points: take it as advice."),
    (70, True, "All tests that ran pass, but this step does not do what its comment asks.")])
def test_a_red_step_of_a_stage_that_passes_costs_nothing_if_all_tests_ran(points, doubtful, said):
    result = failed(steps=[RED], outcome="pass")
    result.points = points
    assert (result.doubtful, result.passed_with_red) == (doubtful, said)
    green = failed(steps=[GREEN], outcome="pass")
    assert (green.doubtful, green.passed_with_red) == (False, "")


def test_where_a_case_fails_it_is_not_said_that_all_steps_are_right():
    assert failed(steps=[GREEN]).steps_right == "every step is right on its own"
    assert failed(steps=[GREEN, RED]).steps_right == "1 of 2 steps right"
    unlit = {"id": "4.9", "light": "none"}
    assert failed(steps=[GREEN, RED, unlit]).steps_right == "1 of 3 steps right"
    assert failed(steps=[unlit]).steps_right == ""
    assert failed(steps=[GREEN], outcome="rejected").steps_right == "1 of 1 steps right"


def test_a_red_step_of_a_stage_that_passes_stays_red_in_the_file():
    step = RED | {"mistake": None, "text": "N=40:"}
    run = Run("cpu", "", None, 1, "", [failed(steps=[step], outcome="pass")])
    written = as_dict(run)["stages"][0]["steps"][0]
    assert written["light"] == "wrong"
    assert "does not do what its comment asks. N=40:" in written["text"]


def test_of_too_much_to_say_what_tells_and_what_to_do_stay():
    seen = [f"Sentence {i}. " + "It goes on and on. " * 9 for i in range(6)]
    check = Check("a", "standard", "wrong", what="o differs.", place="row 1", seen=(*seen,),
                  advice="this", look_at="look at step 4.2", again="python autograder.py")
    assert [line.partition(". ")[0] for line in check.lines] == [
        "o differs.", "where: row 1.", "Sentence 0", "Sentence 1", "tip: this",
        "look at step 4.2", "again: python autograder.py"]


KNOWN = StepCheck("4.6", WRONG, "strictly-causal", "N=40", ("Query 1 does not see key 1.",),
                  "visible", "hidden", "a query does not see its own key",
                  "query i sees keys j <= i", "problem_4.py:77",
                  "`<`. The comparison operator is wrong.")


def test_what_is_said_of_a_red_step_comes_in_parts_and_as_one_text():
    step = KNOWN.as_dict()
    assert (step["given"], step["want"], step["got"]) == ("N=40", "visible", "hidden")
    assert step["text"].splitlines() == [
        "problem_4.py:77: a query does not see its own key.",
        "`<`. The comparison operator is wrong.",
        "Query 1 does not see key 1. Given: N=40.", "the rule: query i sees keys j <= i."]
    assert set(StepCheck("4.6", "blank").as_dict()) == {"id", "light", "mistake", "text"}


@pytest.mark.parametrize("more, said", [
    ({"says": ""}, ["problem_4.py:77: `<`. The comparison operator is wrong.",
                    "Query 1 does not see key 1. Given: N=40."]),
    ({"says": "", "change": ""}, ["problem_4.py:77: Query 1 does not see key 1. Given: N=40."]),
    ({"change": "The mistake is in this line."}, [
        "problem_4.py:77: a query does not see its own key.",
        "Query 1 does not see key 1. Given: N=40."]),
    ({"says": "", "change": "`tl.load(p)`. mask= is missing or wrong.", "seen": (
        "problem_4.py:77:9: tl.load reads 3 numbers outside every tensor: tl.load(p)\n"
        "They are in rows 5-7 of the (16, 32) tile. Either the mask is wrong, or more.",)}, [
        "problem_4.py:77: `tl.load(p)`. mask= is missing or wrong.",
        "tl.load reads 3 numbers outside every tensor.\n"
        "They are in rows 5-7 of the (16, 32) tile. Given: N=40."]),
    ({"says": "", "change": "`tl.load(p)`. mask= is missing or wrong.", "seen": (
        "tl.load reads 3 numbers outside every tensor: tl.load(p)\n"
        "Either the mask is missing or wrong, or more.",)}, [
        "problem_4.py:77: `tl.load(p)`. mask= is missing or wrong.",
        "tl.load reads 3 numbers outside every tensor. Given: N=40."]),
    ({"says": "", "change": "`p - m[None, :]`. `m[None, :]` is a row, but a column is needed.",
      "seen": ("Incompatible dimensions: 32 and 16. Try: make the shapes of these two tiles match: "
               "x[:, None] is a column, x[None, :] a row",)}, [
        "problem_4.py:77: `p - m[None, :]`. `m[None, :]` is a row, but a column is needed.",
        "Incompatible dimensions: 32 and 16. Given: N=40."])])
def test_nothing_is_said_twice_beside_the_change_that_has_it(
        more, said):
    assert list(replace(KNOWN, rule="", **more).lines) == said


@pytest.mark.parametrize("known, said", [
    (KNOWN, "a query does not see its own key"),
    (replace(KNOWN, says=""), "problem_4.py:77: `<`. The comparison operator is wrong"),
    (replace(KNOWN, says="", change=""), "Query 1 does not see key 1"),
    (StepCheck("4.6", WRONG), "")])
def test_a_red_step_in_one_sentence_is_its_mistake_or_its_line_or_what_was_seen(known, said):
    assert told(known.as_dict()) == said


@pytest.mark.parametrize(("outcomes", "code"), [
    (["pass", "pass"], 0), (["pass", "wrong"], 1), (["skipped"], 1), (["not_started"], 1), ([], 1),
    (["wrong", "grader_fault"], 3)])
def test_only_a_run_whose_stages_all_pass_ends_with_0(outcomes, code):
    stages = [StageResult(3, "x", 200, outcome) for outcome in outcomes]
    assert Run("cpu", "2.13", "3.7", 1, "", stages).exit_code() == code


def test_a_stage_waits_for_its_student_where_only_blank_steps_end_it():
    blank = Check("b", "standard", "crashed", diagnosis={"id": "blank-step"})
    other = Check("c", "standard", "crashed", diagnosis={"id": "a-step"})
    right = Check("a", "standard", "pass")
    assert failed(right, blank, outcome="crashed").waits
    assert not failed(right, other, outcome="crashed").waits
    assert not failed(blank, outcome="wrong").waits and not failed(outcome="crashed").waits


def test_nan_was_read_beside_the_inputs_only_where_there_was_some():
    nan, off = ({"o": {"fro": fro}} for fro in (math.nan, 0.5))
    assert results.read_beside(Check("N65-guarded", "robust", "wrong", errors=nan))
    for other in (Check("N65-guarded", "robust", "wrong", errors=off),
                  Check("N65", "robust", "wrong", errors=nan),
                  Check("N65-guarded", "robust", "crashed", errors=nan)):
        assert not results.read_beside(other)


@pytest.mark.parametrize(("state", "outcome"), [
    ("syntax_error", "crashed"), ("missing", "missing"), ("not_started", "not_started")])
def test_a_file_that_cannot_run_is_settled_by_reading_it(state, outcome):
    step = SimpleNamespace(id="4.2")
    file = SimpleNamespace(state=state, located="problem_4.py:7: why", sha256="abc", steps=[step],
                           blank_new=["4.2"], blank_steps=["4.2"], left_raises={},
                           blank_carried=["4.3", "4.4"])
    result = StageResult(4, "x", 100)
    stage = SimpleNamespace(needs_triton=False, number=4)
    assert results.settled_by_reading(stage, file, result)
    assert (result.outcome, result.sha256) == (outcome, "abc")
    assert result.sentence.startswith("problem_4.py:7: why")
    said = "; still to write: 4.2. The other 2 steps are copies of earlier ones: " \
        "python -m grader.carry 4 fills them in."
    assert (said in result.sentence) is (state == "not_started")
    file.state = "ready"
    assert not results.settled_by_reading(stage, file, result)


def test_steps_of_a_file_that_is_not_run_are_blank_or_hold_a_raise_or_neither():
    file = SimpleNamespace(steps=[SimpleNamespace(id=id) for id in ("4.1", "4.2", "4.3")],
                           left_raises={"4.2": "your code is there; delete line 9."},
                           blank_steps=("4.1", "4.2"))
    blank, left, unlit = results.unlit(file)
    assert (blank["light"], unlit["light"]) == ("blank", "none")
    assert (left["light"], left["mistake"]) == ("wrong", "raise-left")
    assert left["text"] == "your code is there; delete line 9."


@pytest.mark.parametrize(("needs_triton", "settled"), [(True, True), (False, False)])
def test_without_triton_only_stages_that_need_it_are_skipped(monkeypatch, needs_triton, settled):
    monkeypatch.setattr(results, "no_triton", lambda: "no Triton")
    file = SimpleNamespace(state="ready", sha256="abc", steps=[], left_raises={})
    result = StageResult(4, "x", 100, "wrong")
    stage = SimpleNamespace(needs_triton=needs_triton)
    assert results.settled_by_reading(stage, file, result) == settled
    assert (result.outcome, result.sentence) == (
        ("skipped", "no Triton") if settled else ("wrong", ""))
