"""Holds what the grader found, as plain records that judge/ fills, and writes their JSON.

The JSON file is complete at every moment; it is rewritten after every stage.
"""

import json
import math
import re
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader.assignment.submission import Submission
from grader.course.stages import Stage, no_triton
from grader.host import files

FORMAT = 1  # of the JSON
LINES, WIDTH = 12, 75  # of what is said of a case, in a report
STEP_EMPTY = "step-empty"  # diagnosis: nothing stands in a step, not even the starter's raise
RAISE_LEFT = "raise-left"  # mistake: the step is written, but the starter's raise is still there
RIGHT, WRONG, BLANK, NONE = "right", "wrong", "blank", "none"  # lights


@dataclass(frozen=True)
class StepCheck:
    """One step, run on its own.  as_dict() is what StageResult.steps and the JSON hold of it.

    light: right, wrong, blank or none; mistake: its id.  What is said of it comes in parts, each
    empty where it is not known:
        given   the example in words, "q of shape (2, 3, 5, 6), start_m=0"
        seen    what is wrong with what the step returned, in at most three lines; of a right step
                advice; of one without a light, why it has none
        want    the value there should be, and
        got     the value there is; both are in seen, too
        says    the mistake in words, "the window is one key too wide"
        rule    what it breaks, "query i sees keys i - W + 1 ... i"
        place   where it is, "problem_1.py:95"
        change  what is wrong in that line
        untried  that the search for what is wrong ended early, and how to search on
        evidence  given, expected and got in numbers, a mask or tiles: step_checks/evidence.py
    shown: the whole of what is wrong, for --step; example: the numbers that were given, by name.
    """

    id: str
    light: str
    mistake: str | None = None
    given: str = ""
    seen: tuple[str, ...] = ()
    want: str = ""
    got: str = ""
    says: str = ""
    rule: str = ""
    place: str = ""
    change: str = ""
    untried: str = ""
    shown: tuple[str, ...] = ()
    example: dict[str, int] = field(default_factory=dict)
    evidence: dict = field(default_factory=dict)

    @property
    def lines(self) -> tuple[str, ...]:
        """All that is said of it: the mistake, what shows it, the rule.  The first line begins with
        the place, if that is known."""
        quoted = (re.match("`([^`]+)`", self.change) or ["", ""])[1]
        known = self.says and self.change == "The mistake is in this line."
        seen = [re.sub(rf"^{re.escape(self.place)}(:\d+)?: ", "", line) if self.place else line
                for line in self.seen]
        if quoted:  # what crashed quotes the line, too, and guesses
            guess = (rf"(: {re.escape(quoted)}(\nEither the mask.*)?"
                     r"|\. (Either the mask|Try: make the shapes|Try: tl.dot needs).*)$")
            seen = [re.sub(guess, ".", line, flags=re.M) for line in seen]
        if self.given and seen:
            end = "" if seen[0].endswith((".", "?")) else "."
            seen[0] += f"{end} Given: {self.given}."
        lines = (*[f"{self.says}."] * bool(self.says),
                 *[self.change] * bool(self.change and not known), *seen,
                 *[f"the rule: {self.rule}."] * bool(self.rule),
                 *[self.untried] * bool(self.untried))
        return (f"{self.place}: " * bool(self.place) + lines[0], *lines[1:]) if lines else ()

    def as_dict(self) -> dict:
        parts = {"given": self.given, "seen": list(self.seen), "want": self.want, "got": self.got,
                 "says": self.says, "rule": self.rule, "place": self.place, "change": self.change,
                 "evidence": self.evidence}
        return {"id": self.id, "light": self.light, "mistake": self.mistake,
                "text": "\n".join(self.lines)} | {
            name: part for name, part in parts.items() if part}


def told(step: dict) -> str:
    """What is wrong with a step of the JSON, in one sentence: its mistake, or else what it
    returned."""
    change = f"{step['place']}: {step['change']}" if step.get("change") else ""
    seen = [*step.get("seen", ()), *step["text"].splitlines()[1:], step["text"]]  # or an older JSON
    return (step.get("says") or change or seen[0]).partition("\n")[0].removesuffix(".")


@dataclass(frozen=True)
class Check:
    """One case of one stage; it does not change.

    What is said of one that failed comes in parts, each empty where there is nothing to say:
        what     what is wrong, in one sentence
        place    where that is: "rows 100-256", "step 4.5, copied from step 3.5"
        seen     further sentences, those that say most first
        advice   what to try
        look_at  which step to read again, and the command for its hint
        again    the command that runs this one case again
    """

    name: str
    group: str  # "standard", "robust", "walk" or "beyond"
    outcome: str
    label: str = ""  # the shape in words, as printed in brackets
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    where: str = ""  # as in the JSON: wrong rows, or a line of the file
    diagnosis: dict | None = None  # "id", "kind", "text", "step": docs/classes.md
    steps: tuple[str, ...] = ()  # that place and look_at name
    what: str = ""
    place: str = ""
    seen: tuple[str, ...] = ()
    advice: str = ""
    look_at: str = ""
    again: str = ""
    detail: str = ""  # a traceback or the submission's own output
    picture: tuple[str, ...] = ()  # --show: the effective attention matrix
    seconds: float = 0.0
    kernels: tuple[str, ...] = ()  # what was launched, or compiled: name@line
    asks: str = ""  # what it asks beyond the assignment
    seed: int | None = None  # gives the numbers it failed on, if not the run's
    not_checked: bool = False  # skipped, because other processes had the CPUs

    @property
    def stands(self) -> bool:
        """Whether it costs no points."""
        return self.outcome == "pass" or self.not_checked

    @property
    def points_to(self) -> str | None:
        """The step to look at, if one is known."""
        if self.outcome == "needless work":
            return next(iter(self.steps), None)
        return (self.diagnosis or {}).get("step")

    def excused(self) -> "Check":
        """-> the case that ended for want of CPU time; no verdict follows from that."""
        return replace(self, outcome="skipped", diagnosis=None, not_checked=True)

    @property
    def lines(self) -> tuple[str, ...]:
        """All that is said of it, a line each; so much that a report shows it in 12."""
        seen, tail = [*self.seen], [f"tip: {self.advice}"] * bool(self.advice)
        while True:
            lines = (*[self.what] * bool(self.what), *[f"where: {self.place}."] * bool(self.place),
                     *seen, *tail, *[self.look_at] * bool(self.look_at),
                     *[f"again: {self.again}"] * bool(self.again))
            if not seen or sum(len(textwrap.wrap(line, WIDTH)) for line in lines) <= LINES:
                return lines
            seen.pop()

    @property
    def message(self) -> str:
        return "\n".join(self.lines)

    def fail(self, outcome: str, what: str, *seen: str, id: str = "", step: str | None = None,
             **parts) -> "Check":
        """-> the same case, which did not pass.  parts: of what is said of it; id, step: of its
        diagnosis, where that needs no search."""
        nothing = dict.fromkeys(("place", "advice", "look_at", "again"), "")
        return replace(self, outcome=outcome, what=what, seen=seen, diagnosis={
            "id": id, "kind": "observed", "text": what, "step": step} if id else None,
            **nothing | parts)


@dataclass
class StageResult:
    """One stage.  points: 70 % for the standard cases, 20 % for the robust ones and, if both are
    right, 10 % for no wasted tiles; 0 if rejected."""

    stage: int
    title: str
    max_points: int
    outcome: str = "skipped"
    points: float = 0.0
    sha256: str | None = None
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    benchmark: dict | None = None
    kernels: set[str] = field(default_factory=set)  # launched by any case: name@line
    confined: tuple[str, ...] = ()  # what confined the worker: names of screen.HELD
    sentence: str = ""  # why there are no checks, or why they ended early
    detail: str = ""
    steps: list[dict] = field(default_factory=list)  # a light each: id, light, mistake, text
    earned: list[str] = field(default_factory=list)  # groups of cases whose points were earned
    remarks: list[str] = field(default_factory=list)  # what was asked of it; no points
    pictures: list = field(default_factory=list)  # of grader/page/pictures.py, for --page

    @property
    def red(self) -> list[str]:
        """The steps that are wrong when run on their own."""
        return [step["id"] for step in self.steps if step["light"] == "wrong"]

    @property
    def doubtful(self) -> bool:
        """Whether a step is red and no case shows it, but not all points were earned: some cases
        did not run, or tiles are wasted."""
        return bool(self.red) and self.outcome == "pass" and self.points < self.max_points

    @property
    def passed_with_red(self) -> str:
        """What to say about red steps if the cases pass; that they cost no points is said only if
        all cases ran."""
        if not self.red or self.outcome != "pass":
            return ""
        whole = self.points == self.max_points
        return (f"All tests{' that ran' * (not whole)} pass, but this step does not do what its "
                "comment asks." + " It costs no points: take it as advice." * whole)

    @property
    def to_fix(self) -> str:
        """What to do before the next run, "fix step 3.5": a red step, an empty one, or the one a
        case points to."""
        if self.red:
            return f"fix step {self.red[0]}"
        if any((check.diagnosis or {}).get("id") == STEP_EMPTY for check in self.checks):
            return "write step " + next(
                step["id"] for step in self.steps if step["light"] == BLANK)
        steps = [check.points_to for check in self.checks
                 if check.outcome not in ("pass", "skipped") and check.group != "beyond"]
        return f"look at step {steps[0]}" if steps and steps[0] and not self.waits else ""

    @property
    def first_wrong(self) -> str:
        """The name of the first wrong case that can be run again; "" if a call crashed before it,
        because then the report explains the crash."""
        return next((check.name if check.again else "" for check in self.checks
                     if check.group != "beyond" and (check.outcome == "crashed" or
                     check.again.endswith(f" --case {check.name}"))), "")

    @property
    def waits(self) -> bool:
        """Whether it ended early because of blank steps, and nothing that is written failed."""
        return self.outcome == "crashed" and bool(self.checks) and all(
            check.outcome == "pass" or (check.diagnosis or {}).get("id") == "blank-step"
            for check in self.checks)

    @property
    def steps_right(self) -> str:
        """ "5 of 8 steps right"; "" if no step was checked."""
        lights = [step["light"] for step in self.steps]
        counted = [light for light in lights if light != "none"]
        if lights and self.outcome in ("wrong", "crashed", "timeout") and {*lights} == {"right"}:
            return "every step is right on its own"
        return f"{counted.count('right')} of {len(lights)} steps right" if counted else ""


def read_beside(check: Check) -> bool:
    """Whether NaN from around the inputs got into an answer.  The answer then depends on whatever
    is in that memory, and two runs need not agree."""
    return check.outcome == "wrong" and "-guarded" in check.name and any(
        not math.isfinite(error["fro"]) for error in check.errors.values())


def settled_by_reading(stage: Stage, file: Submission, result: StageResult) -> bool:
    """Whether reading the file is enough to know how the stage ends; result is then filled in."""
    result.sha256, result.steps = file.sha256, unlit(file)
    if file.state != "ready":
        result.outcome = "crashed" if file.state == "syntax_error" else file.state
        result.sentence = file.located
        if file.state == "not_started" and file.steps:
            result.sentence += f"; still to write: {', '.join(file.blank_new)}."
            if n := len(file.blank_carried):
                result.sentence += (f" The other {n} steps are copies" if n > 1 else
                                    " The other step is a copy") + (
                    f" of earlier ones: python -m grader.carry {stage.number} fills them in.")
    elif stage.needs_triton and (why := no_triton()):
        result.outcome, result.sentence = "skipped", why
    else:
        return False
    return True


def unlit(file: Submission) -> list[dict]:
    """The steps of a file that is not run."""
    left = file.left_raises
    return [(StepCheck(step.id, WRONG, RAISE_LEFT, seen=(left[step.id],)) if step.id in left else
             StepCheck(step.id, BLANK if step.id in file.blank_steps else NONE)).as_dict()
            for step in file.steps]


@dataclass
class Run:
    """A whole run: where it ran, with which seed, and a result for every stage."""

    device: str
    torch: str
    triton: str | None
    seed: int
    grader: str  # its version and hash: assignment.version()
    stages: list[StageResult] = field(default_factory=list)

    def exit_code(self) -> int:
        """0 every stage passed, 1 a stage did not, 3 the grader itself failed."""
        outcomes = [result.outcome for result in self.stages]
        if "grader_fault" in outcomes:
            return 3
        return 0 if outcomes and all(outcome == "pass" for outcome in outcomes) else 1


def as_dict(run: Run) -> dict:
    """The run in the published format; NaN and inf, which JSON lacks, become null."""
    return {"format": FORMAT, "grader": run.grader, "device": run.device, "torch": run.torch,
            "triton": run.triton, "seed": run.seed,
            "stages": [_stage(result) for result in run.stages]}


def write(run: Run, path: Path) -> None:
    """Replace the file in one step, with permissions that let a gradebook read it."""
    text = json.dumps(as_dict(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files.write(path, text.encode())


def _stage(result: StageResult) -> dict:
    return {"stage": result.stage, "title": result.title, "outcome": result.outcome,
            "points": result.points, "max_points": result.max_points, "earned": result.earned,
            "sha256": result.sha256, "seconds": round(result.seconds, 3),
            "message": result.sentence, "remarks": result.remarks,
            "detail": result.detail, "confined": list(result.confined),
            "steps": _steps(result), "checks": [_check(check) for check in result.checks],
            "benchmark": _finite(result.benchmark)}


def _steps(result: StageResult) -> list[dict]:
    """The steps.  If the stage passes, a red step stays red, with a note that the cases decide."""
    if not (said := result.passed_with_red):
        return result.steps
    return [step | {"text": f"{said} {step['text']}"} if step["light"] == "wrong" else step
            for step in result.steps]


def _check(check: Check) -> dict:
    return {"name": check.name, "group": check.group, "outcome": check.outcome,
            "errors": _finite(check.errors), "where": check.where, "diagnosis": check.diagnosis,
            "message": check.message, "not_checked": check.not_checked}


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
