"""Turns a stage's checks into its outcome and points."""

from typing import TYPE_CHECKING

from grader.report.results import StageResult

if TYPE_CHECKING:  # they import torch
    from grader.course.cases import Case
    from grader.host.options import Options

SHARES = {"standard": 0.7, "robust": 0.2, "walk": 0.1}  # of a stage's points


def settle(result: StageResult, cases: "list[Case]", options: "Options") -> None:
    """Set outcome and points.  A group of the deciding cases in which one failed or did not run
    earns nothing.

    A case that the grader itself failed on did not fail, but its group earns nothing either; the
    stage has to be graded again.  One that could not be checked on a busy machine costs nothing,
    unless that is all of its group.
    """
    if not cases:
        return
    decisive = [check for check in result.checks
                if check.group != "beyond" or options.case]
    needless = any(check.outcome == "needless work" for check in decisive)
    decisive = [check for check in decisive if check.group != "walk"]
    outcomes = [check.outcome for check in decisive if not check.stands]
    unchecked = [check for check in decisive if check.not_checked]
    unknown = {check.group for check in unchecked} - {
        check.group for check in decisive if not check.not_checked}
    ours = "grader_fault" in (result.outcome, *outcomes) or bool(unknown)
    standing = {check.name for check in decisive if check.stands}
    failed = {check.group for check in decisive if not check.stands} | unknown
    failed |= {case.group for case in cases if case.name not in standing}
    for nothing in ("rejected", "not_started"):
        if nothing in outcomes:
            result.outcome, result.points, result.earned = nothing, 0.0, []
            return
    if ours:
        result.outcome = "grader_fault"
    elif not failed:
        result.outcome = "pass"
    elif outcomes:
        result.outcome = next((one for one in outcomes if one != "skipped"), "skipped")
    skipped = [check for check in decisive if check.outcome == "skipped"]
    if unchecked and not result.sentence:
        result.sentence = (f"{_count(unchecked, decisive)} not checked, which costs no points: "
                           f"{unchecked[0].what}.")
    if skipped and not result.sentence:
        some = f"{_count(skipped, decisive)} skipped: " * (len(skipped) < len(decisive))
        result.sentence = f"{some}{skipped[0].what}."
    if options.case:
        result.sentence = "one case only (--case): no points are given for it."
        return
    if options.quick and not failed:
        result.sentence = "standard cases only (--quick); the robust ones are worth 30 %."
    if options.quick or "robust" in failed:
        failed |= {"robust", "walk"}
    elif needless:
        failed |= {"walk"}
    result.earned = [group for group in SHARES if group not in failed]
    result.points = round(result.max_points * sum(map(SHARES.get, result.earned), 0.0), 2)


def _count(some: list, checks: list) -> str:
    return f"{len(some)} of {len(checks)} cases {'was' if len(some) == 1 else 'were'}"
