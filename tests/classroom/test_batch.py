"""A class is graded once: at once, what is doubtful again alone, and in the end timed."""

import json
import os
import signal
import threading
import time

import pytest

from classroom.store import Store, Unit
from grader.assignment.record import ROOT, sha256
from tests.classroom.classes import SETTINGS, grade, make, obedient, outcomes


@pytest.fixture
def asked(monkeypatch, tmp_path):
    return obedient(monkeypatch, tmp_path)


def test_every_outcome_comes_back_as_the_autograder_gave_it(asked, tmp_path):
    words = ["pass", "wrong", "crashed", "not_started", "rejected", "skipped"]
    students = {f"s{i}": {2: word, 3: "pass"} for i, word in enumerate(words)}
    reports = grade(make(tmp_path / "class", students), tmp_path / "out")
    assert [outcomes(report)[2] for report in reports.values()] == words
    assert all(outcomes(report)[3] == "pass" for report in reports.values())


def test_equal_files_are_graded_once(asked, tmp_path):
    make(tmp_path / "class", {f"s{i}": {2: "pass", 3: f"wrong # {i % 2}"} for i in range(6)})
    reports = grade(tmp_path / "class", tmp_path / "out", jobs=3)
    assert len(asked()) == 3
    assert all(outcomes(report) == {2: "pass", 3: "wrong"} for report in reports.values())


def test_a_record_names_no_folder_of_this_machine(asked, tmp_path):
    make(tmp_path / "class", {"anna": {2: "dies"}})
    stage = grade(tmp_path / "class", tmp_path / "out")["anna"]["stages"][1]
    unit = Unit(2, stage["sha256"])
    with Store(tmp_path / "out", SETTINGS) as store:
        store.put(unit, {"stage": stage | {"detail": f"in {ROOT}/grader/cli.py and in "
                         f"{store.working}/1/problem_2.py"}})
        assert store.known[unit]["stage"]["detail"] == (
            "in grader/cli.py and in 1/problem_2.py")
        assert str(tmp_path) not in (store.graded / store.name(unit)).read_text()


def test_what_is_graded_is_not_graded_again_and_what_changed_is(asked, tmp_path):
    make(tmp_path / "class", {"anna": {2: "pass", 3: "wrong"}, "ben": {2: "wrong"}})
    before = grade(tmp_path / "class", tmp_path / "out")
    assert grade(tmp_path / "class", tmp_path / "out") == before
    assert len(asked()) == 3
    make(tmp_path / "class", {"anna": {3: "pass"}})
    assert outcomes(grade(tmp_path / "class", tmp_path / "out")["anna"]) == {2: "pass", 3: "pass"}
    assert len(asked()) == 4, "what is graded as stage 2 is not graded as stage 3"


def test_another_grader_or_other_settings_grade_anew(asked, tmp_path):
    from dataclasses import replace

    make(tmp_path / "class", {"anna": {2: "pass"}})
    grade(tmp_path / "class", tmp_path / "out")
    unit = Unit(2, sha256(b"pass"))
    for settings in (SETTINGS, replace(SETTINGS, grader="0.3.1+x"),
                     replace(SETTINGS, timeout=5.0), replace(SETTINGS, device="cuda")):
        with Store(tmp_path / "out", settings) as store:
            store.read(unit)
            assert (unit in store.known) == (settings == SETTINGS)


def test_a_timeout_is_believed_only_when_it_comes_again_alone(asked, tmp_path):
    make(tmp_path / "class", {"busy": {2: "timeout pass"}, "hangs": {2: "timeout"}})
    reports = grade(tmp_path / "class", tmp_path / "out")
    assert outcomes(reports["busy"]) == {2: "pass"} and outcomes(reports["hangs"]) == {2: "timeout"}
    assert reports["hangs"]["points"] == 0.0
    assert len(asked()) == 4
    grade(tmp_path / "class", tmp_path / "out")
    assert len(asked()) == 4, "it was confirmed"


@pytest.mark.parametrize("fault", ["grader_fault", "dies"])
def test_a_fault_of_ours_is_tried_again_and_then_blocked_and_never_scored(asked, tmp_path, fault):
    make(tmp_path / "class", {"once": {2: f"{fault} pass"}, "always": {2: fault, 3: "pass"}})
    reports = grade(tmp_path / "class", tmp_path / "out")
    assert outcomes(reports["once"]) == {2: "pass"}
    assert outcomes(reports["always"]) == {2: "grader_fault", 3: "pass"}
    assert reports["always"]["points"] is None and reports["always"]["unsettled"] == [2]
    assert len([line for line in asked() if line.startswith(f"2 {fault} False")]) == 3
    if fault == "dies":
        message = next(s for s in reports["always"]["stages"] if s["stage"] == 2)["message"]
        assert "exit code 5; something of ours broke" in message


@pytest.mark.parametrize("text, version, says", [
    ("usage", SETTINGS.grader, "want another account"),
    ("pass", "0.3.1+new", "want one grader for all; got 0.3.1[+]new")])
def test_an_autograder_that_refuses_its_arguments_or_is_replaced_ends_all_of_it(
        asked, tmp_path, monkeypatch, text, version, says):
    monkeypatch.setenv("GRADER", version)
    make(tmp_path / "class", {"anna": {2: text}})
    with pytest.raises(ValueError, match=says):
        grade(tmp_path / "class", tmp_path / "out")
    assert not (tmp_path / "out" / ".working").exists()
    assert not list((tmp_path / "out/graded").iterdir())


def test_on_gpus_what_passed_is_timed_in_a_lane_of_its_own(asked, tmp_path):
    make(tmp_path / "class", {f"s{i}": {2: f"pass # {i}", 3: f"wrong # {i}"} for i in range(4)})
    reports = grade(tmp_path / "class", tmp_path / "out", gpus=("4", "7"), jobs=4)
    stage = reports["s0"]["stages"][1]
    assert stage["benchmark"]["ms"] == 0.5 and stage["timing"]["device"] == "a GPU"
    rows = [line.split() for line in asked()]
    timed = [row for row in rows if row[-2] == "True"]
    assert [row[0] for row in timed] == ["2"] * 4 and rows[-4:] == timed
    assert {row[-1] for row in rows} == {"4", "7"}
    grade(tmp_path / "class", tmp_path / "out", gpus=("4", "7"))
    assert len(asked()) == len(rows)


@pytest.mark.parametrize("timing, outcome, points, last", [
    ("rejected", "rejected", 0.0, "timing/one"),  # wrong while the clock ran
    ("wrong", "wrong", 70.0, "timing/one"),  # only partly
    ("dies", "pass", 100.0, "standard/one")])
def test_a_timing_may_decide_and_one_that_fails_leaves_the_verdict(asked, tmp_path, timing, outcome,
                                                                  points, last):
    make(tmp_path / "class", {"anna": {2: f"pass {timing}"}})
    stage = grade(tmp_path / "class", tmp_path / "out", gpus=("0",))["anna"]["stages"][1]
    assert (stage["outcome"], stage["points"], len(asked())) == (outcome, points, 2)
    assert stage["checks"][-1]["name"] == last
    assert (stage["benchmark"] is None) == ("exit code 5" in stage["timing"]["message"]) == (
        timing == "dies")


def test_a_damaged_record_is_graded_again(asked, tmp_path):
    make(tmp_path / "class", {"anna": {2: "pass"}})
    grade(tmp_path / "class", tmp_path / "out")
    (record,) = (tmp_path / "out" / "graded").iterdir()
    whole = json.loads(record.read_bytes())
    for damage in ("", "{", "[]", '{"format": 1}'):
        record.write_text(damage)
        grade(tmp_path / "class", tmp_path / "out")
        again = json.loads(record.read_bytes())
        assert again["stage"] == whole["stage"]


def test_an_interruption_ends_every_child_and_keeps_what_they_finished(asked, tmp_path):
    make(tmp_path / "class", {f"s{i}": {2: f"pass # {i}", 3: f"hangs # {i}"} for i in range(2)})
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        while sum("hangs" in line for line in asked()) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        grade(tmp_path / "class", tmp_path / "out")
    assert len(list((tmp_path / "out" / "graded").iterdir())) == 2
    assert not (tmp_path / "out" / ".working").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_was_ignored_when_it_began_stays_so(asked, tmp_path):
    make(tmp_path / "class", {"anna": {2: "pass"}})
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does

    def hang_up(line):
        os.kill(os.getpid(), signal.SIGHUP)

    try:
        reports = grade(tmp_path / "class", tmp_path / "out", say=hang_up)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcomes(reports["anna"]) == {2: "pass"}
    make(tmp_path / "class", {"ben": {2: "wrong"}})
    with pytest.raises(KeyboardInterrupt):
        grade(tmp_path / "class", tmp_path / "out", say=hang_up)


def test_what_another_process_is_at_is_left_to_it_until_it_ends(asked, tmp_path):
    make(tmp_path / "class", {"anna": {2: "pass"}, "ben": {2: "wrong"}})
    grade(make(tmp_path / "other", {"x": {9: "pass"}}), tmp_path / "out")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # it holds anna's file, until it is killed
        with Store(tmp_path / "out", SETTINGS) as store:
            held = store.lock(store.name(Unit(2, sha256(b"pass"))))
            os.write(write, b"1" if held else b"0")
            time.sleep(600)
    assert os.read(read, 1) == b"1"
    seen = []

    def say(line):
        if line.startswith("1 of 2") and not seen:
            seen.append(line)
            os.kill(child, signal.SIGKILL)

    reports = grade(tmp_path / "class", tmp_path / "out", say=say)
    os.waitpid(child, 0)
    assert seen and {name: outcomes(report)[2] for name, report in reports.items()} == {
        "anna": "pass", "ben": "wrong"}


def test_the_progress_names_the_files_in_hand_and_promises_no_time(asked, tmp_path):
    make(tmp_path / "class", {"anna": {2: "pass"}, "ben": {3: "timeout"}})
    seen = []
    grade(tmp_path / "class", tmp_path / "out", say=seen.append)
    # Both at once, unless one has ended by then.
    assert any("now anna, P2" in line or "ben, P3" in line for line in seen), seen
    assert seen[-1] == "2 of 2 files done" and not any("left" in line for line in seen)
