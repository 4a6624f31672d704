"""Runs --slurm: the same command in N tasks of an array job, which share RESULTS.  Each grades
whatever is not locked, so that others take over from one that is killed."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from grader.assignment.record import ROOT

POLL_SECONDS = 2.0
HERE_ALONE = ("command", "words", "slurm", "slurm_option", "forget", "again", "join")
TIME = "4:00:00"  # limit of a task, unless --slurm-option time=... is given


def command(arguments) -> list[str]:
    """The command of a task: the same options without the cluster's, valid in any folder."""
    given = {name: value.resolve() if isinstance(value, Path) else value
             for name, value in vars(arguments).items()
             if value is not None and name not in HERE_ALONE}
    words = [sys.executable, "-m", "classroom", "grade", str(given.pop("submissions"))]
    words += [f"--no-{name}" for name in ("benchmark", "partial") if given.get(name) is False]
    for name, value in given.items():
        if value is not False:
            words += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return words


def cluster_options(given: list[str]) -> dict[str, str | bool]:
    """["partition=gpu", "exclusive"] -> {"partition": "gpu", "exclusive": True}  Raises ValueError:
    one of them has no name."""
    found = {"time": TIME}
    for word in given:
        name, equals, value = word.lstrip("-").partition("=")
        if not name or any(char.isspace() for char in word):
            raise ValueError(f"--slurm-option: want one such as partition=gpu; got {word!r}")
        found[name] = value if equals else True
    return found


def spread(arguments, say: Callable[[str], None], cluster: str = "slurm") -> list[str]:
    """Submit the tasks and wait for them; Ctrl-C cancels them.  cluster: "local" runs them as
    processes of this machine.  -> the last output of each task that failed.  Raises ValueError:
    there is no submitit or no Slurm, or Slurm rejects the job."""
    try:
        import submitit
    except ImportError:
        raise ValueError('--slurm: want submitit installed (pip install -e ".[classroom]"); got '
                         "none") from None
    options = cluster_options(arguments.slurm_option)
    arguments.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = arguments.out.resolve() / "slurm"
    try:
        logs.mkdir(exist_ok=True)
        executor = submitit.AutoExecutor(folder=logs / "%j", cluster=cluster)
        executor.update_parameters(name="classroom", timeout_min=24 * 60,
                                   slurm_additional_parameters=options)
        task = submitit.helpers.CommandFunction(command(arguments), cwd=ROOT)
        with executor.batch():
            jobs = [executor.submit(task) for _ in range(arguments.slurm)]
    except (RuntimeError, submitit.core.utils.FailedJobError) as error:  # no sbatch, or rejected
        raise ValueError(f"--slurm: {error}") from None
    say(f"{len(jobs)} tasks submitted: {jobs[0].job_id.partition('_')[0]}; they write to {logs}")
    try:
        while left := [job for job in jobs if not job.done()]:
            graded = sum(1 for _ in (arguments.out / "graded").glob("*.json"))
            say(f"{len(left)} of {len(jobs)} tasks not ended, {graded} files graded")
            time.sleep(POLL_SECONDS)
    except BaseException:
        for job in jobs:
            job.cancel(check=False)
        raise
    return [f"task {job.job_id}: " + str(job.exception()).strip().rpartition("\n")[2]
            for job in jobs if job.exception()]
