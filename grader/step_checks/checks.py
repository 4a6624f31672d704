"""Runs a file's step checks, each blank on its own, in a worker of their own beside the cases.

They give and take no points.  In doubt a step is not judged: the code around it was changed, it
uses names that another blank makes, or the worker could not run it.
"""

import concurrent.futures
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from grader.assignment import submission
from grader.course.calls import SubmissionError
from grader.course.stages import Stage, interpreter_fault
from grader.host.clock import times
from grader.host.options import Options, open_session
from grader.host.session import Session
from grader.report import overview
from grader.report.results import BLANK, NONE, RAISE_LEFT, RIGHT, WRONG, StepCheck, unlit
from grader.step_checks import earlier, evidence, named, repair
from grader.step_checks.blanks import Blanks
from grader.step_checks.examples import Example, Observed, StepSpec, Wrong, guarded, observe
from grader.step_checks.table import MOVES, TOGETHER, entry
from grader.text import syntax_tree

PLACED = 3  # the most red steps whose mistake is searched for by changes
TRIES = 100  # the most changes of a step whose mistake has a name, to find its line
SEARCH_SECONDS = 20.0  # of CPU time for the search in one step, which mostly ends by its MOST
THOROUGH = 10  # --step searches so many times longer
# Names of what was seen, not of a cause; names that do not say where the mistake is.
SEEN_ONLY = (None, "shapes-do-not-broadcast", "out-of-bounds-read", "out-of-bounds-write",
             "dot-shapes")
PLACELESS = (*SEEN_ONLY, "wrong-head", "no-pivot", "handed-wrongly", "result-dropped",
             "alpha-in-another-base", "not-launched")
REQUEST_SECONDS = 20.0  # for one step's examples; their CPU time has its own limit
SECONDS = 2.0  # of CPU time for one example


class Unasked(Exception):
    """Why a step cannot be run on its own."""


class StepChecks:
    """Use it in a `with` around the cases of a stage.  result() waits for the checks, explained()
    also for the search, which may add a line on what is wrong.  Neither looks at the clock: a busy
    machine says the same as an idle one, but later.  only: check one step alone."""

    def __init__(self, stage: Stage, options: Options, file: submission.Submission,
                 only: str = ""):
        self.stage, self.file, self.only = stage, file, only
        self.options = replace(options, device="cpu", spare=None,
                               timeout=min(options.timeout, REQUEST_SECONDS))
        self.stack = contextlib.ExitStack()
        self.found: concurrent.futures.Future | None = None
        self.searched: concurrent.futures.Future | None = None
        self.why = ""  # why no step was checked
        self.steps: list[dict] | None = None

    def __enter__(self) -> "StepChecks":
        self.why = guarded(self.begin, "the steps could not be run on their own ({})".format)
        return self

    def begin(self) -> str:
        """Start the checks.  -> why none can be made, or "" """
        why = elsewhere(self.stage, self.file)
        if not why:
            runs_triton = self.stage.needs_triton and self.file.steps
            why = interpreter_fault() if runs_triton else damaged(self.file)
        written = {step.id for step in self.file.steps} - set(self.file.blank_steps)
        if not why and any(map(entry, written)):
            self.pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
            self.runner = Runner(self.stage, self.options, self.file, bool(self.only))
            if self.options.graded is not None:
                before = self.options.graded.get(self.stage.number)
                self.runner.first = changed(self.file, before)
                self.options.graded[self.stage.number] = self.file.source
            self.stack.callback(self.runner.close)  # before the pool waits for it
            self.found = self.pool.submit(self.runner.check_steps, self.only)
            self.searched = self.pool.submit(lambda: self.runner.search(self.found.result()))
        return why

    def __exit__(self, *error) -> None:
        self.stack.close()

    def shown(self, reporter) -> list[dict]:
        """Show explained().  -> the same for the JSON."""
        with reporter.working(self.stage, "running the steps on their own"):
            found = self.explained()
        self.steps = [step.as_dict() for step in found] or unlit(self.file)
        reporter.show_steps(self.stage, self.steps, self.why)
        return self.steps

    def endless(self) -> bool:
        """Whether a step that never ends has been found so far."""
        return (self.found is not None and self.found.done() and not self.found.exception()
                and any(light.mistake == "timeout" for light in self.found.result()))

    def worker(self) -> Session | None:
        """The worker that ran the steps, once it is free; None if it died."""
        done = self.searched is not None and self.searched.done()
        session = self.runner.session if done else None
        return session if session is not None and not session.gone else None

    def result(self) -> list[StepCheck]:
        """One per step, in the order of the file."""
        if self.found is None:
            return []
        try:
            return self.found.result()
        except Exception as error:  # the cases go on, whatever happened here
            if getattr(error, "outcome", "") != "crashed":  # which the cases tell, too
                self.why = ("the steps could not be run on their own "
                            f"({type(error).__name__}: {error})")
            return []

    def explained(self) -> list[StepCheck]:
        """As result(), with what the search found."""
        if (found := self.result()) and self.searched.exception() is None:
            return self.searched.result()
        return found


class Runner:
    """Runs steps in a worker, which is replaced when a step ends it.  thorough: search longer for
    what is wrong with a step."""

    def __init__(self, stage: Stage, options: Options, file: submission.Submission,
                 thorough: bool = False):
        self.stage, self.options, self.source = stage, options, file.source
        self.times = THOROUGH if thorough else 1
        self.left_raises = file.left_raises
        self.blanks = Blanks(submission.decode(file.source), file.steps)
        self.session, self.closed = None, False
        self.entry: Callable[[str], StepSpec | None] = entry
        self.first: set[str] = set()  # the steps to begin with

    def close(self) -> None:
        """End the worker; may be called from another thread."""
        self.closed = True
        if self.session is not None:
            self.session.close()

    def lights(self, only: str = "", known: dict[str, StepCheck] | None = None) -> list[StepCheck]:
        """check_steps(), and search() for the mistakes in wrong steps."""
        return self.search(self.check_steps(only, known))

    def check_steps(self, only: str = "", known: dict[str, StepCheck] | None = None
                    ) -> list[StepCheck]:
        """One per step.  only: that step alone; known: steps that need not run again."""
        found = dict(known or {})
        for id in sorted(self.blanks.steps, key=lambda id: id not in self.first):
            if id in found:
                continue
            if id in self.left_raises:
                found[id] = StepCheck(id, WRONG, RAISE_LEFT, seen=(self.left_raises[id],))
            elif id in self.blanks.blank:
                found[id] = StepCheck(id, BLANK)
            elif only in ("", id):
                found[id] = self.light(id, entry(id))
        for ids, other in TOGETHER.items():
            if any(found[id].light in (WRONG, NONE) for id in ids if id in found) \
                    and all(id in found and found[id].light != BLANK for id in ids) \
                    and self.light(ids[-1], other, ids).light == RIGHT:
                found |= {id: StepCheck(id, RIGHT) for id in ids}
        wrong = {id for id, light in found.items() if light.light == WRONG}
        for arrangement in MOVES.get(self.stage.number, ()) if len(wrong) > 1 else ():
            again = {id: self.light(id, other) for id, other in arrangement.items()
                     if id in found and found[id].light in (RIGHT, WRONG)}
            right = {id for id, light in again.items() if light.light == RIGHT}
            if len(right & wrong) > 1 and right == again.keys():
                found |= again
                wrong -= right
        return [found.get(id) or StepCheck(id, NONE) for id in self.blanks.steps]

    def search(self, checks: list[StepCheck]) -> list[StepCheck]:
        """The same checks; the first wrong ones without a name get the change that fixes them, and
        those with a name its line."""
        wrong = [check for check in checks if check.light == WRONG
                 and (not is_named(check) or check.says and not check.place)]
        wrong.sort(key=lambda check: (is_named(check), check.id not in self.first))
        ids = [check.id for check in wrong[:PLACED]]
        return [self.placed(check) if check.id in ids else check for check in checks]

    def light(self, id: str, asked: StepSpec | None, ids: tuple[str, ...] = ()) -> StepCheck:
        """Check one step.  ids: the step, after those that run before it."""
        return guarded(lambda: self.judged(id, asked, ids or (id,)), lambda error: StepCheck(
            id, NONE, seen=(f"what it returned could not be read ({error}).",)))

    def judged(self, id: str, asked: StepSpec | None, ids: tuple[str, ...]) -> StepCheck:
        """As light(), but raises if the check itself fails."""
        try:
            return self.run(id, asked, ids)
        except Unasked as why:
            return StepCheck(id, NONE, seen=(str(why),))

    def run(self, id: str, asked: StepSpec | None, ids: tuple[str, ...]) -> StepCheck:
        """As judged().

        Raises:
            Unasked: the step cannot be judged.
        """
        if asked is None:
            raise Unasked("this step is not run on its own.")
        for changed in filter(None, map(self.blanks.changed, ids)):
            raise Unasked(f"{changed}. Steps that use it are not run on their own.")
        examples = asked.examples()
        try:
            text = self.text(ids, asked, examples)
        except ValueError as error:
            raise Unasked(f"{error}.") from None
        made, _ = self.elsewhere(ids, examples[0].given)
        if made:
            raise Unasked(f"it uses {' and '.join(sorted(made))}, which another step computes, so "
                          "it is not run on its own.")
        return self.of_answers(id, asked, ids, text, examples)

    def of_answers(self, id: str, asked: StepSpec, ids: tuple[str, ...], text: str,
                   examples: list[Example]) -> StepCheck:
        """As run(), of this text."""
        answers = self.ask(id, text, asked, examples)
        if isinstance(answers, StepCheck):
            missed = repair.uncalled(text, asked, self.blanks.functions)
            return self.at(replace(answers, light=WRONG, seen=()), "not-called", *missed) \
                if missed else answers
        strange = self.elsewhere(ids, examples[0].given)[1]
        said = str((answers[-1].get("error") or {}).get("sentence")) if answers else ""
        if re.search(r"static_assert\(|\bassert .* does not hold", said):
            raise Unasked("it asserts something that does not hold for the small tiles used here.")
        if "'tuple' object has no attribute" in said:
            raise Unasked("it reads a tuple by field names, and the tuple used here has none.")
        noted: tuple[str, ...] = ()
        for one, answer in zip(examples, answers, strict=False):  # an error ends the list
            found = self.judge(one, asked, observe(answer))
            if found is not None and not found.note:
                whole = [(other, left) for other, left in zip(
                    examples, map(observe, answers), strict=False)
                    if self.unfinished(other, asked, left) is None]
                mistake, *more = named.name(whole) or (found.id,)
                says, rule = named.words(mistake, *more)
                is_of_dq = self.stage.steps.get(id) == "dq kv head"
                if is_of_dq and (mistake or "").startswith("heads-"):
                    mistake = "dq-" + mistake
                wrong = StepCheck(
                    id, WRONG, mistake, one.words.partition("; ")[0] if found.place else one.words,
                    (found.lines[0] + one.remark(found, named=bool(says)), *found.lines[1:3]),
                    found.want, found.got, says, rule, found.place, shown=found.shown, example={
                        name: value for name, value in one.given.items() if type(value) is int},
                    evidence=evidence.evidence(one, found))
                if joined := submission.misjoined_tiles(syntax_tree(text)):
                    return self.at(wrong, "truth-of-a-tile", *joined)
                if missed := repair.uncalled(text, asked, self.blanks.functions):
                    return self.at(wrong, "not-called", *missed)
                if (lost := re.search(r"(\w+) is not assigned|local variable '(\w+)'",
                                      found.lines[0])) and (
                        told := repair.unassigned(text, name := lost[1] or lost[2])):
                    return self.at(replace(wrong, seen=(f"Here {name} has no value.",)),
                                   "not-assigned", *told)
                if found.id == "step-returns":
                    return self.at(replace(wrong, seen=()), found.id,
                                   *repair.returned(text, asked))
                for remedied, other, line, words in repair.remedies(
                        text, one.given, asked.leaves, self.blanks.functions):
                    if remedied != mistake and self.is_right(id, other, asked, examples):
                        if remedied.startswith("argument-"):  # Python misses the last one instead
                            wrong = replace(wrong, seen=())
                        return self.at(wrong, remedied, line, words)
                    if remedied == "whole-tensor":  # and there is another mistake
                        rest = self.of_answers(id, asked, ids, other, examples)
                        if rest.light == WRONG and rest.says:
                            return replace(rest, seen=(*rest.seen[:2], words))
                if copied := self.earlier(id, mistake):
                    return replace(wrong, says=copied, mistake=earlier.ID if mistake is None
                                   or named.is_part(mistake) else mistake)
                if strange and mistake == "name-not-defined":
                    if strange <= self.blanks.constants(id):  # all steps may use them
                        raise Unasked(f"it uses {', '.join(sorted(strange))}, which it does not "
                                      "have when it is run on its own.")
                    wrong = replace(wrong, seen=(f"This step uses {', '.join(sorted(strange))}, "
                                                 "which is not among the values it is given.",))
                    name, *more = sorted(strange)
                    if not more and any(
                            self.is_right(id, re.sub(rf"\b{name}\b", other, text), asked, examples)
                            for other, value in one.given.items()
                            if type(value) is int and value > 1  # a factor of 1 says nothing
                            or isinstance(value, np.ndarray)):
                        line = next(number for number, row in enumerate(text.split("\n"), 1)
                                    if re.search(rf"\b{name}\b", row.partition("#")[0]))
                        return self.at(wrong, mistake, line,
                                       f"`{name}` is the wrong variable here.")
                return wrong
            if found is not None:
                noted = noted or (f"This is right, but {found.lines[0]} (with {one.words}).",)
        return StepCheck(id, RIGHT, seen=(*repair.remarks(text, self.stage.filename), *noted))

    def at(self, wrong: StepCheck, mistake: str, line: int, change: str) -> StepCheck:
        """The check of a step with a mistake in this line of which its text, not its numbers,
        tells, and so better than what the error suggests to try."""
        seen = tuple(re.sub(r"\. Try: .*", ".", line, flags=re.DOTALL) for line in wrong.seen)
        return replace(wrong, mistake=mistake, says="", rule="", change=change, seen=seen,
                       place=f"{self.stage.filename}:{line}")

    def placed(self, light: StepCheck) -> StepCheck:
        """A red step with the one change of its text that makes it, or some of its values, right;
        if its mistake has a name, with the line of a change that makes it right."""
        return guarded(lambda: self.changed(light), lambda error: light)

    def changed(self, light: StepCheck, text: str = "") -> StepCheck:
        """As placed(), but raises if the search itself fails.  text: the step's, if not the
        file's."""
        asked = self.entry(light.id)
        examples = asked.examples()
        own = self.text((light.id,), asked, examples)
        text = text or own
        whole = replace(asked, leaves=tuple({*asked.leaves, *self.blanks.names(light.id)[0]}))
        left = [observe(answer) for answer in self.ask(light.id, text, whole, examples)]
        found = [self.judge(one, asked, its) for one, its in zip(examples, left, strict=False)]
        _, worst = min((examples[number].programs, number) for number, one in enumerate(found)
                       if one and not one.note)  # the quickest to run again

        most = TRIES if is_named(light) else repair.MOST * self.times
        begun = self.cpu_seconds()

        def enough(tried: int) -> bool:
            return tried >= most or self.cpu_seconds() - begun > SEARCH_SECONDS * self.times

        def wrong(texts: list[str], some: list[Example]) -> list[list[frozenset[str]] | None]:
            answers = self.ask_all(light.id, texts, asked, some, repair.SECONDS)
            if isinstance(answers, StepCheck):  # one of them ended the worker
                return [None] if len(texts) < 2 else [wrong([text], some)[0] for text in texts]
            return [names(one, some) for one in answers]

        def names(answers: list[dict], some: list[Example]) -> list[frozenset[str]]:
            try:
                return [_names(one, self.judge(one, asked, its), its) for one, its in zip(
                    some, map(observe, answers), strict=True)]
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                return [frozenset("?")]

        def alone(reads: str = "") -> StepCheck:
            line = repair.line(text, asked.leaves, found[worst].name, reads)
            return replace(light, place=f"{self.stage.filename}:{line}" * bool(line))

        if light.mistake == "zero-times-inf" and (told := alone("keep")).place:
            return told
        seen = left[worst]
        if found[worst].want.startswith("shape"):
            seen = replace(seen, error={"id": "shapes-do-not-broadcast"})
        change, ended_early = repair.find(
            text, asked, self.stage.filename, self.blanks.numbers,
            (worst, seen, found[worst].name),
            [_names(*one) for one in zip(examples, found, left, strict=False)], wrong, enough)
        if is_named(light):  # which says more than the change does
            if change is None:
                return alone("h" if named.is_of_heads(light.mistake) else
                             "keep" * (light.mistake == "hidden-scores-zero"))
            return light if change.makes or change.is_elsewhere_too else replace(
                light, place=change.place)
        if change is None and text == own:  # there may be two mistakes
            for id, other, line, words in repair.remedies(
                    text, examples[worst].given, asked.leaves, self.blanks.functions):
                if id == "whole-tensor" and (rest := self.changed(light, other)).change:
                    first = self.at(light, id, line, words)
                    return replace(first, seen=(*first.seen, f"{rest.place}: {rest.change}"))
        if change is None:
            light = light if light.place else alone()
            told = light.says or light.mistake not in SEEN_ONLY
            return light if told or not ended_early else replace(
                light, untried=self.longer(light.id))
        return replace(light, mistake=light.mistake or change.id, place=change.place,
                       change=change.words)

    def longer(self, id: str) -> str:
        """What to say if the search for what is wrong in a step ended early."""
        ask = "" if self.times > 1 or id.startswith("W") else \
            f" To search {THOROUGH} times longer: {overview.alone(id, self.options.directory)}"
        return f"The search for the cause ended early.{ask}"

    def cpu_seconds(self) -> float:
        """CPU seconds that this thread and the worker have used."""
        there = self.session is not None and not self.session.gone
        return time.thread_time() + (times(self.session.pid)[0] if there else 0.0)

    def earlier(self, id: str, mistake: str | None) -> str:
        """A sentence if the step is still the earlier one that it should differ from, or "" """
        other, change = earlier.CHANGES.get(id, ("", ""))
        if not other:
            return ""
        if earlier.is_copy(self.options.directory, other, self.blanks.body(id)):
            return f"this is step {other} unchanged; {change}"
        asked = earlier.DOES.get(id) if mistake is None or named.is_part(mistake) else None
        if asked and self.is_right(id, self.text((id,), asked, asked.examples()), asked,
                                   asked.examples()):
            return f"this does what step {other} does; {change}"
        return ""

    def is_right(self, id: str, text: str, asked: StepSpec, examples: list[Example]) -> bool:
        """Whether the step would be right with this text."""
        answers = self.ask(id, text, asked, examples, repair.SECONDS)
        if isinstance(answers, StepCheck):
            return False
        found = [self.judge(one, asked, observe(answer))
                 for one, answer in zip(examples, answers, strict=False)]
        return len(found) == len(examples) and all(one is None or one.note for one in found)

    def text(self, ids: tuple[str, ...], asked: StepSpec, examples: list[Example]) -> str:
        """As Blanks.text(): a function of the names in the examples."""
        given = {name: name in asked.constants for name in examples[0].given}
        return self.blanks.text(ids, given, asked.kernel, asked.also)

    def elsewhere(self, ids: tuple[str, ...], given: dict) -> tuple[set[str], set[str]]:
        """-> names that the blanks read, and that only another blank of their function makes; all
        names that the function makes."""
        bound, read = (set().union(*parts) for parts in zip(*map(self.blanks.names, ids),
                                                            strict=True))
        others = [other for other in self.blanks.steps if other not in ids
                  and self.blanks.function(other) == self.blanks.function(ids[0])]
        made = set().union(*(self.blanks.names(other)[0] for other in others))
        strange = read - bound - given.keys()
        return strange & made, strange & self.blanks.around(ids)

    def ask(self, id: str, text: str, asked: StepSpec, examples: list[Example], seconds: float = 0
            ) -> list[dict] | StepCheck:
        """Run the step's examples.  seconds: CPU time for one example of a changed step, whose
        errors need no words."""
        answers = self.ask_all(id, [text], asked, examples, seconds)
        return answers if isinstance(answers, StepCheck) else answers[0]

    def ask_all(self, id: str, texts: list[str], asked: StepSpec, examples: list[Example],
                seconds: float = 0) -> list[list[dict]] | StepCheck:
        """As ask(), of several texts."""
        request = {"texts": texts, "seconds": seconds or SECONDS, "kernel": asked.kernel,
                   "asked": list(asked.leaves), "fakes": asked.fakes, "explains": not seconds,
                   "examples": [one.request(asked.kernel) for one in examples]}
        if self.session is None or self.session.gone:
            self.session = None if self.closed else open_session(
                self.stage, self.options, self.source)
            self.options.imports.helper(self.session, self.stage)
        try:
            return self.session.step(request)
        except SubmissionError as error:
            if error.outcome == "grader_fault" or self.closed:
                raise
            if error.waited_for_cpu:
                return StepCheck(id, NONE, seen=("other processes kept it waiting for a CPU.",))
            if error.outcome == "skipped":  # this machine cannot run it
                return StepCheck(id, NONE, seen=(f"{error.sentence}.",))
            return StepCheck(id, WRONG, seen=(f"{error.located(self.stage.filename)}.",))

    def judge(self, one: Example, asked: StepSpec, left: Observed) -> Wrong | None:
        with np.errstate(all="ignore"):  # any numbers may have been left
            return self.unfinished(one, asked, left) or one.check(left)

    def unfinished(self, one: Example, asked: StepSpec, left: Observed) -> Wrong | None:
        """What is wrong if there is nothing to compare, or None."""
        if left.error is not None:
            error = SubmissionError("crashed", **left.error)
            said, place = error.located(self.stage.filename), error.place(self.stage.filename)
            return Wrong((said,), id=error.id or None, place=place)
        if len(left.programs) < one.programs:
            return Wrong(("It returns, so the code below it never runs.",), id="step-returns")
        for names in left.programs:
            for name in asked.leaves:
                if name not in names:
                    return Wrong((f"{name} is not assigned here, but the code below needs it.",))
        return None


def is_named(check: StepCheck) -> bool:
    """Whether its mistake has a name that says where it is."""
    return check.mistake not in PLACELESS and not named.is_part(check.mistake)


def changed(file: submission.Submission, before: bytes | None) -> set[str]:
    """The steps that stood otherwise in the file before; none where that is not known."""
    def bodies(source: bytes) -> dict[str, list[str]]:
        rows = submission.lines(submission.decode(source))
        return {step.id: rows[step.first_line:step.last_line - 1]
                for step in submission.steps("".join(rows))}

    with contextlib.suppress(ValueError, SyntaxError):
        old = bodies(before or file.source)
        return {id for id, body in bodies(file.source).items() if body != old.get(id)}
    return set()


def elsewhere(stage: Stage, file: submission.Submission) -> str:
    """What to say of a file whose steps are all another problem's; "" of any other."""
    numbers = {step.id.partition(".")[0] for step in file.steps} - {"W"}
    if not numbers or str(stage.number) in numbers:
        return ""
    return (f"{file.path.name} has the steps of problem {', '.join(sorted(numbers))}, not of "
            f"problem {stage.number}")


def damaged(file: submission.Submission) -> str:
    """The step whose markers were changed; "" if none were, or the file has no markers."""
    if file.steps or file.source is None or file.state == "syntax_error":
        return ""
    text = submission.decode(file.source)
    if not re.search(r"^\s*# (BEGIN|END) SOLUTION [\dW]+\.\d+", text, re.MULTILINE):
        return ""
    try:
        submission.steps(text)
    except ValueError as error:
        lost = re.search(r"(line \d+: )step (\S+) (begins|ends) inside (?:no step|step (\S+))"
                         r"|step (\S+) is never closed", str(error))
        if lost is None:
            return str(error)
        _, step, verb, around, unclosed = lost.groups()
        begin, id = ("BEGIN", step) if verb == "ends" and not around else (
            "END", around or unclosed)
        return f"the line `# {begin} SOLUTION {id}` is missing or moved ({error})"
    return ""


def _names(one: Example, found: Wrong | None, left: Observed) -> frozenset[str]:
    """The names that are wrong in an example; "?" for what is right but not as in the lesson."""
    if found is not None and not found.note and left.error is None:
        return found.names
    right = found is None and (one.exact is None or one.exact(left))
    return frozenset() if right else frozenset("?")
