"""Runs a few more cases in the live worker after a wrong answer, and says what they show.

The answers are data: they are compared, never trusted, and decide no verdict.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from grader.course.calls import Reply, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import Built
from grader.course.stages import Stage
from grader.course.trace import kept_in_16_bits
from grader.diagnosis import attention_map, drawing, sums, suspects, wrong_gradients
from grader.diagnosis.deduce import deduce
from grader.diagnosis.describe import Finding, describe, locate
from grader.diagnosis.isolating import Thing, in_words, isolate
from grader.diagnosis.samples import Sample, Samples, general
from grader.host.options import Options
from grader.host.session import Session
from grader.report.results import Check, told
from grader.text import either

NOTHING = 1e-9  # a gradient this small counts as none
# Where the maximum of a row may lie: near 0, far above it, far below it, later and later.
FAMILIES = ("randn", "signs", "levels", "shift+", "shift-", "steep")
ROUNDED = 0.02  # an error of o this small may come from rounding
PROBE_SECONDS = 15.0  # for one more call of the submission


def explain(check: Check, session: Session, built: Built, reply: Reply, stage: Stage,
            options: Options, steps: Sequence[dict] = ()) -> Check:
    """The wrong check with the mistake of a red step, or else with what further cases show.

    steps: as in the JSON; red ones are the answer.  Without any, the session runs further cases,
    and if one of them kills the worker, the session is gone.
    """
    red = [step for step in steps if step["light"] == "wrong"]
    blank = [step["id"] for step in steps if step["light"] == "blank"]
    right = [step["id"] for step in steps if step["light"] == "right"]
    case, got, marked = built.case, reply.tensors, bool(steps)
    sample = Sample.of(built, got, options.device)
    if not sample.wrong:  # the first answer is right: another run, or other values, went wrong
        return check
    name = sample.wrong[0]
    finding = locate(case, sample.exact, name, got[name], sample.exact.judge(name, got[name]))
    known = bool(red or blank) or finding.id in ("stored-otherwise", "another-tensor")
    failures: list[tuple[Case, SubmissionError]] = []
    with _patience(session):
        def ask(other: Built) -> dict | None:
            if session.gone:
                return None
            try:
                return session.run(other.call).tensors
            except SubmissionError as error:
                failures.append((other.case, error))
                return None

        samples, things, matrix = Samples(sample, ask, options.device), [], None
        mistake, by_weights = ("", "", ""), False
        if not known and samples.plain_is_right():
            things = isolate(case, samples.answer, samples.names)
        elif finding.id in ("nan", "never-stored") and not known:  # of these no matrix tells
            things = isolate(general(case), samples.answer, samples.names)
        if red and (options.show or options.plot):  # to draw it: a plain case is small
            samples.answer(general(case))
        if stage.sums_rows:
            mistake = mistake if known else sums.name(samples)
        elif not known or options.show or options.plot:
            matrix = _matrix(samples)
            if matrix is not None and not known:
                mistake = suspects.name(matrix, lambda: attention_map.longer(samples.ask, matrix))
                if finding.id == "nan" and not mistake[0] and samples.plain_is_right():
                    others = [attention_map.read(
                        samples.ask, replace(matrix.case, family=family), matrix.head,
                        longest=matrix.case.N) for family in FAMILIES]
                    mistake = suspects.of_nan(list(filter(None, others)))
                by_weights = bool(mistake[0])
            if not known and not by_weights:
                mistake = wrong_gradients.name([*filter(None, samples.answers.values()), sample])
    said, advice, steps = (), "", [step["id"] for step in red] or blank
    if red:
        diagnosis = {"id": red[0]["mistake"] or "step-wrong", "kind": "step",
                     "text": told(red[0])}
    elif blank:  # the starter's raise is gone, and nothing stands in its place
        said = (f"step {either(blank)} is empty: nothing is written between its markers.",)
        diagnosis = {"id": "step-empty", "kind": "step", "text": said[0]}
    elif finding.id == "another-tensor":
        diagnosis = {"id": "pattern-another-tensor", "kind": "pattern", "text": finding.seen}
    else:
        plain = samples.answers.get(replace(general(case), grads=()))
        finding, said, advice, diagnosis = _seen(
            stage, marked, finding, sample, things, matrix, mistake, by_weights, failures,
            plain is not None and "o" in plain.got and plain.verdicts["o"].fro > ROUNDED)
        if narrow := kept_in_16_bits(case, reply.trace):
            said = (narrow, *said)
        if any(error.outcome == "timeout" for _, error in failures):
            said += ("Another call timed out, so less is known about the mistake.",)
    steps = steps or stage.steps_of(finding.places)
    diagnosis["step"] = marked and either([step for step in steps if step not in right]) or None
    check = describe(check, finding, stage, steps, seen=said, advice=advice, right=right)
    if not marked:  # then it has no steps to look at
        check = replace(check, look_at=check.look_at.replace(
            "look at step", "the course has this in step"))
    picture = drawing.text(matrix) if matrix is not None and options.show else []
    if matrix is not None and options.plot:
        drawing.plot(matrix, options.plot)
        picture = [*picture, f"Picture written to {options.plot}."]
    return replace(check, diagnosis=diagnosis, picture=tuple(picture))


@contextlib.contextmanager
def _patience(session: Session):
    """Use a shorter timeout than for cases that count."""
    usual, session.timeout = session.timeout, min(session.timeout, PROBE_SECONDS)
    try:
        yield
    finally:
        session.timeout = usual


def _seen(stage: Stage, marked: bool, finding: Finding, sample: Sample, things: list[Thing],
          matrix: attention_map.Matrix | None, mistake: tuple[str, str, str],
          by_weights: bool, failures, plain: bool):
    """All that was seen, where no step is red.  marked: whether the file has steps; mistake: as
    suspects.name() has it; by_weights: whether the matrix tells it; plain: whether o is wrong in a
    plain, small case.

    -> the finding, with the places that are left; sentences, the most telling first; what to try;
    the JSON.
    """
    observed, advice = in_words(things)
    said = (observed,) * bool(observed)
    seen = attention_map.describe(matrix) if matrix is not None else None
    if seen and seen[0] == "effect-nan" and finding.id in ("nan", "never-stored"):
        seen = None  # as is known
    deduced = ""
    by_dout = any(thing.id == "dout-strides" for thing in things)  # the saved lse is right then
    if not finding.places and not by_dout and all(  # with one key dq and dk are 0, right or wrong
            float(sample.truth(name).abs().max()) > NOTHING
            for name in sample.got if name.startswith("d_")):
        deduced, places = deduce(stage, sample.times, marked)
        finding = replace(finding, places=places)
    if finding.places:  # the place says more than a hint
        advice = ""
    record = {"id": "pattern-" + finding.id, "kind": "pattern", "text": finding.seen}
    id, words, rule = mistake
    if id:
        record = {"id": id, "kind": "seen", "text": words}
        proof = (f"In a small case ({matrix.label}), this mistake reproduces every attention "
                 "weight exactly. --show draws them.",) if seen and by_weights else ()
        said = (f"{words}.", *proof, *[f"the rule: {rule}."] * bool(rule))
        advice, deduced, finding = "", "", replace(finding, what=finding.what[:1])
    elif matrix is not None and not matrix.backward and not bool(matrix.wrong.any()) and plain:
        said = ("With the same q and k in every batch entry, and the same v in every head, o is "
                "right: q or k is read from another batch entry, or v from another head.", *said)
    elif seen and finding.id not in ("zero", "multiple-of-all"):
        record = {"id": seen[0], "kind": "seen", "text": seen[1]}
        small = f"In a small case ({matrix.label}), {seen[1][0].lower()}{seen[1][1:]}"
        said = (f"{small} --show draws it.", *said)
    if len(things) == 1 and not id:
        record = {"id": "only-" + things[0].id, "kind": "isolated", "text": observed}
    for case, error in failures:  # a timeout says little about a mistake
        if error.id and error.outcome != "timeout" and not id:
            record = {"id": error.id, "kind": "observed", "text": error.sentence}
            said = (*said, f"In another case, {case.label}: {error.sentence}")
            break
    return finding, (*said, *[deduced] * bool(deduced)), advice, record


def _matrix(samples: Samples) -> attention_map.Matrix | None:
    """The attention matrix of the smallest wrong case in which the mistake shows; of the longest
    one at last with more queries than can be drawn."""
    wrong = [(sample, name) for sample in (samples.wrong, *samples.answers.values()) if sample
             for name in [name for name in samples.names if name in sample.wrong][:1]]
    wrong.sort(key=lambda pair: (pair[0].built.case.N < 8, pair[0].built.case.N))
    matrix = None
    for sample, name, longest in (*((*one, 0) for one in wrong[:3]),
                                  *((*one, attention_map.MANY) for one in wrong[-1:])):
        if longest and sample.built.case.N <= attention_map.small(sample.built.case).N:
            continue
        case = sample.built.case
        has_dq = "d_q" in sample.wrong and not case.course_stage.backward_is_given
        for tensor in ("o",) if name[:2] != "d_" else ("d_v", *["d_q"] * has_dq):
            found = attention_map.read(samples.ask, case, _worst_head(sample, name), tensor,
                                       longest)
            if found is not None and bool(found.wrong.any()):
                return replace(found, with_dq="d_q" in sample.wrong)
            matrix = matrix or found
    return matrix


def _worst_head(sample: Sample, name: str) -> int:
    """The query head with the largest error, to draw."""
    x, truth = sample.got[name], sample.truth(name)
    error = (x - truth).abs().nan_to_num(nan=1e30, posinf=1e30)
    case = sample.built.case
    if error.dim() < 3:
        return 0
    head = int(error.flatten(2).amax(2)[0].argmax())
    return head if error.shape[1] == case.HQ else head * (case.HQ // case.HKV)
