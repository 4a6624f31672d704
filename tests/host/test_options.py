"""Who imports a file, and when."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.course.calls import SubmissionError
from grader.course.stages import STAGES
from grader.host import options
from grader.host.options import Imports, Options, open_session


class Worker(SimpleNamespace):
    """A session whose import ends when it is told to, in an error if it is given one."""

    def __init__(self, error=None, ends=True):
        super().__init__(error=error, begun=threading.Event(), ends=threading.Event())
        if ends:
            self.ends.set()

    def load(self, entry, attribute, positional):
        self.begun.set()
        assert self.ends.wait(60)
        if self.error:
            raise self.error


def thread(imports: Imports, worker: Worker) -> threading.Thread:
    found = threading.Thread(target=imports.helper, args=(worker, STAGES[3]), daemon=True)
    found.start()
    return found


def test_of_helpers_one_imports_until_somebody_has_got_through():
    imports, one, other = Imports(), Worker(ends=False), Worker()
    first = thread(imports, one)
    assert one.begun.wait(60)
    second = thread(imports, other)
    assert not other.begun.wait(0.2)
    one.ends.set()
    first.join(60)
    second.join(60)
    assert other.begun.is_set() and imports.got_through


def test_the_worker_of_the_cases_waits_for_no_helper_and_makes_way_for_all():
    imports, one, cases, other = Imports(), Worker(ends=False), Worker(), Worker()
    thread(imports, one)
    assert one.begun.wait(60)
    imports.first(cases, STAGES[3])
    imports.helper(other, STAGES[3])
    assert other.begun.is_set() and not one.ends.is_set()
    one.ends.set()


def test_what_one_worker_failed_by_is_asked_of_no_other_before_the_import():
    late = SubmissionError("timeout", "no answer within 10 s")
    imports, other = Imports(), Worker()
    with pytest.raises(SubmissionError):
        imports.helper(Worker(late), STAGES[3])
    with pytest.raises(SubmissionError) as told:
        imports.helper(other, STAGES[3])
    assert told.value is late and not other.begun.is_set()
    imports.first(Worker(), STAGES[3])
    imports.helper(other, STAGES[3])
    assert other.begun.is_set()


def opened(monkeypatch, known=False, compile_for=None, has_spare=True, first=False, **chosen):
    """-> the session, or how its worker was started."""
    monkeypatch.setattr(options.kernel_cache, "knows", lambda source, user: known)
    monkeypatch.setattr(options.kernel_cache, "folder_for", lambda source, user: source.decode())
    monkeypatch.setattr(options, "Worker", lambda source, name, **how: how)
    monkeypatch.setattr(options, "Session", lambda worker, timeout: SimpleNamespace(started=worker))
    spare = SimpleNamespace(started="the spare one")
    settings = Options(
        Path("."), "cpu", 1, 60.0, spare=(lambda source: spare) if has_spare else None,
        clock="of the stage", first=SimpleNamespace(take=lambda *what: "the first one")
        if first else None)
    session = open_session(STAGES[3], replace(settings, **chosen),
                           b"text", compile_for)
    assert session.clock == "of the stage"
    return session.started


@pytest.mark.parametrize("how, started", [
    ({}, "the spare one"), ({"device": "cuda"}, "the spare one"),
    ({"device": "cpu", "known": True}, "the spare one"), ({"has_spare": False, "first": True},
                                                         "the first one")])
def test_a_worker_that_waits_takes_the_file(monkeypatch, how, started):
    assert opened(monkeypatch, **how) == started


@pytest.mark.parametrize("how, cache, compiles", [
    ({"has_spare": False}, None, None), ({"has_spare": False, "device": "cuda"}, "text", None),
    ({"device": "cuda", "known": True}, "text", None),  # it would not find what is known
    ({"compile_for": 90}, None, 90), ({"compile_for": 90, "first": True}, None, 90)])
def test_another_worker_is_started_where_none_waits_for_such_work(monkeypatch, how, cache,
                                                                  compiles):
    worker = opened(monkeypatch, **how)
    assert (worker["cache"], worker["compile_for"]) == (cache, compiles)
    assert worker["interpret"] == (worker["device"] == "cpu")
