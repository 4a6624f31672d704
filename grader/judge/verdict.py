"""Turns a worker's reply into a Check: right, wrong, or right by forbidden means."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import torch

from grader.assignment.hints import look_at
from grader.assignment.submission import Step, Submission, foreign_texts, misjoined_tiles
from grader.course.calls import Race, Reply, SubmissionError, same_bits
from grader.course.correctness import Answer, Wrong, answer
from grader.course.inputs import FAR, Built
from grader.course.stages import Stage
from grader.judge import provenance
from grader.report.results import Check
from grader.text import brief, either, tensor_name

OF_ADDRESSES = ("rows", "kv head", "loop", "borders", "load", "store", "dx", "dw", "launch")
KEPT_BYTES = 2**28  # bytes of GPU memory that this process may keep between judgements
_truths = threading.Lock()


@contextlib.contextmanager
def judging():
    """Allow one judgement at a time, because attention in float64 needs much GPU memory, and free
    that memory afterwards."""
    with _truths:
        yield
        if torch.cuda.memory_reserved() > KEPT_BYTES:
            torch.cuda.empty_cache()


def judge_reply(stage: Stage, file: Submission, built: Built, reply: Reply, device: str,
                as_given: bool = False) -> tuple[Check, Wrong | None]:
    """judge(), and what needs the file: kernels that are not in it, and races between programs."""
    (check, wrong), case = judge(stage, built, reply, device, as_given), built.case
    if check.outcome == "pass" and _by_means(case) and (
            foreign := foreign_texts(file.source, reply.trace.texts)):
        check = check.fail(
            "rejected", f"The numbers are right, but the kernel {foreign[0]} is not in this file.",
            advice="write this stage's kernels in this file.")
    if check.outcome == "pass" and reply.race:
        check = raced(check, reply.race, file)
    return check, wrong


def _by_means(case) -> bool:
    """Whether the means of a right answer are judged in this case; some listed cases are enough."""
    return case.group != "beyond" and not case.by_contract


def judge(stage: Stage, built: Built, reply: Reply, device: str, as_given: bool = False
          ) -> tuple[Check, Wrong | None]:
    """Judge every tensor of a reply.  The truth is computed here, after the outputs have
    arrived.  as_given: see correctness.answer().

    -> the check; the tensor that makes it wrong, of which nothing is said yet.
    """
    case = built.case
    exact = answer(built, device, as_given=as_given)
    got = [(name, x) for outputs in reply.outputs for name, x in outputs.items()]
    got += [("d_" + name, x) for name, x in reply.grads.items()]
    wrong, errors = _first_wrong(exact, got)
    check = Check(case.name, case.group, "pass", case_text(case), errors,
                  detail=brief(reply.stdout, stage.filename),
                  kernels=tuple(sorted(reply.trace.kernels)), asks=case.asks)
    if wrong:
        return check.fail("wrong", ""), wrong
    for id, what, *seen, advice in _side_effects(stage, built, reply, exact):
        return check.fail("wrong", what, *seen, advice=advice, id=id), None
    if reply.refilled is not None:
        fresh = answer(built, device, refilled=True, as_given=as_given)
        wrong, errors = _first_wrong(fresh, list(reply.refilled.items()), errors)
        check = replace(check, errors=errors)
        if wrong and _is_stale(exact, reply):
            return check.fail(
                "rejected",
                "This is the answer of an earlier call: the same tensors held new values, and the "
                "old result came back.",
                advice="compute every call from the current values of its inputs; keep no "
                "results.", id="stale-answer", where="everywhere"), None
        if wrong:
            return check.fail("wrong", ""), wrong
    if not _by_means(case):
        return check, None
    return provenance.made_by_kernels(check, stage, built, reply.trace), None


def case_text(case) -> str:
    """The text beside a check's tick: the shape in brackets, and what a robust case is about."""
    return f"({case.label})" if case.group == "standard" else f"({case.label}) {case.note}"


def from_error(case, error: SubmissionError, filename: str, step: Step | None = None,
               line: int | None = None) -> Check:
    """The check of a call that ended without an answer.  line: the one to blame, if not error.line;
    step: the step of that line."""
    what, *seen = error.located(filename).split("\n")
    place = step.words if step else ""
    if line not in (None, error.line):
        place = f"called from {filename}:{line}" + f", {place}" * bool(step)
    line = line or error.line
    check = Check(case.name, case.group, error.outcome, case_text(case),
                  detail=brief(error.detail, filename), asks=case.asks)
    check = check.fail(error.outcome, what, *seen, id=error.id, place=place,
                       where="" if line is None else f"{filename}:{line}",
                       step=step.id if step else None, steps=(step.id,) if step else ())
    if error.waited_for_cpu:
        return check.excused()
    return with_layout(check, case) if error.outcome == "crashed" else check


def crashed(case, error: SubmissionError, file: Submission, stage: Stage) -> Check:
    """from_error() for this file, with the step that the student went wrong in."""
    line, above = error.line, []
    error.sentence = file.beside(line) or error.sentence
    if error.id == "name-not-defined" and line is not None and file.step_at(line) is None:
        above = [step for step in file.steps if 0 < line - step.last_line <= 20]
    if not above:  # otherwise the calling step is not to blame
        line = file.own_line(line, error.lines)
    step = file.step_at(line)
    check = from_error(case, error, file.path.name, step, line)
    if step is not None and step.id in file.blank_steps:
        first = () if step.id in file.left_raises else (error.sentence,)
        what, *seen = *first, *file.blanks()
        return replace(check, what=what, seen=tuple(seen), place="", detail="")
    if above:
        return replace(check, advice=f"should {above[-1].words}, above, define it?")
    towards = file.steps_towards(error.lines) if error.id.startswith("out-of-bounds") else []
    places = {step.id: stage.steps.get(step.id, "").split(", ") for step in towards}
    if ids := [id for id, own in places.items()
               if any(place.endswith(OF_ADDRESSES) for place in own)]:
        return replace(check, look_at=look_at(stage, *ids), steps=(*check.steps, *ids),
                       diagnosis=check.diagnosis | {"step": either(ids)})
    return check


def raced(check: Check, race: Race, file: Submission) -> Check:
    """Make a right check wrong because of a race: on a GPU programs run at the same time."""
    first, second = (str(place[0]) if len(place) == 1 else f"({', '.join(map(str, place))})"
                     for place in race.programs)
    number = race.tensor + (f"[{', '.join(map(str, race.index))}]" if race.index else "")
    step = file.step_at(race.line)
    where = f"{file.path.name}:{race.line}"
    said = (f"Programs {first} and {second} of one launch both write {number}."
            if race.verb == "writes" else
            f"Program {second} reads {number}, which program {first} of the same launch writes.")
    return check.fail(
        "wrong", f"{where}: {said}",
        "The interpreter runs programs one after another. On a GPU they run at the same time, "
        "and which comes first is left to chance.", place=step.words if step else "", id="race",
        where=where, step=step.id if step else None,
        advice="let one program write each element, or add with tl.atomic_add. What needs another "
        "program's result belongs in a later launch.")


def note_misjoined(check: Check, file: Submission) -> Check:
    """Say where tiles are joined by `and`."""
    if not check.what or not (found := misjoined_tiles(file.tree)):
        return check
    line, said = found
    return replace(check, seen=(f"{file.path.name}:{line}: {said}", *check.seen))


def note_red(check: Check, red: list[str]) -> Check:
    """Point to no other step if a crash is in a step that is red on its own."""
    step = next((id for id in red if id in check.steps), None)
    if not check.diagnosis or not step:
        return check
    return replace(check, look_at="", diagnosis=check.diagnosis | {"step": step})


def blanks_left(file: Submission) -> Check:
    """The check of blank steps that no graded call reaches, such as a backward: they must be
    written all the same."""
    steps = [step for step in file.unreached if step not in file.left_raises]
    several = len(steps) > 1
    said = f"step{'s' * several} {', '.join(steps)} {'are' if several else 'is'} still blank."
    what, *seen = *[said] * bool(steps), *file.blanks()
    check = Check("steps/filled-in", "robust", "crashed", "(steps that these cases do not reach)")
    return check.fail("crashed", what, *seen, id="blank-step", step=file.unreached[0])


def _first_wrong(exact: Answer, tensors, before: dict | None = None) -> tuple[Wrong | None, dict]:
    """Judge tensors in order.  -> the first wrong one; the errors of all, or the worse ones if
    `before` has some."""
    found, times, errors = None, {}, dict(before or {})
    for name, x in tensors:
        verdict = exact.judge(name, x)
        times[name] = max(times.get(name, 0.0), verdict.times)
        noted = errors.get(name)
        if noted is None or not verdict.row <= noted["row"]:
            errors[name] = verdict.as_dict()
        if not verdict.accepted and found is None:
            found = Wrong(name, x, verdict, exact, times)
    return found, errors


def with_layout(check: Check, case) -> Check:
    """What a wrong answer or a crash most likely means in a case that is made for one mistake."""
    if case.layout != "far":
        return check
    said = f"Entries of {case.apart} are {FAR:,} elements apart here, so offsets pass 2^31."
    return replace(check, seen=(*check.seen, said), advice="use 64-bit offsets: "
                   "tl.program_id(0).to(tl.int64) * stride, and so on.")


def _side_effects(stage: Stage, built: Built, reply: Reply, exact: Answer
                  ) -> Iterator[tuple[str, ...]]:
    """-> id, what is wrong, perhaps why, and what to try, of what a call that is right does to its
    inputs, to other calls and to its answer afterwards.

    Runs must have the same bits, because a race seldom moves a number far; but not in stage 1,
    where the CPU library may order its sums anew from call to call.
    """
    for name, storage in reply.inputs_after.items():
        if not same_bits(storage, built.call.inputs[name].storage):
            yield ("input-overwritten", f"The call overwrote its input {name}.",
                   "inputs belong to the caller; write to memory that you allocated.")
    for name, storage in reply.douts_after.items():
        if not same_bits(storage, built.call.douts[name].storage):
            yield ("input-overwritten", f"The backward overwrote d{name}, its incoming gradient.",
                   "it belongs to autograd; write to memory that you allocated.")
    first, *again = reply.outputs
    for run, outputs in enumerate(again if stage.needs_triton else (), start=2):
        for name, x in outputs.items():
            if not same_bits(x, first[name]):
                yield ("differs-between-runs", f"{tensor_name(name)} differs between runs: "
                       f"{int((x != first[name]).sum())} of its values are different in run {run} "
                       "of the same call.",
                       "Each run is within the limits, but every run should return the same bits.",
                       "let each program write its own part of the output, without atomics; "
                       "no two programs may write the same address.")
    for name, x in reply.late.items():
        if not same_bits(x, first[name]):
            yield ("changes-after-return",
                   f"{tensor_name(name)} changed after the function had returned.",
                   "return fresh memory from every call, and leave no work running.")
    for name, x in reply.restrided.items():
        if not exact.judge(name, x).accepted:
            yield ("strides-kept", "The first call is right. A second one with the same numbers "
                   f"and other strides makes {tensor_name(name)} wrong.",
                   "take the strides from the tensors of each call; keep nothing by shape.")
    for name, x in reply.grads_again.items():
        if not exact.judge("d_" + name, x).accepted:
            yield ("gradients-change", f"d{name} is right at first, but wrong when the backward of "
                   "the same call runs again (retain_graph=True) after other calls.",
                   "let each call save what its backward needs on its own ctx, in new memory, and "
                   "do not change it in the backward.")
    for name, x in reply.grads_late.items():
        if not same_bits(x, reply.grads[name]):
            yield ("gradients-change", f"d{name} changed after the backward had returned it, when "
                   "another backward ran.", "return fresh memory from every backward.")


def _is_stale(earlier: Answer, reply: Reply) -> bool:
    return all(same_bits(x, reply.outputs[0][name]) or earlier.judge(name, x).accepted
               for name, x in reply.refilled.items())
