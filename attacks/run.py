"""Runs one entry of the catalogue, and compares the result with what it must be."""

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch

from attacks.catalogue import ROOT, UNSEEN, Attack, changed_step, place
from grader.course.stages import STAGES
from grader.host import gpu_slots, session, worker_pool
from grader.host.options import Options
from grader.host.processes import confinement
from grader.judge import grade
from grader.report.results import StageResult
from grader.report.screen import Reporter
from grader.text import Tail

GRACE_SECONDS = 10.0  # on top of its limit, for a destructive file
LATE = "it took"
FAILED = ("rejected", "wrong", "crashed", "timeout", "skipped", "not_started")
FIRED = b"the attack fired"  # what pieces/fired.py prints
LEFT = "attack-left-"  # names of files that destructive files try to leave behind


@dataclass(frozen=True)
class Outcome:
    """What an attack got.  problem: what is wrong with that, or "" """

    attack: Attack
    got: str
    seconds: float
    problem: str
    said: str = ""  # the first words of the report on it
    result: StageResult | None = None


def run_job(job) -> tuple[Attack, int, Outcome]:
    """Run a job of a pool: (attack, device, seed, through the command line)."""
    torch.set_num_threads(1)  # entries run side by side
    worker_pool.MANY_CORES = 1 << 30  # and share the cores
    attack, device, seed, whole, every_case = job
    if whole and attack.kind == "destructive":
        return attack, seed, run_command(attack, device, seed)
    return attack, seed, run(attack, device, seed, not every_case)


def run(attack: Attack, device: str, seed: int, stop_early: bool = True,
        explains: bool = False) -> Outcome:
    """Grade it here, up to the first case that does not pass, and look for what it left.

    An unfinished file runs on all cases, because none may reject it.  If it took too long it runs
    once more, when it is clear whether the machine is busy.
    """
    if attack.whole:
        return run_command(attack, device, seed)
    outcome = _run(attack, device, seed, stop_early, explains)
    again = outcome.problem.startswith(LATE)
    return _run(attack, device, seed, stop_early, explains) if again else outcome


def _run(attack: Attack, device: str, seed: int, stop_early: bool, explains: bool) -> Outcome:
    option = dict(zip(attack.options[::2], attack.options[1::2], strict=True))
    timeout = float(option.get("--timeout", 20.0 if attack.kind == "destructive" else 60.0))
    with tempfile.TemporaryDirectory(prefix="attack-") as base:
        os.chmod(base, 0o755)
        folder, temporary = Path(base) / "submission", Path(base) / "tmp"
        folder.mkdir()
        temporary.mkdir()
        place(attack, folder)
        report = io.StringIO()
        options = Options(
            folder, device, seed, timeout, bfloat16=device == "cuda", benchmark=attack.timed,
            explains=explains,
            stop_early=stop_early and attack.outcomes != ("pass",) and attack.kind != "unfinished",
            quick=attack.quick,
            confinement=confinement((ROOT, folder),
                                    memory_gib=float(option.get("--memory", 8.0))))
        start, heard = time.monotonic(), []

        class Listening(Tail):
            def add(self, data: bytes) -> None:
                if FIRED in data:
                    heard.append(FIRED)
                super().add(data)

        with (mock.patch.object(tempfile, "tempdir", str(temporary)),
              mock.patch.object(session, "Tail", Listening)):
            result = grade.grade_stage(STAGES[attack.stage], options, Reporter(report))
            worker_pool.end_all()  # their folders are in the temporary folder
        seconds = time.monotonic() - start
        problem = _left_behind(f"TMPDIR={temporary}", temporary)
        if attack.kind == "destructive" and attack.outcomes != ("pass",):
            problem = problem or _late(seconds, timeout)
    return _outcome(attack, device, result.outcome, result.points, report.getvalue(), seconds,
                    problem, bool(heard), result)


def run_command(attack: Attack, device: str, seed: int) -> Outcome:
    """Grade it through the command line, with the solved file of another stage, and check
    afterwards: time (as run() does), processes, files, GPU memory, the other stage, the JSON."""
    outcome = _run_command(attack, device, seed)
    again = outcome.problem.startswith(LATE)
    return _run_command(attack, device, seed) if again else outcome


def _run_command(attack: Attack, device: str, seed: int) -> Outcome:
    program = STAGES[attack.stage].program
    other = next(n for n in (2, 3, 8, 9) if n != attack.stage and STAGES[n].program == program)
    with tempfile.TemporaryDirectory(prefix="attack-") as base:
        folders = {name: Path(base) / name for name in ("submission", "tmp", "home")}
        for folder in folders.values():
            folder.mkdir()
        os.chmod(base, 0o755)
        place(attack, folders["submission"])
        solved = (ROOT / f"problem_{other}.py").read_bytes()
        (folders["submission"] / f"problem_{other}.py").write_bytes(solved)
        saved = Path(base) / "results.json"
        options = attack.options if "--timeout" in attack.options else (
            *attack.options, "--timeout", "20")
        limit = float(options[options.index("--timeout") + 1])
        command = [sys.executable, str(ROOT / program), f"--p{attack.stage}", f"--p{other}",
                   "--device", device, "--seed", str(seed), "--no-benchmark", *options,
                   "--submission", str(folders["submission"]), "--json", str(saved)]
        command += ["--quick"] * attack.quick
        mark = f"ATTACK={os.path.basename(base)}"
        environment = {**os.environ, "TMPDIR": str(folders["tmp"]), "HOME": str(folders["home"]),
                       "ATTACK": os.path.basename(base)}
        memory = _gpu_memory(device)
        start = time.monotonic()
        done = subprocess.run(command, env=environment, cwd=base, capture_output=True, text=True,
                              errors="replace", timeout=900)
        seconds = time.monotonic() - start
        problem = _left_behind(mark, folders["tmp"]) or _memory_left(device, memory)
        try:
            stages = {row["stage"]: row for row in json.loads(saved.read_text())["stages"]}
        except (OSError, ValueError, KeyError) as error:
            return Outcome(attack, f"exit {done.returncode}", seconds, f"no whole JSON: {error}",
                           done.stdout + done.stderr)
        heard = FIRED.decode() in done.stdout  # it shows the output of a file that crashed
        row, beside = stages[attack.stage], stages.get(other, {"outcome": "missing"})
        if beside["outcome"] != "pass":
            problem = problem or f"the other stage got {beside['outcome']}"
        elif row["outcome"] != "pass":
            problem = problem or _late(row["seconds"], limit)
    return _outcome(attack, device, row["outcome"], row["points"], done.stdout, row["seconds"],
                    problem, heard)


def _late(seconds: float, limit: float) -> str:
    """A complaint if a file with this limit took too many seconds, or "".

    On a busy machine, starting, judging and ending take longer; a worker that was kept waiting has
    more time, and may run again.
    """
    waiting = os.getloadavg()[0] / len(os.sched_getaffinity(0))  # per CPU
    allowed = limit + GRACE_SECONDS if waiting <= 1 else (
        2 * (1 + min(session.MORE, waiting - 1)) * limit + GRACE_SECONDS * waiting)
    return "" if seconds <= allowed else f"{LATE} {seconds:.1f} s of {allowed:.1f}"


def fires(attack: Attack, got: str, heard: bool) -> bool:
    """Whether a dishonest file did what it tries.  heard: it said so.

    Others need not say it, because without the attack the verdict would differ: a solved file
    passes, one that computes nothing is wrong, and only right numbers are rejected.
    """
    if attack.marked:
        return heard
    return attack.based and got != "pass" or got == "rejected"


def _outcome(attack, device, got, points, report, seconds, problem, heard,
             result=None) -> Outcome:
    said = [line.strip() for line in report.splitlines() if line.startswith("     ")]
    if attack.kind == "dishonest" and device == "cuda":  # which defence catches it was not measured
        attack = replace(attack, outcomes=attack.outcomes + FAILED, says="")
    elif attack.kind == "dishonest" and not fires(attack, got, heard):
        problem = problem or "the attack did not take place"
    if got not in attack.outcomes:
        problem = problem or f"want {' or '.join(attack.outcomes)}"
    elif attack.says.lower() not in " ".join(report.split()).lower():
        problem = problem or f"the report does not say {attack.says!r}"
    elif attack.kind == "dishonest" and got in ("rejected", "skipped") and points:
        problem = problem or f"it earned {points:g} points"
    elif attack.kind == "mutants" and not _lit(attack, device, result):
        problem = problem or f"red: {', '.join(result.red)}, want {changed_step(attack)}"
    elif attack.beyond and all(check.outcome == "pass" for check in result.checks):
        problem = problem or "want a case beyond the assignment that fails"
    return Outcome(attack, got, seconds, problem, " ".join(said[:4]), result)


def _lit(attack: Attack, device: str, result: StageResult) -> bool:
    """Whether just the step that a mutant changes is red, if steps were checked; on a CPU no step
    shows what needs offsets of gigabytes."""
    changed, asked = changed_step(attack), any(step["light"] == "right" for step in result.steps)
    return not changed or not asked or result.red == [changed] or (
        not result.red and (result.outcome == "pass" or attack.id.endswith(UNSEEN)))


def _left_behind(mark: str, temporary: Path) -> str:
    """What is still there after a moment, and should not be."""
    deadline = time.monotonic() + 10.0  # other entries may run beside this one
    while found := _processes(mark, temporary) or _files(temporary):
        if time.monotonic() > deadline:
            return found
        time.sleep(0.1)
    return ""


def _processes(mark: str, temporary: Path) -> str:
    """Processes with the grading's environment, in its folder, or that say that they stay."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            works_there = os.readlink(entry / "cwd").startswith(str(temporary))
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if works_there or mark.encode() in words or LEFT.encode() in words:
                return f"process {entry.name} is still there"
        except OSError:
            continue
    return ""


def _files(temporary: Path) -> str:
    locks = gpu_slots.LOCK.format(user=os.geteuid(), name="*")  # these may stay
    if left := sorted(path.name for path in temporary.iterdir() if not path.match(locks)):
        return f"left in the temporary folder: {', '.join(left[:3])}"
    for folder in (ROOT, Path.home(), Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")):
        if left := sorted(folder.glob(LEFT + "*")):
            return f"left in {folder}: {left[0].name}"
    return ""


def _gpu_memory(device: str) -> int:
    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def _memory_left(device: str, before: int) -> str:
    """A complaint if GPU memory stays taken; it is freed a moment after a process ends."""
    deadline = time.monotonic() + 5.0
    while (more := _gpu_memory(device) - before) > 64 << 20:
        if time.monotonic() > deadline:
            return f"{more >> 20} MiB of GPU memory were not given back"
        time.sleep(0.1)
    return ""
