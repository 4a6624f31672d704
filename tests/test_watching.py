"""--watch: at once, and after every save, and only then."""

import io
import os
import pty
import socket
import sys
import termios
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader import watching
from grader.assignment import hints, submission
from grader.assignment.record import ROOT, WARM_UPS
from grader.course.stages import STAGES
from grader.host import kernel_cache, options
from grader.host.options import Options, open_session, spare_worker
from grader.host.processes import confinement
from grader.page.server import BROWSERS, ServedPage
from grader.report.results import Check, StageResult
from grader.report.screen import Reporter
from grader.sandbox.kernels import hooks
from grader.starter import blank
from grader.step_checks import warmups
from grader.watching import INTERVAL, Keys, Spare, watch, watch_stages
from tests.sessions import double_call


def test_a_saved_file_is_graded_again(tmp_path):
    path, graded, said = tmp_path / "problem_4.py", [], []
    path.write_text("one", "utf-8")

    watch([path], graded.append, said.append, lambda i: path.write_text("another"), turns=2)
    assert graded == [0, 0]
    assert said[1].endswith("  problem_4.py was saved.")


def test_a_save_ends_the_grading_under_way(tmp_path):
    path, events = tmp_path / "a.py", []
    path.write_text("one", "utf-8")

    def grade(i):
        events.append("begun")
        if len(events) > 1:
            return
        path.write_text("another", "utf-8")
        try:
            while True:
                time.sleep(0.01)
        finally:
            events.append("ended")
    watch([path], grade, lambda text: None, lambda i: events.append("ready"), turns=1)
    assert events == ["begun", "ended", "ready", "begun", "ready"]


def test_a_file_that_an_editor_takes_away_for_a_moment_ends_nothing(tmp_path):
    path, events = tmp_path / "a.py", []
    path.write_text("one", "utf-8")

    def grade(i):
        content = path.rename(tmp_path / "aside")
        time.sleep(3 * INTERVAL)
        content.rename(path)
        events.append("ended")
    watch([path], grade, lambda text: None, turns=1)
    assert events == ["ended"]


def test_a_file_that_is_being_written_is_read_when_it_is_quiet(tmp_path):
    path, parts, events = tmp_path / "a.py", iter(["x = (", "x = (1 +", "x = (1 + 2)\n"]), []
    path.write_text("one", "utf-8")

    def pause(seconds):
        assert seconds == INTERVAL
        if part := next(parts, ""):
            path.write_text(part, "utf-8")
    watch([path], lambda i: events.append(path.read_text("utf-8")), lambda text: None, pause=pause,
          turns=2)
    assert events == ["one", "x = (1 + 2)\n"]


def test_what_is_made_ready_for_the_next_save_is_for_the_file_graded_last(tmp_path):
    paths, events = [tmp_path / "a.py", tmp_path / "b.py"], []
    for path in paths:
        path.write_text("one", "utf-8")

    def ready(i):
        events.append(("ready", i))
        paths[0].write_text("another", "utf-8")
    watch(paths, lambda i: events.append(("grade", i)), lambda text: None, ready, turns=3)
    assert events == [("grade", 0), ("grade", 1), ("ready", 1), ("grade", 0), ("ready", 0)]


def test_what_was_graded_stays_on_the_screen_until_a_file_is_saved(tmp_path):
    paths, events = [tmp_path / "a.py"], []
    (tmp_path / "a.py").write_text("one", "utf-8")
    (tmp_path / "b.py").write_text("one", "utf-8")

    def grade(i):
        events.append(i)
        if len(paths) == 1:
            paths.append(tmp_path / "b.py")  # the next problem
    watch(paths, grade, lambda text: None, lambda i: paths[1].write_text("two"),
          clear=lambda: events.append("clear"), turns=3)
    assert events == [0, 1, "clear", 1]


@pytest.fixture
def terminal(monkeypatch):
    """The end that a person types at."""
    person, program = pty.openpty()
    with (os.fdopen(program, "rb", buffering=0) as stdin,
          os.fdopen(person, "wb", buffering=0) as end):
        monkeypatch.setattr(sys, "stdin", stdin)
        yield end


def test_a_key_asks_for_what_the_step_to_fix_needs(terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "problem_1.py").read_text("utf-8")
    (tmp_path / "problem_1.py").write_text(source, "utf-8")
    red = [{"id": "1.2", "light": "wrong", "mistake": None, "text": "x"}]
    before = termios.tcgetattr(sys.stdin)
    with Keys(Options(tmp_path, "cpu", 1, 60.0), Reporter(said := io.StringIO())) as keys:
        keys.about(STAGES[1], StageResult(1, "x", 200, "wrong", steps=red))
        assert "Next: fix step 1.2 and save   (h: a hint, s: the step alone, q: quit)\n" \
            "course [##############################] 8 of 8 steps written\n" in said.getvalue()
        terminal.write(b"hs")
        keys.pause(60)
        hint = hints.next_hint("1.2", state_file=tmp_path / "none").partition("Ask again")[0]
        assert hint in said.getvalue()  # with its line breaks
        keys.pause(60)
        assert "step 1.2 is right when it is run on its own." in said.getvalue()
        terminal.write(b"q")
        with pytest.raises(KeyboardInterrupt):
            keys.pause(60)
        keys.pause(0)  # no key
    assert termios.tcgetattr(sys.stdin) == before


def test_in_the_warm_ups_the_keys_are_for_the_exercise_to_work_on(terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warmups").mkdir()
    (tmp_path / WARM_UPS).write_bytes((ROOT / WARM_UPS).read_bytes())
    with Keys(Options(tmp_path, "cpu", 1, 60.0), Reporter(said := io.StringIO())) as keys:
        keys.offer("fix step W.2")
        assert "Next: fix step W.2 and save   (h: a hint, s: the step alone, q: quit)\n" \
            in said.getvalue()
        terminal.write(b"hs")
        keys.pause(60)
        assert "Step W.2, hint 1 of 3" in said.getvalue()
        keys.pause(60)
        assert "W.2 softmax times a matrix, in tiles: right" in said.getvalue()
        keys.offer("")
        terminal.write(b"h")
        keys.pause(60)
        assert said.getvalue().endswith("There is no step to work on.\n")


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A folder with problems 1 to 4 solved, and the others as they are given."""
    monkeypatch.chdir(tmp_path)
    for n in STAGES:
        source = (ROOT / f"problem_{n}.py").read_text("utf-8")
        (tmp_path / f"problem_{n}.py").write_text(source if n < 5 else blank(source), "utf-8")
    return Options(Path("."), "cpu", 1, 60.0)


@pytest.mark.parametrize("number, said", [
    (5, "python -m grader.carry 5   (copies your earlier steps into it)\n"
     "      then write step 5.2 and save"),
    (8, "python -m grader.carry 8   (copies your earlier steps into it)\n"
     "      then write step 8.3 and save")])
def test_steps_that_are_copied_are_not_written_anew(course, number, said):
    with Keys(course, Reporter(stream := io.StringIO())) as keys:
        keys.about(STAGES[number], StageResult(number, "x", 50, "not_started"))
        assert f"Next: {said}\n" in stream.getvalue() and keys.step == said.split()[-3]


WASTED = Check("needless-work", "walk", "needless work", steps=("4.2",))


def test_a_stage_that_visits_tiles_in_vain_has_a_step_to_look_at(course):
    with Keys(course, Reporter(stream := io.StringIO())) as keys:
        keys.about(STAGES[4], StageResult(4, "x", 100, "pass", 90.0, checks=[WASTED]), STAGES[5])
        assert ("Next: look at step 4.2 and save\n      or go on: python autograder.py --p5 "
                "--watch\n") in stream.getvalue() and keys.step == "4.2"


@pytest.fixture
def watched(monkeypatch):
    """watched(stages, following, options, outcome_of) -> what was graded up to the first pause, and
    said.  outcome_of(stage, options): its result."""
    def run(stages, following, options, outcome_of):
        asked = []

        def grade_stage(stage, options, reporter):
            asked.append(stage.number)
            return outcome_of(stage, options)

        def exercises(options, reporter, then):
            asked.append("warm-ups")
            then("")
            return 0

        def pause(keys, seconds):
            raise KeyboardInterrupt
        monkeypatch.setattr(Keys, "pause", pause)
        monkeypatch.setattr(warmups, "grade", exercises)
        monkeypatch.setattr(watching, "grade_stage", grade_stage)
        monkeypatch.setattr(watching, "spare_worker", lambda stage, options: SimpleNamespace(
            close=lambda: None))
        said = io.StringIO()
        with pytest.raises(KeyboardInterrupt):
            watch_stages(stages, following, options, Reporter(said))
        return asked, said.getvalue()
    return run


@pytest.mark.parametrize("first, checks, graded", [
    (STAGES[4], [], [4, 5]), (STAGES[4], [WASTED], [4]), (None, [], ["warm-ups", 1])])
def test_the_next_problem_is_watched_once_nothing_is_left_to_do(
        course, watched, first, checks, graded):
    asked, _ = watched([first], list(STAGES.values()), course, lambda stage, options: StageResult(
        stage.number, "x", 100, "pass" if stage.number == 4 else "not_started", checks=checks))
    assert asked == graded


def test_a_page_is_served_while_the_watch_lasts_and_its_address_is_said(
        course, watched, monkeypatch):
    for name in BROWSERS:
        monkeypatch.delenv(name, raising=False)
    page, found = ServedPage(course.directory), []

    def shown(stage, options):
        result = StageResult(stage.number, stage.title, 100, "wrong")
        options.page.show(stage, result, submission.read(options.directory, stage.filename, ""))
        with urllib.request.urlopen(options.page.address) as answer:
            found.append(answer.read().decode())
        return result
    _, said = watched([STAGES[4]], [], replace(course, page=page), shown)
    assert "<small>Problem 4</small>" in found[0]
    assert said.startswith(f"Page: {page.address}\n") and said.count(page.address) == 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page.address)


@pytest.mark.parametrize("stdin", [None, os.devnull])
def test_without_a_terminal_no_key_is_offered(tmp_path, monkeypatch, stdin):
    monkeypatch.setattr(sys, "stdin", stdin and open(stdin, encoding="utf-8"))
    with Keys(Options(tmp_path, "cpu", 1, 60.0), Reporter(said := io.StringIO())) as keys:
        (tmp_path / "problem_1.py").write_text(blank((ROOT / "problem_1.py").read_text("utf-8")))
        keys.about(STAGES[1], StageResult(1, "x", 200, "crashed"))
        keys.pause(0)
        assert "Next: write step 1.1 and save\n" in said.getvalue()
        (tmp_path / "problem_1.py").write_text("")
        keys.about(STAGES[1], StageResult(1, "x", 200, "crashed"))  # a file without steps
        assert keys.step == ""


def spare_for(tmp_path):
    options = Options(tmp_path, "cpu", 1, 60.0, confinement=confinement((ROOT, tmp_path)))
    return closing(Spare(lambda i: spare_worker(STAGES[i], options)))


def test_a_worker_that_waited_reads_the_file_it_is_given(tmp_path):
    with spare_for(tmp_path) as spare:
        assert spare.take(1, b"") is None  # none was started
        spare.start(1)
        with spare.take(1, b"def entry(x):\n    return x\n") as session:
            assert session.started
            session.load("entry", None, ("x",))  # raises where there is no such function
        assert spare.session is None


def test_one_worker_waits_and_for_one_file(tmp_path):
    with spare_for(tmp_path) as spare:
        spare.start(1)
        first = spare.session
        spare.start(1)
        assert spare.session is first
        assert spare.take(2, b"") is None and spare.session is first
        spare.start(2)
        assert not first.worker.folder.exists() and spare.session.worker.path.name == "problem_2.py"
    assert spare.session is None


LEAVES_A_TRACE = b"""
import os
found = len(os.listdir(".")), "TRACE" in os.environ
os.environ["TRACE"] = "1"
open("trace", "w").close()
def double(x):
    return 0 * x + os.getpid() if found == (1, False) else x
"""


def test_every_save_meets_a_process_and_a_folder_of_its_own(tmp_path):
    pids = set()
    with spare_for(tmp_path) as spare:
        for _ in range(2):
            spare.start(1)
            with spare.take(1, LEAVES_A_TRACE) as session:
                session.load("double", None, ("x",))
                (pid,) = session.run(double_call()).outputs[0]["y"].unique().tolist()
                assert pid == session.pid
                pids.add(pid)
            assert not session.worker.folder.exists()
    assert len(pids) == 2


def ended(family) -> bool:
    deadline = time.monotonic() + 600
    while not family.has_ended() and time.monotonic() < deadline:
        time.sleep(0.05)
    return family.has_ended()


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_worker_that_died_while_it_waited_is_not_used(tmp_path, is_ready):
    with spare_for(tmp_path) as spare:
        spare.start(1)
        if is_ready:
            spare.session.start()
        spare.session.socket.shutdown(socket.SHUT_RDWR)  # the worker has nobody to answer to
        assert ended(spare.session.worker)
        assert spare.take(1, b"") is None and spare.session is None


# ------------------------------------------------------------------- on a GPU
@pytest.fixture
def made(monkeypatch, tmp_path):
    """The settings of every worker that is made; none is started."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = []

    def make(source, name, **settings):
        found.append(settings)

    monkeypatch.setattr(options, "Worker", make)
    monkeypatch.setattr(options, "Session", lambda worker, timeout: SimpleNamespace(clock=None))
    return found


def test_on_a_gpu_the_worker_that_waited_takes_a_file_not_yet_compiled(made, tmp_path):
    options = Options(tmp_path, "cuda", 1, 60.0)
    waiting = spare_worker(STAGES[4], options)
    assert made.pop()["cache"] is None  # one that goes with the worker
    options = replace(options, spare=lambda source: waiting)
    assert open_session(STAGES[4], options, b"new") is waiting and not made
    known = kernel_cache.folder_for(b"known")
    (known / "kernel").touch()
    assert open_session(STAGES[4], options, b"known") is not waiting
    assert made.pop()["cache"] == known


def test_where_there_is_no_gpu_to_make_ready_nothing_is_raised():
    hooks.load_launcher()


@pytest.mark.gpu
def test_a_worker_on_a_gpu_has_its_launcher_before_it_has_a_file(tmp_path):
    with spare_worker(STAGES[4], Options(tmp_path, "cuda", 1, 60.0)) as session:
        session.start()
        assert list((session.worker.folder / "cache").iterdir())
