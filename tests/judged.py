"""What the tests of the judge share: a case, a right reply to it, and its verdict."""

from grader.course import correctness, inputs
from grader.course.calls import Reply
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.diagnosis import describe
from grader.judge import verdict
from tests.sessions import trace

PLAIN = Case(3, "robust", 40, HQ=2, HKV=2, layout="guarded")


def answered(case: Case, **seen):
    """A case and the reply of a right submission."""
    built = inputs.build(case, 0)
    exact = correctness.answer(built, "cpu").tiled
    names = [spec.name for spec in built.call.outputs]
    outputs = {name: exact[name] for name in names}
    refilled = None
    if case.refill:
        fresh = correctness.answer(built, "cpu", refilled=True).tiled
        refilled = {name: fresh[name] for name in names}
    reply = Reply(
        [{name: x.clone() for name, x in outputs.items()} for _ in range(case.repeats)],
        {name: exact["d_" + name] for name in case.grads}, refilled,
        {name: x.clone() for name, x in outputs.items()},
        {name: exact["d_" + name] for name in case.grads},
        {name: exact["d_" + name] for name in case.grads},
        {name: x.clone() for name, x in outputs.items()},
        {name: t.storage.clone() for name, t in built.call.inputs.items()},
        {name: t.storage.clone() for name, t in built.call.douts.items()},
        trace(**seen), "", 0.1)
    return built, reply


def judged(built, reply):
    stage = STAGES[built.case.stage]
    check, wrong = verdict.judge(stage, built, reply, "cpu")
    return describe.said(check, wrong, built.case, stage) if wrong else check
