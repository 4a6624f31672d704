"""After a wrong answer: asks the live worker a little more, and says what the mistake is.

What comes back is only data: it is compared, never believed, and it decides no verdict.
"""

import contextlib

from grader.cases import Case
from grader.correctness import answer
from grader.inputs import Built
from grader.naming import attention_map, drawing
from grader.naming.distance import Sample
from grader.naming.search import Name, Search
from grader.naming.words import Finding, describe, locate
from grader.options import Options
from grader.overview import command
from grader.results import Check
from grader.sandbox.calls import Reply, SubmissionError
from grader.sandbox.session import Session
from grader.stages import Stage

PROBE_SECONDS = 15.0  # for one further call of the submission


def explain(check: Check, session: Session, built: Built, reply: Reply, stage: Stage,
            options: Options) -> None:
    """Put the name of the mistake, or else what was seen, into a wrong check.

    Asks the session further cases; where one of them ends it, the session is gone afterwards.
    """
    case, device = built.case, options.device
    got = dict(reply.outputs[0]) | {"d_" + name: x for name, x in reply.grads.items()}
    exact = answer(built, device)
    sample = Sample.of(built, got, device, exact)
    wrong = [name for name in got if sample.wrong[name]]
    if not wrong:  # right at first: it is another run, or other values, that went wrong
        return
    failures: list[tuple[Case, SubmissionError]] = []
    with _patience(session):
        def ask(other: Built) -> dict | None:
            if session.gone:
                return None
            try:
                found = session.run(other.call)
            except SubmissionError as error:
                failures.append((other.case, error))
                return None
            return dict(found.outputs[0]) | {"d_" + n: x for n, x in found.grads.items()}

        search = Search(sample, ask, device, options.patience)
        name = search.run()
        matrix = None
        if case.stage != 2 and (name is None or options.show or options.plot):
            head = _worst_head(sample, wrong[0])
            matrix = attention_map.read(ask, case, head, backward=wrong[0].startswith("d_"))
    finding = locate(case, exact, wrong[0], got[wrong[0]], exact.judge(wrong[0], got[wrong[0]]))
    seen = attention_map.describe(matrix) if matrix is not None and name is None else None
    check.diagnosis = _record(name, finding, seen)
    if name is None and failures:  # what was observed on a further case says more than a pattern
        failed, error = failures[0]
        if error.id:
            check.diagnosis = {"id": error.id, "kind": "observed", "text": error.sentence}
            seen = error.id, f"{failed.label}: {error.sentence}"
    # The command that asks this one case, with the same numbers.
    again = command(case.stage, options.directory,
                    f" --seed {options.seed} --case {case.name}")
    check.lines = describe(finding, stage, name=name, seen=seen and seen[1], again=again)
    if matrix is not None and options.show:
        check.picture = tuple(drawing.text(matrix, search.tile()))
    if matrix is not None and options.plot:
        try:
            drawing.plot(matrix, options.plot, search.tile())
            check.picture += (f"The picture is in {options.plot}.",)
        except ImportError:
            check.picture += ("--plot wants matplotlib: pip install matplotlib.",)


@contextlib.contextmanager
def _patience(session: Session):
    """Less of it than for what decides points."""
    usual, session.timeout = session.timeout, min(session.timeout, PROBE_SECONDS)
    try:
        yield
    finally:
        session.timeout = usual


def _record(name: Name | None, finding: Finding, seen) -> dict:
    """What the JSON says."""
    if name is not None:
        record = {"id": name.id, "kind": "named", "text": name.words, "line": name.line,
                  "distance": round(name.distance, 3), "runner_up": name.runner_up,
                  "runner_up_distance": round(min(name.runner_up_distance, 1e9), 3),
                  "truth_distance": round(min(name.truth_distance, 1e9), 3)}
        if name.only:
            record["only"] = name.only
        if name.either is not None:
            record["or"] = {"id": name.either.id, "text": name.either.words,
                            "line": name.either.line}
        if name.also is not None:
            record["also"] = {"id": name.also.id, "text": name.also.words, "line": name.also.line}
        return record
    if seen is not None:
        return {"id": seen[0], "kind": "seen", "text": seen[1]}
    text = finding.what[-1] if len(finding.what) > 1 else finding.what[0]
    return {"id": "pattern-" + finding.symptom.replace("_", "-"), "kind": "pattern", "text": text}


def _worst_head(sample: Sample, name: str) -> int:
    """The query head to draw: where the error is largest."""
    x, truth = sample.got[name], sample.truth(name)
    error = (x - truth).abs().nan_to_num(nan=1e30, posinf=1e30)
    case = sample.built.case
    if error.dim() < 3:
        return 0
    head = int(error.flatten(2).amax(2)[0].argmax())
    return head if error.shape[1] == case.HQ else head * (case.HQ // case.HKV)
