"""Runs a chosen call of a file, apart from any grading."""

from collections.abc import Callable
from typing import TypeVar

from grader.course.stages import Stage
from grader.host.options import Options, open_session
from grader.host.session import Session

T = TypeVar("T")


def run_chosen(stage: Stage, options: Options, source: bytes, ask: Callable[[Session], T]) -> T:
    """What ask(session) returns, of a new worker that has imported this file.

    Raises:
        SubmissionError: the file cannot be imported, or does not get through the call.
    """
    with open_session(stage, options, source) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        return ask(session)
