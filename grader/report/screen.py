"""Prints what a person reads: progress, a tick per case, what went wrong, a summary, what is next.
"""

import collections
import contextlib
import itertools
import os
import re
import shutil
import sys
import textwrap
import threading
import time
import unicodedata

from grader.course.stages import Stage
from grader.host.doctor import CLOSED
from grader.report.results import Check, Run, StageResult, told
from grader.text import ranges

WIDTH = 100  # or that of a narrower terminal
DETAIL_LINES = 24  # of a traceback, or of the submission's output
MARKS = {"pass": "✅", "skipped": "➖", "not_started": "➖", "grader_fault": "⚠️"}
FAIL = "❌"
RED = "✗  "  # as wide as a mark: what passes though a step is red, and not with all points
WORDS = {
    "wrong": "Failed: wrong", "crashed": "Failed: crashed", "timeout": "Failed: timeout",
    "rejected": "Rejected", "skipped": "Skipped", "grader_fault": "Grader Fault",
    "not_started": "Not Started", "needless work": "Failed: needless work",
}
LIGHTS = {"wrong": ("✗", "31"), "right": ("✓", "32"), "blank": ("·", ""), "none": ("–", "")}
KINDS = {"standard": "Correctness", "robust": "Robust", "walk": "Wasted-Tiles", "beyond": "Beyond"}
COLOURS = {"pass": "32", "skipped": "33", "grader_fault": "35"}
OPEN = ("Self-check: the files ran with all rights of your account, so this is a fence against "
        "mistakes, not proof against a determined cheat.")
# What confined the files, by the names under `confined`.
HELD = {
    "user": "as another account", "files": "writing only into a folder of their own, this one "
    "hidden", "reads": "reading no other files than Python's and the system's",
    "network": "without network", "signals": "unable to signal others",
    "processes": "unable to change other processes", "ipc": "without System V shared memory",
    "privileges": "without root's privileges"}


class Reporter:
    """Writes to one stream.  On a terminal it shows a live line and, unless NO_COLOR is set,
    colour; but not on one with TERM=dumb, as in our notebooks.

    verbose: a line for every case, and what confined the files.
    whole: a failing case in full even if a step is red, because it was asked for by name.
    brief: for what is right, only the line of its stage.
    seed: for the result line of a run of one stage; a run of several stages says it in its summary.
    """

    def __init__(self, stream=None, verbose: bool = False, seed: int | None = None,
                 whole: bool = False, brief: bool = False):
        self.stream = sys.stdout if stream is None else stream
        self.verbose, self.seed, self.whole = verbose, seed, whole or verbose
        self.brief = brief and not verbose
        self.is_terminal = (bool(getattr(self.stream, "isatty", lambda: False)())
                            and os.environ.get("TERM") != "dumb")
        self.colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self.width = min(WIDTH, shutil.get_terminal_size().columns) if self.is_terminal else WIDTH
        self.live: threading.Event | None = None  # of the last line, which is overwritten
        self.title = ""  # the stage's, until its first line
        self.begun = False  # whether a stage's title was shown
        self.announced: Stage | None = None  # the stage whose title is shown already
        self._forget()

    def _forget(self) -> None:
        """Reset what was shown, and held back, of a stage."""
        self.live = None
        self.failures: set[tuple[str, str]] = set()  # kinds of failure shown
        self.passed: dict[str, tuple[Check, str]] = {}  # and its line, until none can fail
        self.printed = False  # whether the file printed in a case that passed, unseen
        self.lit, self.red = False, []  # whether steps were shown; the wrong ones

    # ------------------------------------------------------------- progress
    def first_stage(self, stage: Stage) -> None:
        """Show the title at once, while imports still run."""
        self.stage_begins(stage)
        self._announce()
        self.announced = stage

    def stage_begins(self, stage: Stage) -> None:
        self._forget()
        if self.announced is stage:
            self.announced = None
            return
        self.title = f"--- Running Autograder for Problem {stage.number}: {stage.title} ---"

    @contextlib.contextmanager
    def working(self, stage: Stage, what: str):
        """Show a live line (stage, what, seconds) while the block runs, on a terminal only."""
        self._announce()
        if not self.is_terminal:
            yield
            return
        stop = self.live = threading.Event()
        thread = threading.Thread(target=self._tick, args=(stop, stage, what), daemon=True)
        try:  # a save may end this anywhere, even inside start() or before set()
            thread.start()
            yield
        finally:
            stop.set()
            with contextlib.suppress(RuntimeError):  # it never started
                thread.join()
            self.live = None
            self._write("\r\x1b[K")

    def _tick(self, stop: threading.Event, stage: Stage, what: str) -> None:
        """Count seconds until stop is set or another grading begins."""
        start = time.monotonic()
        while self.live is stop and not stop.is_set():
            text = f"... problem {stage.number}: {what}, {time.monotonic() - start:.0f} s"
            self._write("\r\x1b[K" + text[: self.width - 1])
            stop.wait(0.5)

    def show_steps(self, stage: Stage, steps: list[dict], why: str = "") -> None:
        """Show one sign per step, and what is wrong."""
        if why:
            self._line(f"steps  not checked: {why}.")
        if not any(step["light"] in ("right", "wrong") for step in steps):
            return
        self.lit, self.red = True, [step["id"] for step in steps if step["light"] == "wrong"]
        if self.brief and not self.red:
            return
        cells = []
        for light, (sign, colour) in LIGHTS.items():
            if ids := [int(step["id"].partition(".")[2]) for step in steps
                       if step["light"] == light]:
                which = re.sub(r"\d+", rf"{stage.number}.\g<0>", ranges(ids))
                cells.append(self._paint(f"{sign} {which}", colour))
        self._line("steps  " + "   ".join(cells), wrap=False)
        self._red_steps(steps)
        unlit: dict[str, list[int]] = {}
        for step in steps:
            if step["light"] == "right" and step["text"] and not self.red:
                self._line(f"     step {step['id']}: {step['text']}")
            if step["light"] == "none" and step["text"]:
                unlit.setdefault(step["text"], []).append(int(step["id"].partition(".")[2]))
        for text, ids in unlit.items():
            which = re.sub(r"\d+", rf"{stage.number}.\g<0>", ranges(ids))
            self._line(f"– step{'s' * (len(ids) > 1)} {which}: {text}")

    def _red_steps(self, steps: list[dict]) -> None:
        """Show what is wrong with the first red step, and each other one in a line."""
        red = [step for step in steps if step["light"] == "wrong"]
        for step in red:
            first, *lines = step["text"].splitlines() if step is red[0] else [f"{told(step)}."]
            self._line(f"✗ step {step['id']}: {first}", "wrong")
            for line in lines:  # the second and third that were seen are the rows of a table
                self._line("     " + line, wrap=line not in step.get("seen", ())[1:])

    def check_done(self, stage: Stage, check: Check) -> None:
        """Show the first failing case, in full if no step is red, and what is new in others; if
        none fails, one line per passing case.  If verbose, show all in full."""
        if self.lit and (check.diagnosis or {}).get("id") == "blank-step" and not self.verbose:
            return  # the steps say so
        # The lines of a red step, above, say more, unless something else is wrong here.
        about = check.diagnosis or {}
        brief = self.red and not self.whole and (
            about.get("kind", "step") == "step" if check.outcome == "wrong" else
            {about.get("step"), *check.steps} & {*self.red})
        words = "Passed!" if check.outcome == "pass" else WORDS[check.outcome]
        line = (f"{_mark(check.outcome)} P{stage.number} {KINDS[check.group]} Test {words} "
                f"{check.label}")
        if check.outcome == "pass":
            if self.verbose:
                self._line(line, check.outcome)
                self._detail(check.detail)
            else:
                self.passed[check.name] = check, line
            self.printed = self.printed or bool(check.detail.strip()) and not self.verbose
            return
        self.passed.pop(check.name, None)  # it may have failed in its replay
        alike, first = _failure(check) in self.failures, not self.failures
        self.failures.add(_failure(check))
        if first or self.verbose:
            self._line(line, check.outcome)
            for line in () if brief else check.lines:
                self._line("     " + line, wrap=line != f"again: {check.again}")
            for line in check.picture:
                self._line("     " + line, wrap=False)
            if not brief:
                self._detail(check.detail)
        elif not (alike or brief):
            said = f": {check.what}" * (check.outcome != "wrong" and bool(check.what))
            self._line(line + said, check.outcome)

    def stage_ends(self, stage: Stage, result: StageResult) -> None:
        """Show what was left out, why the stage ended, and its result in one line."""
        if result.outcome == "not_started" and self.seed is None:
            return
        self._others()
        if result.sentence and not result.checks:
            mark = "" if result.outcome == "pass" else _mark(result.outcome) + " "
            said = result.sentence.replace("\n", "\n     ")  # a file's words never begin a line
            self._line(f"{mark}P{stage.number} {result.outcome.replace('_', ' ')}, "
                       f"{_points(result)} points: {said}", result.outcome)
            self._detail(result.detail)
            return
        if self.printed and not self.brief:
            self._line("     What was printed in passing cases is shown with --verbose.")
        beyond = [check for check in result.checks if check.group == "beyond" and check.asks]
        if len(result.checks) > len(beyond) > 0:
            self._line(_beyond(beyond))
        for remark in result.remarks:
            self._line(textwrap.fill(remark, WIDTH - 5, initial_indent="     ",
                                     subsequent_indent="     "))
        if not self.lit:
            self._red_steps(result.steps)
        if (said := result.passed_with_red) and not result.doubtful:
            self._line(f"     {said}")
        outcome = ("not_started" if result.waits else result.outcome) if result.sentence else ""
        said = f". {result.sentence[:1].upper()}{result.sentence[1:]}" * bool(outcome)
        mark = f"{_mark(outcome)} " * bool(outcome)
        if result.doubtful:
            mark, outcome = RED, "wrong"
        self._line(mark
                   + f"P{stage.number}: {self._outcome_words(result)}, {_points(result)} points, "
                   f"{result.seconds:.1f} s"
                   + f", seed\N{NO-BREAK SPACE}{self.seed}" * (self.seed is not None)
                   + said.replace("\n", "\n     "), outcome)
        self._detail(result.detail)

    def _others(self) -> None:
        """Show passing cases, if none fails: a line for each standard one and one for all robust
        ones."""
        if not self.failures and not self.brief:
            robust = [check for check, _ in self.passed.values() if check.group == "robust"]
            for check, line in self.passed.values():
                if check.group != "robust":
                    self._line(line, "pass")
                elif check is robust[-1]:
                    alone = sum(map(_is_one_case, robust))
                    said = [f"{alone} case{'s' * (alone > 1)}"] * bool(alone)
                    said += [_bare(one.label) for one in robust if not _is_one_case(one)]
                    self._line(f"{line.partition('Passed!')[0]}Passed! ({'; '.join(said)})", "pass")
        self.passed = {}

    def warm_up(self, outcome: str, text: str, lines: tuple[str, ...] = ()) -> None:
        """Show a warm-up in one line, and what is wrong with it."""
        self._line(f"{_mark(outcome)} {text}", outcome)
        for line in lines:
            self._line("     " + line)

    def clear(self) -> None:
        """Clear a terminal's screen, but not what has scrolled away."""
        if self.is_terminal:
            self._write("\x1b[H\x1b[2J")

    def say(self, text: str) -> None:
        """Print the text as separate lines."""
        self._line(text)

    def table(self, lines: list[str]) -> None:
        """Print benchmark lines, already laid out."""
        self._others()
        for line in lines:
            self._line(line, wrap=False)

    # -------------------------------------------------------------- summary
    def summary(self, run: Run, next_command: str) -> None:
        """Print one line per stage, if there are several, and their sum; then what to do next."""
        self.title = ""
        if len(run.stages) > 1:
            self._line("")
            self._line(self._paint("--- Summary ---", "1"), wrap=False)
            for result in run.stages:
                mark, colour = f"{_mark(result.outcome)} ", _colour(result.outcome)
                said = result.outcome.replace("_", " ")
                if result.doubtful:
                    mark, colour, said = RED, _colour("wrong"), result.steps_right
                elif result.outcome not in ("pass", "not_started") and result.steps_right:
                    said += f", {result.steps_right}"
                row = (f"{mark}P{result.stage} {result.title:<31} {said:<29} "
                       f"{_points(result):>11}")
                self._line(self._paint(row, colour), wrap=False)
            total = sum(result.points for result in run.stages)
            full = sum(result.max_points for result in run.stages)
            self._line(f"Total: {total:g} of {full} points on {run.device}, seed {run.seed}")
        if self.verbose:
            self._line(_isolation(run))
        self.next(next_command)

    def next(self, command: str) -> None:
        """Print what to type now."""
        self._line(f"Next: {command}", wrap=False)

    # -------------------------------------------------------------- helpers
    def _detail(self, text: str) -> None:
        """Print a traceback or the submission's output, fenced so that it cannot pose as a
        verdict."""
        lines = text.strip("\n").splitlines()
        if not lines:
            return
        if len(lines) > DETAIL_LINES:
            cut = len(lines) - DETAIL_LINES
            lines = [f"({cut} earlier lines are left out)", *lines[-DETAIL_LINES:]]
        for line in lines:
            self._line("   | " + line, wrap=False)

    def _outcome_words(self, result: StageResult) -> str:
        if result.waits:
            return "unfinished"
        checks = [check for check in result.checks if check.group != "beyond"] or result.checks
        if not checks:
            return result.outcome.replace("_", " ")
        counts = collections.Counter(check.outcome for check in checks)
        words = [f"{counts.pop('pass', 0)} of {len(checks)} passed"]
        if result.doubtful:
            if {check.group for check in checks} == {"standard"} and len(checks) > 1:
                words = ["standard tests pass"]
            several = len(result.red) > 1
            words[0] += (f"; step{'s' * several} {', '.join(result.red)} "
                         f"{'are' if several else 'is'} wrong")
        if [*counts] != [result.outcome] or result.outcome == "skipped":  # else all that failed
            words += [f"{n} {outcome}" for outcome, n in counts.items()]
        return ", ".join(words)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text

    def _announce(self) -> None:
        """Print the stage's title, once there is something to say under it."""
        if self.title:
            title, self.title = self.title, ""
            if self.begun:
                self._line("")
            self.begun = True
            self._line(self._paint(title, "1"), wrap=False)

    def _line(self, text: str, outcome: str = "", wrap: bool = True) -> None:
        self._announce()
        if self.live:  # a verdict may come while the next case runs
            self._write("\r\x1b[K")
        for line in _wrapped(text, self.width) if wrap else [text]:
            line = line.replace("\N{NO-BREAK SPACE}", " ")
            self._write(self._paint(line, _colour(outcome)) + "\n")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:  # `| head` has read enough; go on for the JSON
            if self.stream is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.stream = open(os.devnull, "w", encoding="utf-8")


def _mark(outcome: str) -> str:
    return MARKS.get(outcome, FAIL)


def _bare(label: str) -> str:
    """The label without brackets around the whole of it."""
    depths = list(itertools.accumulate((char == "(") - (char == ")") for char in label))
    return label[1:-1] if label[:1] == "(" and 0 not in depths[:-1] else label


def _is_one_case(check: Check) -> bool:
    """Whether the check is a single case, and not the tile borders, configurations or
    compilation."""
    return check.name.startswith(("robust/", "beyond/")) and check.name not in (
        "robust/contract", "robust/configurations")


def _failure(check: Check) -> tuple[str, str]:
    """The kind of a failure: all wrong numbers count as one, because fixing one mistake may fix
    them all; errors differ by their words, not by numbers in them."""
    return check.outcome, "" if check.outcome == "wrong" else re.sub(r"\d+", "", check.what)


def _beyond(checks: list[Check]) -> str:
    """A line on cases that decide nothing: "extra checks, not graded: 4 of 6 passed, not ..." """
    missed = [check.asks for check in checks if check.outcome != "pass"]
    said = "all" if not missed else f"{len(checks) - len(missed)} of {len(checks)}"
    failed = f", not {', '.join(missed)}" * bool(missed)
    return f"     extra checks, not graded: {said} passed{failed}"


def _isolation(run: Run) -> str:
    """A line on what confined all files that were loaded."""
    loaded = [set(result.confined) for result in run.stages if result.checks or result.confined]
    held = [name for name in HELD if loaded and all(name in c for c in loaded)]
    if not {"user", "files"} & set(held):
        return OPEN
    still = [words for name, words in CLOSED.items() if name not in held]
    return (f"Isolation: the files ran {', '.join(map(HELD.get, held))}. "
            + f"Not closed here: {', '.join(still)}. " * bool(still)
            + "Up to five right answers per stage, or all with --replay-all, were computed again "
            "from their kernels alone, on other numbers, by a process without the file.")


def _colour(outcome: str) -> str:
    return COLOURS.get(outcome, "31") if outcome else ""


def _points(result: StageResult) -> str:
    return f"{result.points:g} of {result.max_points}"


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, wrapped with a deeper indent."""
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        lines += [line] if _width(line) <= width else textwrap.wrap(
            line, width - 1, subsequent_indent=" " * max(5, indent + 2), break_long_words=False,
            break_on_hyphens=False)
    return lines


def _width(text: str) -> int:
    """Columns on a terminal, where emoji take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
