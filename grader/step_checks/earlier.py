"""Finds a step that should differ from an earlier one and is still the same."""

import ast
import contextlib
from pathlib import Path

from grader.assignment import submission
from grader.course.stages import STAGES
from grader.step_checks import loops, masks
from grader.step_checks.blanks import Blanks
from grader.text import decode, syntax_tree

ID = "earlier-step"  # of the mistake
CHANGES = {  # step -> the step it should differ from, and how
    "4.2": ("3.2", "here the keys after the query are hidden"),
    "4.6": ("3.6", "here the keys after the query are hidden"),
    "6.4": ("4.2", "here the window ends on the left, too"),
    "6.7": ("3.5", "here a row may not have seen a key yet"),
    "6.8": ("4.6", "here the keys before the window are hidden, too"),
    "7.4": ("6.4", "here the sinks before the window are visible, too"),
    "7.8": ("6.8", "here the sinks are visible, too"),
    "8.3": ("4.2", "here CAUSAL may be False"),
    "8.18": ("4.6", "here CAUSAL may be False"),
    "9.4": ("7.4", "here CAUSAL may be False"),
    "9.12": ("8.10", "here there are a window and sinks"),
    "9.16": ("8.14", "here the window ends the loop, except for the sinks"),
    "9.17": ("8.15", "here the window ends the loop, except for the sinks"),
    "9.21": ("7.8", "here CAUSAL may be False"),
}
# What the earlier step does in the examples of the later one, if no other name covers it.
DOES = {"4.2": loops.key_loop(masks.all_keys, loops.CAUSAL)}


def is_copy(directory: Path, id: str, rows: list[str]) -> bool:
    """Whether rows equal that step of the file in this directory, up to comments and layout."""
    stage = STAGES[int(id.partition(".")[0])]
    file = submission.read(directory, stage.filename, stage.entry)
    if file.state != "ready" or id not in {step.id for step in file.steps}:
        return False
    with contextlib.suppress(SyntaxError):  # it may not be valid Python by itself
        return _tree(Blanks(decode(file.source), file.steps).body(id)) == _tree(rows)
    return False


def _tree(rows: list[str]) -> str:
    return ast.dump(syntax_tree("if True:\n" + "".join(rows) + "    pass\n"))
