"""The worker that is asked for before torch is imported."""

import contextlib

import pytest

from grader.course.stages import STAGES
from grader.host import first_worker
from grader.host.first_worker import FirstWorker
from grader.host.options import Options, open_session
from grader.host.processes import Confinement

SOURCE = b"def flash_attention_forward(q): return q * 2\n"


@pytest.fixture
def first():
    first = FirstWorker(SOURCE, "problem_1.py", "cpu", Confinement())
    yield first
    if first.worker is not None:
        first.worker.close()


def test_the_first_session_has_the_worker_that_was_asked_for(
        first, tmp_path):
    first.begin()
    begun = first.worker
    options = Options(tmp_path, "cpu", 1, 60.0, first=first)
    with contextlib.ExitStack() as stack:
        for is_first in (True, False):
            session = stack.enter_context(open_session(STAGES[1], options, SOURCE))
            assert (session.worker is begun) == is_first
            session.load("flash_attention_forward", None, ("q",))
            assert session.timeout == 60.0
    assert not begun.folder.exists()


@pytest.mark.parametrize("other", [{"source": SOURCE + b"# saved again"}, {"device": "cuda"},
                                   {"name": "problem_2.py"}])
def test_whoever_wants_another_file_or_device_does_not_get_it(first, other):
    first.begin()
    wanted = {"source": SOURCE, "name": "problem_1.py", "device": "cpu"}
    assert first.take(**{**wanted, **other}) is None
    assert first.take(**wanted) is not None


def test_where_none_can_be_asked_for_the_grading_goes_on_without_it(first, monkeypatch):
    def full(*arguments, **settings):
        raise OSError("no space left on device")

    monkeypatch.setattr(first_worker, "Worker", full)
    first.begin()
    assert first.take(SOURCE, "problem_1.py", "cpu") is None
