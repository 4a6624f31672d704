"""Runs the autograder over all files of a class, as many at once as the machine can hold.

    at once    every file without a record, without timing
    alone      what timed out, or failed because of the grader, with nothing else running
    timed      on a GPU: what passed, one at a time per GPU

Other processes, on this host or on others that share RESULTS, may work on the same class.  Whoever
has the lock of a unit grades it, and the rounds go on until every unit has a record.
"""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from classroom.child import USAGE, Child
from classroom.gather import Submitted
from classroom.machine import Machine
from classroom.reports import unconfirmed, without_checks
from classroom.store import Store, Unit
from grader.assignment.record import sha256
from grader.judge.points import SHARES

POLL_SECONDS = 0.2
OTHERS_SECONDS = 2.0  # between two looks at the work of other processes
TRIES = 2  # further tries, if the grader itself failed
FINISHED = {"pass", "rejected"}  # outcomes after which there are times


@dataclass
class Job:
    """A child and the units it grades, which are locked until they have records."""

    child: Child
    student: Submitted
    units: dict[int, Unit]  # by stage
    kind: str  # "at once", "alone" or "timed"
    slot: int


class Batch:
    """Grades all units of these students.  account: the one files run as; say: shows progress."""

    def __init__(self, students: list[Submitted], stages: list[int], store: Store,
                 machine: Machine, *, hidden: list[Path], benchmark: bool, worker_user: str,
                 account: str, say: Callable[[str], None], cases: Path | None = None):
        self.store, self.machine, self.account, self.say = store, machine, account, say
        self.times_it = benchmark and machine.device == "cuda"
        self.units: dict[str, list[Unit]] = {
            student.key: [Unit(stage, sha256(data)) for stage, data in student.files.items()
                          if stage in stages and stage not in student.refused]
            for student in students}
        self.every = list(dict.fromkeys(chain.from_iterable(self.units.values())))
        self.students = {student.key: student for student in students}
        settings = store.settings
        self.options = ["--device", settings.device, "--timeout", str(settings.timeout),
                        "--stage-timeout", str(settings.stage_timeout), "--memory",
                        str(machine.memory_gib), "--worker-user", worker_user,
                        "--assignment", settings.assignment]
        if settings.class_seed is not None:
            self.options += ["--seed", str(settings.class_seed)]
        self.options += ["--cases", str(cases.resolve())] if cases else []
        self.options += chain.from_iterable(("--hide", str(path.resolve())) for path in hidden)
        self.jobs: list[Job] = []
        self.tries: dict[Unit, int] = {}  # by this process
        self.count = 0  # children so far

    def run(self) -> None:
        """Grade until every unit has its final record.  Raises ValueError: the autograder rejects
        its arguments; KeyboardInterrupt: on SIGINT, SIGTERM and SIGHUP, unless ignored at the
        start, after all children have ended and what they finished is recorded."""
        previous = {number: signal.signal(number, signal.default_int_handler)
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                    if signal.getsignal(number) != signal.SIG_IGN}  # nohup ignores SIGHUP
        try:
            self.read()
            while True:
                self._round("at once", self.machine.at_once)
                self._round("alone", 1)
                self._round("timed", len(self.machine.gpus))
                if not self._left():
                    return
                time.sleep(OTHERS_SECONDS)  # others have the locks, or have died
                self.read()
        finally:
            for number in previous:  # so that a second Ctrl-C leaves no child alive
                signal.signal(number, signal.SIG_IGN)
            self._stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def read(self) -> None:
        """Read the records of all units."""
        for unit in self.every:
            self.store.read(unit)

    def _left(self, kind: str | None = None) -> list[Unit]:
        """The units still to be graded, in this way or in any."""
        return [unit for unit in self.every
                if (found := self._kind(unit)) and kind in (None, found)]

    def _kind(self, unit: Unit) -> str | None:
        """How a unit is to be graded next; None if its record is final."""
        record = self.store.known.get(unit)
        if record is None:
            return "at once"
        outcome = record["stage"]["outcome"]
        if outcome == "grader_fault":
            return "alone" if self.tries.get(unit, 0) <= TRIES else None
        if unconfirmed(record):
            return "alone"
        to_time = self.times_it and outcome == "pass" and record["timing"] is None
        return "timed" if to_time and standard_case(record) is not None else None

    def _round(self, kind: str, slots: int) -> None:
        """Grade every unit to be graded like this that no other process is grading."""
        alone = kind != "at once"
        if not self._left(kind) or not self._has_host(alone, kind):
            return
        try:
            left = set(self._left(kind))
            waiting = [key for key, units in self.units.items() if left & set(units)]
            while waiting or self.jobs:
                free = set(range(slots)) - {job.slot for job in self.jobs}
                while waiting and free:
                    key = waiting.pop(0)
                    if units := self._locked(key, kind):
                        self._begin(key, units, kind, free.pop())
                        waiting[:0] = [key] * alone  # it may have more units
                self._look()
                if self.jobs:
                    time.sleep(POLL_SECONDS)
        finally:
            if not self.jobs:
                self.store.unlock(self.store.host_lock)

    def _has_host(self, alone: bool, kind: str) -> bool:
        """Wait until no other process of this host grades beside what must run alone, or alone
        beside us.  -> whether anything is still to be graded like this then."""
        while not self.store.lock(self.store.host_lock, shared=not alone):
            time.sleep(OTHERS_SECONDS)
            for unit in self._left(kind):
                self.store.read(unit)
            if not self._left(kind):
                return False
        return True

    def _locked(self, key: str, kind: str) -> dict[int, Unit]:
        """Lock the units of a student that are to be graded now.  -> these units."""
        at_it = {unit for job in self.jobs for unit in job.units.values()}
        found = {}
        for unit in self.units[key]:
            name = self.store.name(unit)
            if unit in at_it or self._kind(unit) != kind or not self.store.lock(name):
                continue
            self.store.read(unit)  # the previous owner of the lock may have graded it
            if self._kind(unit) != kind:
                self.store.unlock(name)
                continue
            found[unit.stage] = unit
            if kind != "at once":
                break
        return found

    def _begin(self, key: str, units: dict[int, Unit], kind: str, slot: int) -> None:
        self.count += 1
        options, gpus = list(self.options), self.machine.gpus
        if kind == "timed":
            (unit,) = units.values()
            options += ["--case", standard_case(self.store.known[unit])]
        else:
            options.append("--no-benchmark")
        working = self.store.working / str(self.count)
        at_once = 1 if kind != "at once" else self.machine.at_once
        child = Child(
            sorted(units), self.store.keep(working, self.students[key].files), working, options,
            self.store.settings.stage_timeout, max(1, self.machine.cores // at_once),
            gpus[slot % len(gpus)] if gpus else None)
        self.jobs.append(Job(child, self.students[key], units, kind, slot))

    def _look(self) -> None:
        """Collect what children have finished."""
        for job in list(self.jobs):
            ended = job.child.has_ended()
            self._take(job)
            if not ended:
                continue
            self.jobs.remove(job)
            if job.child.process.returncode == USAGE:
                raise ValueError(f"the autograder cannot run: {job.child.last_words()}")
            for unit in list(job.units.values()):
                self._settle(job, unit, fault(unit, job.child.last_words()), {})
            job.child.remove()
        self._progress()

    def _take(self, job: Job) -> None:
        report = job.child.report()
        if report and report["grader"] != self.store.settings.grader:
            raise ValueError(f"want one grader for all; got {report['grader']} after "
                             f"{self.store.settings.grader}: start again, what is graded stands")
        for stage in report["stages"] if report else ():
            if unit := job.units.get(stage["stage"]):
                if stage["sha256"] != unit.sha256:
                    stage = fault(unit, "the file changed while it was graded")
                self._settle(job, unit, stage, report)

    def _settle(self, job: Job, unit: Unit, stage: dict, report: dict) -> None:
        """Record what a child found out about a unit."""
        where = {name: report.get(name) for name in ("device", "torch", "triton", "seed")}
        if job.kind == "timed":
            record = timed(self.store.known[unit], stage, where)
        else:
            self.tries[unit] = self.tries.get(unit, 0) + 1
            record = {"stage": stage, **where, "account": self.account,
                      "alone": job.kind == "alone", "timing": None}
        self.store.put(unit, record)
        del job.units[unit.stage]
        self.store.unlock(self.store.name(unit))

    def _stop(self) -> None:
        for job in self.jobs:
            job.child.stop()
        for job in self.jobs:
            job.child.wait()
            with suppress(ValueError, OSError):  # keep what can be kept; the reason is known
                self._take(job)
            for unit in job.units.values():
                self.store.unlock(self.store.name(unit))
            job.child.remove()
        self.jobs.clear()
        self.store.unlock(self.store.host_lock)

    def _progress(self) -> None:
        total = len(self.every)
        at_it = [f"{job.student.name}, P{min(job.units)}" for job in self.jobs if job.units]
        self.say(f"{total - len(self._left())} of {total} files done"
                 + f"; now {'; '.join(at_it)}" * bool(at_it))


def standard_case(record: dict) -> str | None:
    """A case to run if only the time is wanted."""
    return next((check["name"] for check in record["stage"]["checks"]
                 if check["group"] == "standard" and check["outcome"] == "pass"), None)


def timed(record: dict, stage: dict, where: dict) -> dict:
    """The record with the result of its timing: times, why there are none, or a verdict, because an
    answer was wrong while it was timed.  That rejects the stage or costs the points of all cases
    but the standard ones."""
    timing = {**where, "benchmark": stage["benchmark"], "outcome": stage["outcome"],
              "message": "" if stage["outcome"] in FINISHED else stage["message"]}
    found = [check for check in stage["checks"] if check["name"].startswith("timing/")]
    stage = dict(record["stage"])
    if found:
        outcome = found[0]["outcome"]
        earned = [group for group in stage["earned"]
                  if group == "standard" and outcome != "rejected"]
        points = stage["max_points"] * sum(map(SHARES.get, earned))
        stage |= {"outcome": outcome, "points": round(points, 2), "earned": earned,
                  "checks": stage["checks"] + found}
    return {**record, "stage": {**stage, "benchmark": timing["benchmark"]}, "timing": timing}


def fault(unit: Unit, why: str) -> dict:
    """The record of a unit whose grading broke off."""
    return without_checks(unit.stage, "grader_fault", f"the grading ended early: {why}",
                          unit.sha256)
