"""Runs a few more cases in the live worker after a wrong answer, and says what they show.

The answers are data: they are compared, never trusted, and decide no verdict.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from grader.assignment.hints import for_a_hint
from grader.course.calls import Reply, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import Built
from grader.course.stages import Stage
from grader.course.trace import kept_in_16_bits
from grader.diagnosis import attention_map, drawing, sums, suspects, wrong_gradients
from grader.diagnosis.deduce import deduce
from grader.diagnosis.describe import (
    ROUNDED_LSE,
    SMALL_ERROR,
    Finding,
    describe,
    is_rounded,
    locate,
    of_an_input,
)
from grader.diagnosis.isolating import Thing, in_words, isolate
from grader.diagnosis.samples import Sample, Samples, general
from grader.host.options import Options
from grader.host.session import Session
from grader.report.results import STEP_EMPTY, Check, told
from grader.step_checks import mistakes
from grader.text import either, sentence

NOTHING = 1e-9  # a gradient this small counts as none
# Where the maximum of a row may lie: near 0, far above it, far below it, later and later.
FAMILIES = ("randn", "signs", "levels", "shift+", "shift-", "steep")
OF_ANOTHER = ("another-tensor", "an-input")  # the values say what they are
ROUNDED = 0.02  # an error of o this small may come from rounding
CHANGED = re.compile(r"You changed (line \d+)")  # as blanks.py says it
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
    finding = of_an_input(built, name, got[name]) or locate(
        case, sample.exact, name, got[name], sample.exact.judge(name, got[name]))
    known = bool(red or blank) or finding.id in ("stored-otherwise", *OF_ANOTHER)
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
                mistake = suspects.name(
                    matrix, lambda: attention_map.longer(samples.ask, matrix),
                    lambda: _others(samples, sample, matrix))
                if finding.id == "nan" and not mistake[0] and samples.plain_is_right():
                    others = [attention_map.read(
                        samples.ask, replace(matrix.case, family=family), matrix.head,
                        longest=matrix.case.N) for family in FAMILIES]
                    mistake = suspects.of_nan(list(filter(None, others)))
                by_weights = bool(mistake[0])
            if not known and not by_weights:
                mistake = wrong_gradients.name([*filter(None, samples.answers.values()), sample])
    changed = next((line[1] for step in steps if step["light"] == "none" and (
        line := CHANGED.match(step["text"]))), "")
    said, advice, steps = (), "", [step["id"] for step in red] or blank
    if red:
        diagnosis = {"id": red[0]["mistake"] or "step-wrong", "kind": "step",
                     "text": told(red[0])}
    elif blank:  # the starter's raise is gone, and nothing stands in its place
        said = (f"Steps {either(blank, 'and')} are still empty." if len(blank) > 1 else
                f"Step {blank[0]} is still empty.",)
        diagnosis = {"id": STEP_EMPTY, "kind": "step", "text": said[0]}
    elif finding.id in OF_ANOTHER:
        diagnosis = {"id": f"pattern-{finding.id}", "kind": "pattern", "text": finding.seen}
    else:
        plain = samples.answers.get(replace(general(case), grads=()))
        finding, said, advice, diagnosis = _seen(
            stage, marked, finding, sample, things, matrix, mistake, by_weights, failures,
            plain is not None and "o" in plain.got and plain.verdicts["o"].fro > ROUNDED)
        if narrow := kept_in_16_bits(case, reply.trace):
            said = (narrow, *said)
        if narrow or ROUNDED_LSE in said:  # says what is rounded
            finding = replace(finding, what=tuple(
                line for line in finding.what if line != SMALL_ERROR))
        if any(error.outcome == "timeout" for _, error in failures):
            said += ("Another call timed out, so less is known about the mistake.",)
    steps = steps or stage.steps_of(finding.places)
    diagnosis["step"] = marked and either([step for step in steps if step not in right]) or None
    check = describe(check, finding, stage, steps, seen=said, advice=advice, right=right,
                     marked=marked, changed=changed)
    if diagnosis["id"] == STEP_EMPTY:  # the sentence names the steps
        check = replace(check, look_at=for_a_hint(stage, blank[0]))
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
        if sample.built.case.dtype != torch.float32 and len(places) > 1 and is_rounded(
                sample.got.get("lse"), sample.exact.truth.get("lse")):
            deduced, places = ROUNDED_LSE, ("lse",)
        finding = replace(finding, places=places)
    if finding.places:  # the place says more than a hint
        advice = ""
    record = {"id": "pattern-" + finding.id, "kind": "pattern", "text": finding.seen}
    id, words, rule = mistake
    which = "" if matrix is None else _which(matrix, sample.built.case)
    if id:
        record = {"id": id, "kind": "seen", "text": words}
        said = (*(_proved(id, words, rule, matrix, which) if seen and by_weights else
                  (sentence(words),)), *[sentence(f"the rule: {rule}")] * bool(rule))
        places = finding.places
        if "scale-ignored" in id and words.startswith("in the backward"):
            places = tuple(place for place in places if place != "lse")  # which has no scale
        if id == "effect-unscaled":
            places = ("dq scale",)
        advice, deduced = "", ""
        finding = replace(finding, what=finding.what[:1], places=places)
    elif matrix is not None and not matrix.backward and not bool(matrix.wrong.any()) and plain:
        said = ("With the same q and k in every batch entry, and the same v in every head, o is "
                "right: q or k is read from another batch entry, or v from another head.", *said)
    elif seen and finding.id not in ("zero", "multiple-of-all"):
        record = {"id": seen[0], "kind": "seen", "text": seen[1]}
        small = f"In {which} ({matrix.label}), {seen[1][0].lower()}{seen[1][1:]}"
        if matrix.place and seen[1].startswith("In "):
            place, _, rest = seen[1].partition(", ")
            small = f"{place} (in {which}: {matrix.label}), {rest}"
        said = (f"{small} Add --show to see the weights drawn.", *said)
        if finding.id == "tail":  # the weights say more of those rows
            finding = replace(finding, what=finding.what[:1])
        if matrix.backward and seen[0] in ("effect-extra-keys", "effect-missing-keys"):
            deduced, kernels = "", {"d_q": ["dq"], "d_v": ["dkdv"] + ["dq"] * matrix.with_dq}
            finding = replace(finding, places=tuple(
                f"{kernel} {place}" for kernel in kernels[matrix.tensor]
                for place in ("loop", "mask")))
    if len(things) == 1 and not id:
        record = {"id": "only-" + things[0].id, "kind": "isolated", "text": observed}
    for case, error in failures:  # a timeout says little about a mistake
        if error.id and error.outcome != "timeout" and not id:
            record = {"id": error.id, "kind": "observed", "text": error.sentence}
            there = error.located(stage.filename).replace("\n", ". ")
            said = (*said, f"In another case ({case.label}): {there}")
            break
    return finding, (*said, *[deduced] * bool(deduced)), advice, record


def _which(matrix: attention_map.Matrix, wrong: Case) -> str:
    """What to call the matrix's case; wrong: the one that is explained."""
    if matrix.case.N == wrong.N:
        return "a case of the same length"
    return "a small case" if matrix.case.N < wrong.N else "another case"


def _proved(id: str, words: str, rule: str, matrix: attention_map.Matrix, which: str
            ) -> tuple[str, str]:
    """The mistake, and what shows that it is this one.  which: as _which() calls its case."""
    whose = "the weights of your backward" if matrix.backward else "your attention weights"
    if mistakes.plain(id) in suspects.OF_THE_CASE:
        return (f"In {which} ({matrix.label}), {words}.", "The grader made this mistake on "
                f"purpose in that case and got exactly {whose}. Add --show to see them drawn.")
    made = "this mistake" if rule or ", or " not in words else "each of these mistakes"
    return sentence(words), (
        f"The grader made {made} on purpose in {which} ({matrix.label}) and got exactly "
        f"{whose}. Add --show to see them drawn.")


def _others(samples: Samples, sample: Sample, matrix: attention_map.Matrix
            ) -> Iterator[attention_map.Matrix]:
    """The matrices of other query heads; of a backward, which shows one head per call, that of the
    head with the smallest error."""
    yield from attention_map.others(matrix)
    if matrix.backward and sample.built.case.HQ == matrix.case.HQ > 1 and "d_q" in sample.got:
        head = _head(sample, "d_q", largest=False)
        found = attention_map.read(samples.ask, matrix.case, head, matrix.tensor, matrix.case.N)
        if head != matrix.head and found is not None:
            yield found


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
            found = attention_map.read(samples.ask, case, _head(sample, name), tensor,
                                       longest)
            if found is not None and bool(found.wrong.any()):
                return replace(found, with_dq="d_q" in sample.wrong)
            matrix = matrix or found
    return matrix


def _head(sample: Sample, name: str, largest: bool = True) -> int:
    """The query head with the largest error, to draw, or with the smallest one."""
    x, truth = sample.got[name], sample.truth(name)
    error = (x - truth).abs().nan_to_num(nan=1e30, posinf=1e30)
    case = sample.built.case
    if error.dim() < 3:
        return 0
    errors = error.flatten(2).amax(2)[0]
    head = int(errors.argmax() if largest else errors.argmin())
    return head if error.shape[1] == case.HQ else head * (case.HQ // case.HKV)
