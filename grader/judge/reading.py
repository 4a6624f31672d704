"""Reads the file, and chooses its cases.

Given: the stage, and what the command line decided.  Adds: the file, whether it has the course's
markers, the cases; or the result, where the file alone says how the stage ends.
"""

from dataclasses import replace

from grader.assignment import submission
from grader.course import case_table, contract
from grader.course.inputs import build
from grader.judge import asking
from grader.judge.known import Known
from grader.lights.lights import damaged
from grader.report.results import settled_by_reading


def read(known: Known) -> None:
    stage, options = known.stage, known.options
    listed = case_table.listed(stage.number, options.device, options.bfloat16)
    known.file = file = submission.read(options.directory, stage.filename, stage.entry)
    if file.state == "not_started" and file.unwritten:  # unless it stands elsewhere
        if asking.apart(known, build(listed[0], options.seed)).outcome == "pass":
            known.file = file = replace(file, state="ready")
    known.marked = bool(file.steps or damaged(file))
    known.stage = replace(stage, origins={
        step.id: step.origin for step in file.steps if step.origin})
    if settled_by_reading(known.stage, file, known.result):
        return
    if not known.marked:
        offered = file.parameters(stage.entry)
        listed = [replace(case, group="beyond")
                  if case.course and not (case.sink_logits and "sink_logits" in offered)
                  else case for case in listed]
    listed += [case for case in options.own if case.stage == stage.number]
    if options.case:
        known.cases = [case for case in listed if case.name == options.case] or list(filter(
            None, [contract.named(known.stage, options.case)]))
        return
    known.cases = [case for case in listed if case.group == "standard" or (
        case.group == "robust" and not options.quick)]
    if not (options.quick or options.stop_early):
        known.beyond = [case for case in listed if case.group == "beyond"]
