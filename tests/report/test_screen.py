"""The human report: words beside every symbol, 100 columns, colour only on a terminal."""

import io
import itertools
import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from grader.course.stages import STAGES
from grader.host.doctor import CLOSED
from grader.report import screen
from grader.report.results import WRONG, Check, Run, StageResult, StepCheck
from grader.report.screen import Reporter
from grader.watching import FileSaved


@pytest.fixture(autouse=True)
def no_dumb_terminal(monkeypatch):
    monkeypatch.delenv("TERM", raising=False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


NUMBERS = itertools.count()


def check(outcome, **more):
    return Check(f"standard/{next(NUMBERS)}", "standard", outcome, "(B=1, H=8, L=512, D=16)",
                 **more)


def printed(stream, *checks, verbose=False, **chosen):
    reporter = Reporter(stream, verbose, **chosen)
    reporter.stage_begins(STAGES[3])
    for one in checks:
        reporter.check_done(STAGES[3], one)
    reporter.stage_ends(STAGES[3], StageResult(3, "x", 200, "wrong", checks=list(checks)))
    return stream.getvalue()


def test_a_passing_case_reads_as_in_the_assignment():
    text = printed(io.StringIO(), check("pass"))
    assert "--- Running Autograder for Problem 3: FlashAttention in Triton ---" in text
    assert "✅ P3 Correctness Test Passed! (B=1, H=8, L=512, D=16)" in text


def test_robust_cases_that_pass_share_a_line():
    robust = [Check(f"robust/{name}", "robust", "pass", label) for name, label in (
        ("a", "(H=2, L=65) float16"), ("b", "(H=2, L=66) float32"),
        ("beyond", "(H=2, L=67) float16, gradients"),
        ("contract", "(33 cases at the borders of its tiles (32))"))]
    robust[2] = replace(robust[2], name="beyond/a")
    text = printed(io.StringIO(), check("pass"), *robust)
    assert text.count("Passed!") == 2
    assert ("✅ P3 Robust Test Passed! (3 cases; 33 cases at the borders of its tiles (32))\n"
            in text)
    assert printed(io.StringIO(), *robust, verbose=True).count("Passed!") == 4


def test_of_what_is_right_the_result_is_enough_when_it_is_handed_in():
    text = printed(io.StringIO(), check("pass"), brief=True)
    assert "Passed!" not in text and "P3: 1 of 1 passed" in text
    assert "Failed: wrong" in printed(io.StringIO(), check("wrong", what="o"), brief=True)


def test_a_case_that_fails_when_it_is_replayed_is_not_counted_as_passed():
    right = check("pass")
    wrong = replace(right, outcome="wrong", what="It only just passed.")
    assert "pass\n" not in printed(io.StringIO(), right, wrong)


FAILING = [check("wrong", what=f"o differs {i}", advice="this", detail=f"output {i}")
           for i in range(3)]


def test_only_the_first_failing_case_is_told_in_full_and_the_others_are_counted():
    text = printed(io.StringIO(), check("pass"), *FAILING, check("pass"))
    assert "o differs 0" in text and "   | output 0" in text
    assert "o differs 1" not in text and "output 1" not in text
    assert text.count("Failed: wrong") == 1 and "Passed!" not in text
    assert "   | output 0\nP3: 2 of 5 passed, 0 of 200 points" in text


def test_a_line_for_every_case_on_request():
    text = printed(io.StringIO(), *FAILING, check("pass"), verbose=True)
    assert text.count("Failed: wrong") == 3 and "Passed!" in text and "more like it" not in text


def test_every_failing_case_is_told_in_full_on_request():
    text = printed(io.StringIO(), *FAILING, verbose=True)
    for i in range(3):
        assert f"     o differs {i}\n     tip: this\n   | output {i}\n" in text


def test_no_sentence_is_cut_off():
    said = "RuntimeError in line 133, column 9: " + "a long word and the other " * 9 + "end."
    text = printed(io.StringIO(), check("crashed", what="one"), check("crashed", what=said))
    assert said in " ".join(text.split()) and "..." not in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_passing_case_prints_is_not_lost():
    right = [check("pass", detail=f"my number {i}") for i in range(2)]
    text = printed(io.StringIO(), *right)
    assert "my number" not in text and text.count("printed in passing cases is shown") == 1
    text = printed(io.StringIO(), *right, verbose=True)
    assert "   | my number 1" in text and "printed in passing cases" not in text
    assert "printed" not in printed(io.StringIO(), check("pass"))


def test_another_way_to_fail_has_a_line_of_its_own():
    words = "ValueError: 1 of a", "ValueError: 2 of a", "ValueError: b", "ValueError: b"
    crashes = [check("crashed", what=text) for text in words]
    text = printed(io.StringIO(), *crashes, *FAILING)
    assert text.count("ValueError: b") == 1 and "2 of a" not in text
    assert text.count("Failed: wrong") == 1 and "0 of 7 passed, 4 crashed, 3 wrong," in text


def test_a_stage_without_cases_is_one_line():
    stream = io.StringIO()
    blank = StageResult(3, "x", 200, "not_started", sentence="no step is filled in yet.")
    Reporter(stream, seed=1).stage_ends(STAGES[3], blank)
    assert stream.getvalue() == "➖ P3 not started, 0 of 200 points: no step is filled in yet.\n"
    Reporter(stream := io.StringIO()).stage_ends(STAGES[3], blank)
    assert stream.getvalue() == ""  # of several stages the summary says it


def test_what_a_submission_prints_is_fenced_and_cut():
    text = printed(io.StringIO(), check("crashed", detail="\n".join(map(str, range(100)))))
    assert "   | (76 earlier lines are left out)\n   | 76\n" in text and "   | 99\n" in text
    assert all(line.startswith("   | ") for line in text.splitlines()[2:-1])


def test_no_line_is_wider_than_a_terminal_or_100_columns(monkeypatch):
    long = Check("robust/x", "robust", "wrong", "(" + "B=1, " * 30 + ")",
                 what="word " * 60)
    for columns, stream, most in ((70, Terminal(), 70), (200, Terminal(), 100),
                                  (70, io.StringIO(), 100)):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        text = printed(stream, long, long, Check("r", "robust", "pass", "word " * 40))
        assert most - 10 < max(map(len, text.splitlines())) <= most


def test_colour_only_on_a_terminal_and_not_with_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in printed(Terminal(), check("pass"))
    assert "\x1b" not in printed(io.StringIO(), check("pass"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(Terminal(), check("pass"))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(Terminal(), check("pass"))


def test_a_live_line_on_a_terminal_and_nothing_when_piped():
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with Reporter(stream).working(STAGES[3], "case 1 of 4"):
            pass
        assert ("problem 3: case 1 of 4" in stream.getvalue()) == shown


PASSED = StageResult(3, "FlashAttention in Triton", 200, "pass", 200)


def summary(*stages, verbose=False) -> str:
    stream = io.StringIO()
    run = Run("cpu", "2", "3", 77, "0.2.0", list(stages))
    Reporter(stream, verbose).summary(run, "python autograder.py --p4")
    return stream.getvalue()


def test_a_verdict_during_a_case_does_not_stand_behind_the_live_line():
    stream = Terminal()
    reporter = Reporter(stream)
    with reporter.working(STAGES[3], "case 2 of 4"):
        while "case 2 of 4" not in stream.getvalue():
            time.sleep(0.01)
        reporter.check_done(STAGES[3], check("wrong"))
    shown = re.sub(r"\x1b\[\d*m", "", stream.getvalue())
    assert "\r\x1b[K❌ P3 Correctness Test Failed: wrong" in shown


@pytest.fixture
def counting(monkeypatch):
    """The threads that count; and a save that comes in the middle of a method of theirs."""
    threads = []

    class Thread(threading.Thread):
        def start(self):
            threads.append(self)
            super().start()

    def saved(kind, method):
        whole = getattr(kind, method)

        def interrupted(self, *arguments):
            monkeypatch.setattr(kind, method, whole)
            if method == "start":
                whole(self, *arguments)
            raise FileSaved
        monkeypatch.setattr(kind, method, interrupted)

    class Event(threading.Event):
        pass

    monkeypatch.setattr(screen, "threading", SimpleNamespace(Thread=Thread, Event=Event))
    return threads, {"start": lambda: saved(Thread, "start"), "set": lambda: saved(Event, "set")}


@pytest.mark.parametrize("method", ["start", "set"])
def test_a_save_at_any_moment_ends_the_line_that_counts(counting, method):
    threads, saved = counting
    reporter = Reporter(Terminal())
    saved[method]()
    with pytest.raises(FileSaved), reporter.working(STAGES[3], "case 1 of 4"):
        pass
    reporter.stage_begins(STAGES[3])  # as the next grading does
    (thread,) = threads
    thread.join(60)
    assert not thread.is_alive()


def test_own_lines_are_kept_and_one_too_wide_goes_on_further_in():
    Reporter(stream := io.StringIO()).say("one\n\n     two " + "word " * 20 + "\nthree")
    first, blank, two, more, three = stream.getvalue().splitlines()
    assert (first, blank, three) == ("one", "", "three")
    assert two.startswith("     two word") and more.startswith("       word")


def test_of_one_stage_the_next_command_is_all_there_is_to_add():
    assert summary(PASSED) == "Next: python autograder.py --p4\n"


def test_the_summary_of_several_stages_has_points_seed_and_the_next_command():
    text = summary(PASSED, PASSED)
    assert "Total: 400 of 400 points on cpu, seed 77" in text
    assert text.endswith("Next: python autograder.py --p4\n")


def test_what_held_the_files_is_said_on_request():
    assert "Self-check" in summary(PASSED, verbose=True) and "Self-check" not in summary(PASSED)


def test_what_is_not_closed_is_said_beside_what_held():
    closed = replace(PASSED, confined=("privileges", *CLOSED))
    assert "Not closed" not in summary(closed, verbose=True)
    held = replace(PASSED, confined=("files", "signals"))
    text = " ".join(summary(held, verbose=True).split())
    assert "unable to signal others. Not closed here: reading other files and the list" in text
    text = summary(held, replace(PASSED, confined=("files",)), verbose=True)
    assert "this one hidden. Not closed here" in " ".join(text.split())  # of both files
    assert "Self-check" in summary(replace(PASSED, confined=("privileges",)), verbose=True)


def test_the_seed_of_a_single_stage_stands_in_its_line_of_result():
    stream = io.StringIO()
    Reporter(stream, seed=77).stage_ends(STAGES[3], PASSED)
    assert stream.getvalue().rstrip().endswith("seed 77")


def test_a_reader_that_leaves_early_does_not_stop_the_grading():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    reporter = Reporter(Closed())
    reporter.check_done(STAGES[3], check("pass"))
    reporter.check_done(STAGES[3], check("pass"))


RED = [step.as_dict() for step in (
    StepCheck("3.4", WRONG, "wrong-number", "q (16, 16)", ("s[0, 2] is 0.",),
              place="problem_3.py:151", change="`0.0`. x."),
    StepCheck("3.5", WRONG, "acc-not-rescaled", "s (16, 32)", ("acc[0]: want 1; got 2.",),
              says="acc is not rescaled"),
    StepCheck("3.6", WRONG, "truth-of-a-tile", "keys 0-31", ("query 1 sees key 2.",),
              place="problem_3.py:170", change="`and` does not join tiles."))]


def test_of_several_red_steps_the_first_is_told_whole_and_each_other_in_a_line():
    text = with_red_steps(check("wrong", what="o is off"))
    assert text.startswith(
        "steps  ✗ 3.4-3.6\n"
        "✗ step 3.4: problem_3.py:151: `0.0`. x.\n     s[0, 2] is 0. Given: q (16, 16).\n"
        "✗ step 3.5: acc is not rescaled.\n"
        "✗ step 3.6: problem_3.py:170: `and` does not join tiles.\n❌ P3 Correctness")


def test_of_a_second_red_step_that_crashes_in_two_lines_the_first_is_shown():
    crash = StepCheck("3.6", WRONG, given="N=40", seen=("tl.load reads 3 numbers.\nrows 5-7.",))
    Reporter(stream := io.StringIO()).show_steps(STAGES[3], [RED[0], crash.as_dict()])
    assert stream.getvalue().endswith("\n✗ step 3.6: tl.load reads 3 numbers.\n")


def test_what_the_search_finds_later_is_not_told_after_the_score():
    reporter = Reporter(stream := io.StringIO())
    reporter.show_steps(STAGES[3], [RED[0] | {"text": "s[0, 2] is 0. Given: q (16, 16)."}])
    reporter.stage_ends(STAGES[3], StageResult(3, "x", 200, "wrong", steps=RED[:1]))
    text = stream.getvalue()
    assert text.count("s[0, 2] is 0.") == 1 and text.count("✗ step 3.4") == 1
    assert text.endswith("P3: wrong, 0 of 200 points, 0.0 s\n")


def test_why_a_step_has_no_light_is_said_below_the_lights():
    reporter = Reporter(stream := io.StringIO())
    why = "line 112, `m_i = 0`, is not as given, so it is not run on its own."
    reporter.show_steps(STAGES[1], [{"id": "1.1", "light": "right", "text": ""}] + [
        {"id": f"1.{n}", "light": "none", "text": why} for n in (3, 4, 5)])
    assert f"– steps 1.3-1.5: {why}" in stream.getvalue().splitlines()


def with_red_steps(*checks, outcome="wrong"):
    reporter = Reporter(stream := io.StringIO())
    reporter.show_steps(STAGES[3], RED)
    for one in checks:
        reporter.check_done(STAGES[3], one)
    reporter.stage_ends(STAGES[3], StageResult(3, "x", 200, outcome, checks=checks, steps=RED))
    return stream.getvalue()


def test_of_cases_that_a_red_step_explains_all_but_the_first_are_counted():
    wrong = check("wrong", what="o differs by 20 %.", diagnosis={"kind": "step", "step": "3.4"})
    crash = check("crashed", what="NameError: x", detail="File 1\nNameError: x", steps=("3.4",))
    text = with_red_steps(wrong, crash, check("pass"))
    assert "Failed: wrong (B=1, H=8, L=512, D=16)\nP3: 1 of 3 passed, 1 wrong, 1 crashed," in text
    assert "differs" not in text and "NameError" not in text


def test_a_wrong_case_that_no_red_step_explains_is_told_whole():
    kept = check("wrong", what="The backward overwrote do.", advice="copy it.",
                 diagnosis={"kind": "observed", "step": None})
    assert "     The backward overwrote do.\n     tip: copy it.\n" in with_red_steps(kept)


def test_a_crash_outside_of_the_red_steps_is_told_whole():
    crash = check("crashed", what="NameError: x", place="line 9", detail="File 1\nError: y",
                  diagnosis={"id": "", "step": None})
    text = with_red_steps(check("wrong"), crash)
    assert "NameError: x" in text
    text = with_red_steps(crash)
    assert "     where: line 9.\n   | File 1\n   | Error: y\n" in text


def test_a_raise_that_is_left_behind_a_solution_is_to_be_deleted():
    left = {"id": "3.2", "light": "wrong", "mistake": "raise-left", "text": "delete line 9."}
    Reporter(stream := io.StringIO()).stage_ends(STAGES[3], StageResult(
        3, "x", 200, "crashed", checks=[check("crashed", diagnosis={"id": "blank-step"})],
        steps=[left]))
    assert "✗ step 3.2: delete line 9.\nP3: unfinished" in stream.getvalue()


def test_a_stage_that_passes_with_a_red_step_says_so():
    reporter = Reporter(stream := io.StringIO())
    reporter.show_steps(STAGES[3], RED)
    reporter.stage_ends(STAGES[3], replace(PASSED, steps=RED))
    assert "All tests pass, but this step does not do what its comment asks." in stream.getvalue()


QUICK = StageResult(3, "x", 200, "pass", 140, checks=[check("pass"), check("pass")],
                    sentence="standard cases only (--quick).")
WASTED = StageResult(3, "x", 200, "pass", 180, checks=[
    check("pass"), Check("needless-work", "walk", "needless work")])


@pytest.mark.parametrize("result, said", [
    (QUICK, "✗  P3: standard tests pass; step 3.4 is wrong, 140 of 200 points"),
    (WASTED, "✗  P3: 1 of 2 passed; step 3.4 is wrong, 1 needless work, 180 of 200 points")])
def test_where_not_all_points_are_earned_a_red_step_stands_beside_no_tick(result, said):
    red = [*RED[:1], {"id": "3.1", "light": "right", "mistake": None, "text": ""}]
    Reporter(stream := io.StringIO()).stage_ends(STAGES[3], replace(result, steps=red))
    assert f"\n{said}, 0.0 s" in stream.getvalue()
    assert "✅" not in stream.getvalue() and "All tests" not in stream.getvalue()
    text = summary(PASSED, replace(result, steps=red))
    row = next(line for line in text.splitlines() if "of 200" in line and "1 of 2 steps" in line)
    assert row.startswith("✗  P3 x") and "pass" not in row
    both = replace(result, steps=[*red, {**red[0], "id": "3.5"}])
    Reporter(stream := io.StringIO()).stage_ends(STAGES[3], both)
    assert "; steps 3.4, 3.5 are wrong" in stream.getvalue()


def test_a_red_step_that_costs_nothing_leaves_the_summary_as_it_is():
    assert summary(PASSED, replace(PASSED, steps=RED)) == summary(PASSED, PASSED)


@pytest.mark.parametrize("points, advice", [(200, True), (140, False)])
def test_a_red_step_is_advice_where_all_points_were_earned(points, advice):
    said = replace(PASSED, points=points, steps=RED).passed_with_red
    assert ("It costs no points: take it as advice." in said) == advice


def test_the_advice_on_a_right_step_is_shown():
    advice = {"id": "4.2", "light": "right", "mistake": None, "text": "This is right, but slow."}
    Reporter(stream := io.StringIO()).show_steps(STAGES[4], [advice])
    assert stream.getvalue() == "steps  ✓ 4.2\n     step 4.2: This is right, but slow.\n"


def test_what_waits_for_blank_steps_is_unfinished_and_has_not_crashed():
    stream = io.StringIO()
    blank = check("crashed", diagnosis={"id": "blank-step"}, what="step 3.2 is still blank")
    result = StageResult(3, "x", 200, "crashed", checks=[check("pass"), blank],
                         sentence="the other cases wait for what is blank.")
    Reporter(stream).stage_ends(STAGES[3], result)
    text = stream.getvalue()
    assert text == ("➖ P3: unfinished, 0 of 200 points, 0.0 s. The other cases wait for what is "
                    "blank.\n")
    result.checks.append(check("wrong"))
    assert not result.waits


def test_a_seed_stands_on_one_line_with_its_word():
    stream = io.StringIO()
    Reporter(stream, seed=123456789012345).stage_ends(STAGES[3], StageResult(
        3, "x", 200, "wrong", checks=[check("pass"), check("wrong")], steps=RED))
    assert "seed 123456789012345\n" in stream.getvalue()


def test_a_case_asked_for_by_its_name_is_told_whole_though_a_step_is_red():
    reporter = Reporter(stream := io.StringIO(), whole=True)
    reporter.show_steps(STAGES[3], RED)
    reporter.check_done(STAGES[3], check("wrong", what="o is off.", place="everywhere"))
    assert "     where: everywhere.\n" in stream.getvalue()
