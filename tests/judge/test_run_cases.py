"""Which worker runs which case, when the rest is not run, and what of an answer is kept."""

from types import SimpleNamespace

import pytest

from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.host.clock import Clock
from grader.judge import run_cases
from grader.judge.run_cases import CasesRun, Waiting
from grader.report.results import Check, StageResult

CASES = [Case(3, "robust", N) for N in (40, 41, 42)]


def context(**options) -> SimpleNamespace:
    """Of a CPU, with a stage that has ten minutes; its end is in `ended`."""
    options = {"clock": Clock(600), "device": "cpu", "seed": 0, "case": "", "may_stop": False,
               "imports": SimpleNamespace(first=lambda session, stage: session.load()), **options}
    ended = []
    return SimpleNamespace(
        options=SimpleNamespace(**options), stage=STAGES[3], result=StageResult(3, "", 100),
        file=SimpleNamespace(blank_steps=(), path=SimpleNamespace(name="problem_3.py"),
                             beside=lambda line: "", step_at=lambda line: None, steps=(),
                             own_line=lambda line, lines: line),
        reporter=SimpleNamespace(working=lambda *what: run_cases.contextlib.nullcontext()),
        under_way=[], ended=ended, end=lambda *why: ended.append(why))


def check(outcome: str, group: str = "robust", id: str | None = None) -> Check:
    return Check("a", group, outcome, diagnosis={"id": id, "step": "3.2"} if id else None)


@pytest.mark.parametrize("seen, alive, deaths, red, end", [
    (check("crashed", id="blank-step"), True, 0, [],
     ("crashed", "the other cases wait for step 3.2.")),
    (check("crashed", id="another"), True, 0, [], None),
    (check("wrong"), True, 0, ["3.4"], ("wrong", "no more tests were run after the failure.")),
    (check("wrong"), True, 0, [], None),  # no step is red: the next case may say more
    (check("wrong", "standard"), True, 0, ["3.4"], None),
    (check("skipped"), True, 0, ["3.4"], None), (check("pass"), True, 0, ["3.4"], None),
    (check("timeout"), False, 1, [], ("timeout", "a call did not end, so no more cases were run.")),
    (check("timeout"), True, 0, [], None),
    (check("crashed"), False, 1, [], None),
    (check("crashed"), False, 2, [],
     ("crashed", "the process that runs your file died twice, so no more cases were run."))])
def test_why_the_rest_is_not_run(seen, alive, deaths, red, end):
    asked, run = context(may_stop=True), CasesRun(None, True, deaths=deaths)
    asked.result.steps = [{"id": id, "light": "wrong"} for id in red]
    assert run_cases._end(asked, run, seen, alive, "case 2 of 9, a") == end


def test_a_stage_that_is_over_says_in_which_case():
    outcome, why = run_cases._end(context(clock=Clock(0)), CasesRun(None, True), check("pass"),
                                  True, "case 2 of 9, a")
    assert outcome == "timeout"
    assert why.endswith("ran out in case 2 of 9, a, so no more cases were run.")


def test_one_worker_begins_at_the_front_and_the_checks_of_the_other_come_last():
    waiting = Waiting(context(), CASES)
    assert waiting.next() is CASES[0] and waiting.left == 2
    waiting.put_back(CASES[0])
    assert waiting.left == 3 and waiting.next() is CASES[0]
    waiting.cases.pop()
    waiting.checks.append(check("pass"))
    assert waiting.left == 1 and not waiting.is_done()
    waiting.cases.pop()
    waiting.checks.append(check("skipped"))
    assert waiting.is_done() and waiting.next() is None
    assert [one.outcome for one in waiting.checks_of_others()] == ["skipped", "pass"]


@pytest.mark.parametrize("outcome, taken", [("pass", 3), ("wrong", 0)])
def test_a_second_worker_stops_at_what_is_not_right_and_puts_it_back(monkeypatch, outcome, taken):
    monkeypatch.setattr(run_cases, "judged", lambda context, built, reply: check(outcome))
    monkeypatch.setattr(CasesRun, "note", lambda run, *what: None)
    asked = context(timeout=7.0)
    session = SimpleNamespace(run=lambda call: None, timeout=0.0)
    asked.step_checks = SimpleNamespace(explained=lambda: [], worker=lambda: session)
    waiting = Waiting(asked, CASES)
    waiting._help(CasesRun(None, True))
    assert (len(waiting.checks), list(waiting.cases)) == (taken, CASES[:3 - taken])
    assert session.timeout == 7.0


@pytest.mark.parametrize("case, outcome, alone, replayed", [
    (CASES[0], "pass", "", True), (CASES[0], "wrong", "", False),
    (Case(3, "beyond", 40), "pass", "", False),
    (Case(3, "robust", 40, by_contract=True), "pass", "", False),
    (Case(3, "robust", 40, by_contract=True), "pass", "its name", True)])
def test_only_right_answers_to_listed_cases_may_be_replayed(case, outcome, alone, replayed):
    asked, run = context(case=alone), CasesRun(None, True)
    trace = SimpleNamespace(arguments=[("BLOCK_M", 64), ("D", 32)])
    reply = SimpleNamespace(trace=trace, refilled=None, tuned=SimpleNamespace(
        configurations={"kernel": ("BLOCK_M: 64",)}))
    seen = Check("a", "robust", outcome, kernels=("kernel@3",))
    run.note(asked, case, seen, reply)
    assert [one.case for one in run.right] == [case] * replayed
    assert (run.tiles, asked.result.kernels) == ({64}, {"kernel@3"})
    assert run.tuned == {"kernel": ("BLOCK_M: 64",)}


@pytest.mark.parametrize("used, lengths", [([1, 1, 1], [80]), ([1, 1 << 40, 1], [80, 160])])
def test_memory_is_measured_at_2n_and_at_4n_only_if_2n_took_much(monkeypatch, used, lengths):
    asked, left, judged = [], iter(used), []

    def run(call):
        asked.append(call.inputs["q"].shape[2])
        return SimpleNamespace(trace=SimpleNamespace(peak_bytes=next(left)))

    monkeypatch.setattr(run_cases, "judge_growth", lambda check, built, *replies: judged.append(
        len(replies)) or check)
    built, right = run_cases.build(Case(3, "robust", 40, growth=True), 0), check("pass")
    first = SimpleNamespace(trace=SimpleNamespace(peak_bytes=next(left)))
    session = SimpleNamespace(run=run)
    assert run_cases._with_growth(context(), session, built, first, right) is right
    assert asked == lengths and judged == [1 + len(lengths)]
    for other, seen in ((built, check("wrong")), (run_cases.build(CASES[0], 0), right)):
        assert run_cases._with_growth(context(), session, other, first, seen) is seen
    assert len(judged) == 1


@pytest.mark.parametrize("outcomes, explained", [
    (["wrong", "wrong"], [0]), (["pass", "skipped", "wrong"], [2]), (["crashed", "wrong"], [])])
def test_the_first_case_that_fails_is_explained_and_no_later_one(monkeypatch, outcomes, explained):
    asked, begun, found = context(), [], []

    def judged(context, built, reply):
        begun.append(outcomes[len(begun)])
        if begun[-1] == "crashed":
            raise SubmissionError("crashed", "no")
        return check(begun[-1])

    monkeypatch.setattr(run_cases, "judged", judged)
    monkeypatch.setattr(CasesRun, "note", lambda *what: None)
    monkeypatch.setattr(run_cases, "_explained", lambda *what: (
        found.append(len(begun) - 1), what[-1])[1])
    session = SimpleNamespace(run=lambda call: None, gone=False)
    run = CasesRun(lambda session, case: None, False)
    for outcome in outcomes:
        got, alive = run_cases.run_case(asked, session, CASES[0], run)
        assert (got.outcome, alive) == (outcome, True)
    assert found == explained


@pytest.mark.parametrize("stop_early, seconds, number", [
    (False, 600, 3), (True, 600, 2), (False, 0, 1)])
def test_cases_run_to_the_end_or_to_the_first_that_fails_or_while_there_is_time(
        monkeypatch, stop_early, seconds, number):
    asked, checks, recorded = context(stop_early=stop_early, explains=False), [
        check("pass"), check("wrong"), check("pass")], []
    asked.options.clock = Clock(seconds)
    asked.step_checks = SimpleNamespace(endless=lambda: False, found=None)
    asked.end = lambda outcome, sentence: setattr(asked.result, "sentence", sentence)
    monkeypatch.setattr(run_cases, "run_case", lambda *what: (checks[len(recorded)], True))
    monkeypatch.setattr(run_cases, "record", lambda context, check: recorded.append(check))
    session = SimpleNamespace(start=lambda: None, load=lambda: None, confined=())
    run = run_cases.run_cases(asked, session, CASES, None)
    assert recorded == checks[:number]
    assert run.session is (session if number == 3 else None)


@pytest.mark.parametrize("promises_all", [True, False])
def test_only_a_file_without_markers_may_round_as_lines_that_are_given(monkeypatch, promises_all):
    asked, told = context(), []
    asked.promises_all = promises_all
    monkeypatch.setattr(run_cases, "judge_reply", lambda *what, as_given: (
        told.append(as_given), (check("pass"), None))[1])
    run_cases.judged(asked, None, None)
    assert told == [not promises_all]


@pytest.mark.parametrize("error, beside, end", [
    (SubmissionError("crashed", "no module named utils", line=3, detail="trace"), "",
     ("crashed", "problem_3.py:3: no module named utils", "trace")),
    (SubmissionError("crashed", "no module named utils", line=3), "utils.py lies beside it",
     ("crashed", "utils.py lies beside it", "")),
    (SubmissionError("timeout", "late", waited_for_cpu=True), "", ("grader_fault", "late", ""))])
def test_why_a_file_could_not_be_imported_is_said_with_what_confined_it(error, beside, end):
    asked = context()
    asked.options.clock.has_asked_again = True
    asked.file.beside = lambda line: beside if line else ""

    def load():
        raise error

    session = SimpleNamespace(start=lambda: None, load=load, confined=("network",))
    assert not run_cases._import_file(asked, session)
    assert asked.ended == [end] and asked.result.confined == ("network",)


@pytest.mark.parametrize("ends, alive, deaths", [
    ("answers", True, 0), ("dies", False, 1), ("is gone afterwards", False, 1),
    ("waited for a CPU", False, 0), ("ran out of memory", False, 0)])
def test_a_case_says_whether_its_worker_lives_and_counts_deaths(monkeypatch, ends, alive, deaths):
    asked, closed = context(), []
    asked.options.clock.has_asked_again = True
    session = SimpleNamespace(gone=ends == "is gone afterwards", close=lambda: closed.append(1))

    def answer(call):
        if ends in ("answers", "is gone afterwards"):
            return None
        raise SubmissionError(
            "timeout" if ends == "waited for a CPU" else "crashed", "no", fatal=ends != (
                "ran out of memory"), waited_for_cpu=ends == "waited for a CPU",
            id="out-of-memory" if ends == "ran out of memory" else "")

    session.run = answer
    monkeypatch.setattr(run_cases, "judged", lambda *what: check("pass"))
    monkeypatch.setattr(CasesRun, "note", lambda *what: None)
    run = CasesRun(lambda session, case: None, True)
    assert run_cases.run_case(asked, session, CASES[0], run)[1] == alive
    assert run.deaths == deaths and len(closed) == (ends == "ran out of memory")


@pytest.mark.parametrize("device, has_steps, helps", [
    ("cpu", True, True), ("cuda", True, False), ("cpu", False, False)])
def test_the_worker_of_the_steps_helps_where_there_is_no_gpu(monkeypatch, device, has_steps, helps):
    asked, helped = context(device=device), []
    asked.stack = run_cases.contextlib.ExitStack()
    asked.step_checks = SimpleNamespace(found=has_steps)
    monkeypatch.setattr(Waiting, "_help", lambda waiting, run: helped.append(run))
    with asked.stack:
        waiting = Waiting(asked, [])
        for _ in range(2):  # of both lists of cases; it helps once
            waiting.help_after_step_checks("run")
        assert waiting.is_done()
    assert helped == ["run"] * helps


@pytest.mark.parametrize("blank, said", [
    ((), "step 3.6"), (("3.2",), "step 3.2"), (("3.2", "3.6"), "steps 3.2 and 3.6"),
    (("3.2", "3.4", "3.6", "3.8"), "its 4 blank steps, from 3.2 on")])
def test_cases_wait_for_every_blank_step_and_not_only_the_one_they_met(blank, said):
    waiting = SimpleNamespace(file=SimpleNamespace(blank_steps=blank))
    assert run_cases._blank(waiting, "3.6") == said
