"""Decides what is asked of a file without this course's step markers: what it answers.

Such a file may have been written for the original assignment, which asks less.  What only this
course promises (Case.kinds) is tried on it all the same.  An answer claims that kind of input, and
then counts, right or wrong.  A refusal, which is an error that the file raises or a size that does
not compile, claims nothing and costs nothing.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace

from grader.assignment.submission import Submission
from grader.assignment.template import is_blank
from grader.course.cases import GRADIENTS, LAYOUT_KINDS, MANY, SINK_LOGITS, SIZE_KINDS, Case
from grader.course.stages import Stage
from grader.judge.context import GradingContext
from grader.report.results import Check
from grader.sandbox.wire import CUT_OFF

NOT_COMPILED = {"does-not-compile", "arange-not-a-power-of-two", "dot-too-small", "not-constexpr",
                "out-of-shared-memory"}
# A wrong output in such a case says that the file does not know such inputs: views, or sizes whose
# offsets overflow 32 bits.
UNKNOWN_IF_WRONG = LAYOUT_KINDS | {MANY}
WRONG_ACCESS = {"race", "out-of-bounds-read", "out-of-bounds-write", "outside-its-tensors"}


def unpromised(case: Case) -> Case:
    """The case of a file that may have been written for less than this course asks."""
    return replace(case, group="beyond")


def from_text(stage: Stage, file: Submission) -> frozenset[str]:
    """The kinds that the text of a file claims."""
    said = {SINK_LOGITS: "sink_logits" in file.parameters(stage.entry),
            GRADIENTS: _has_backward(file)}
    return frozenset(kind for kind, is_said in said.items() if is_said)


def from_answers(checks: Mapping[Case, Check]) -> frozenset[str]:
    """The kinds that a file's answers claim."""
    # The layout of the output's gradient says nothing of the layouts of inputs.
    return frozenset().union(*(replace(case, dout="dense").kinds for case, check in checks.items()
                               if _has_answered(case, check)))


def decides(file: Submission, case: Case, check: Check, claimed: frozenset[str]) -> bool:
    """Whether a check of this case counts; one of no kind always does.  claimed: the kinds that the
    file claims."""
    if not case.kinds:
        return True
    if check.outcome in ("timeout", "skipped", "grader_fault"):
        return False
    if check.outcome == "pass" or check.errors:
        knows = case.by_contract and case.kinds & UNKNOWN_IF_WRONG <= claimed
        return knows or _has_answered(case, check)
    if (check.diagnosis or {}).get("id") in WRONG_ACCESS:
        return case.kinds & LAYOUT_KINDS <= claimed
    return case.kinds <= claimed and not _refuses(file, case, check)


def in_words(file: Submission, checks: Mapping[Case, Check], claimed: frozenset[str]) -> str:
    """What was asked of a file without markers, and what was not."""
    asked = sorted(frozenset().union(*(case.kinds for case in checks)))
    counted = frozenset().union(*(case.kinds for case, check in checks.items()
                                  if decides(file, case, check, claimed)))
    text = ("This file has no step markers, so the grader runs every test whose inputs the file "
            "accepts.")
    if counts := ", ".join(kind for kind in asked if kind in counted):
        text += f" Besides the original assignment's tests, tests with these count: {counts}."
    if others := ", ".join(kind for kind in asked if kind not in counted):
        text += (" Tests with these were run but do not count, because your file refuses such "
                 f"inputs or does not handle them: {others}.")
    return text


def note_rounding(context: GradingContext) -> None:
    """Remark on answers that are right only because the original assignment gives lines that round
    (correctness.answer)."""
    count = sum(any(error.get("excused") for error in check.errors.values())
                for check in context.result.checks)
    if count and all(check.outcome == "pass" for check in context.result.checks):
        what = "products" if context.stage.sums_rows else "scores or sums"
        context.result.remarks.append(
            f"{count} test{'s pass' if count > 1 else ' passes'} only because the grader lets "
            f"{what} be rounded to 16 bits: a line that the original assignment gives rounds them.")


def _has_answered(case: Case, check: Check) -> bool:
    """Whether the check holds numbers, and not those of UNKNOWN_IF_WRONG."""
    forward = [error for name, error in check.errors.items() if not name.startswith("d_")]
    return check.outcome == "pass" or bool(check.errors) and (
        not case.kinds & UNKNOWN_IF_WRONG or all(
            error["fro"] <= error["fro_limit"] and error["row"] <= error["row_limit"]
            for error in forward))


def _refuses(file: Submission, case: Case, check: Check) -> bool:
    """Whether the file refused the call: by a raise or an assert, before it got to the file, with
    an output that has no gradient, or because such a size does not compile."""
    id = (check.diagnosis or {}).get("id")
    if CUT_OFF in check.what or id in NOT_COMPILED and case.kinds & SIZE_KINDS:
        return True
    line = check.where.rpartition(":")[2]
    if not line.isdigit():
        return check.outcome == "crashed"
    return any(isinstance(node, ast.Raise | ast.Assert)
               and node.lineno <= int(line) <= node.end_lineno
               for node in ast.walk(file.tree))


def _has_backward(file: Submission) -> bool:
    """Whether a method called backward does more than raise."""
    return any(isinstance(node, ast.FunctionDef) and node.name == "backward"
               and not all(is_blank(statement) or isinstance(statement, ast.Raise)
                           for statement in node.body)
               for node in ast.walk(file.tree))
