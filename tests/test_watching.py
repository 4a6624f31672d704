"""--watch: at once, and after every save, and only then."""

import socket
import time

from grader.options import Options, confinement, spare_worker
from grader.stages import STAGES
from grader.watching import INTERVAL, Spare, watch


def test_a_saved_file_is_graded_again(tmp_path):
    path, graded, said = tmp_path / "problem_4.py", [], []
    path.write_text("one", "utf-8")

    watch([path], graded.append, said.append, lambda i: path.write_text("another"), turns=2)
    assert graded == [0, 0]
    assert "problem_4.py was saved." in said


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
    watch([path], grade, lambda text: None, turns=1)
    assert events == ["begun", "ended", "begun"]


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


def test_what_comes_after_a_report_knows_which_file_it_was(tmp_path):
    paths, events = [tmp_path / "a.py", tmp_path / "b.py"], []
    for path in paths:
        path.write_text("one", "utf-8")
    watch(paths, lambda i: events.append(("grade", i)), lambda text: None,
          lambda i: events.append(("ready", i)), turns=2)
    assert events == [("grade", 0), ("ready", 0), ("grade", 1), ("ready", 1)]


def spare_for(tmp_path):
    options = Options(tmp_path, "cpu", 1, 60.0, confinement=confinement(tmp_path))
    return Spare(lambda: spare_worker(STAGES[1], options))


def test_a_worker_that_waited_reads_the_file_it_is_given(tmp_path):
    with spare_for(tmp_path) as spare:
        assert spare.take(b"") is None  # none was started
        spare.start()
        with spare.take(b"def entry(x):\n    return x\n") as session:
            assert session.started
            session.load("entry", None, ("x",))  # raises where there is no such function
        assert spare.session is None


def test_a_worker_that_died_while_it_waited_is_not_used(tmp_path):
    with spare_for(tmp_path) as spare:
        spare.start()
        family = spare.session.family
        spare.session.socket.shutdown(socket.SHUT_RDWR)  # the worker has nobody to answer to
        deadline = time.monotonic() + 600
        while not family.has_ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert spare.take(b"") is None
