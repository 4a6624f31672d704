"""Finds out how many gradings this machine can run at once, and on which GPUs."""

import json
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from grader.host.accounts import closed_to_others, find_user
from grader.host.gpu_slots import GRADING_GIB
from grader.host.processes import free_memory_gib

HOST_GIB = 2.0  # per grading: the grader, its fork servers, and the workers of one file
PROBE = """
import json, torch
found = range(torch.cuda.device_count())
print(json.dumps([[torch.cuda.get_device_name(i), torch.cuda.mem_get_info(i)[0]] for i in found]))
"""


@dataclass(frozen=True)
class Machine:
    gpus: tuple[str, ...]  # CUDA_VISIBLE_DEVICES for each; empty if files are graded on the CPU
    gpu_name: str
    at_once: int  # gradings
    cores: int
    memory_gib: float  # for the files of one grading

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def words(self) -> str:
        place = f"{len(self.gpus)} x {self.gpu_name}" if self.gpus else "the CPU"
        return f"{self.at_once} at once on {place}, {self.cores} cores"


def look(device: str, jobs: int | None) -> Machine:
    """Look at this machine.  device: "auto", "cuda" or "cpu"; jobs: gradings at once, if given.
    Raises ValueError: a GPU is wanted, and there is none."""
    found = _gpus() if device != "cpu" and Path("/dev/nvidiactl").exists() else []
    if device == "cuda" and not found:
        raise ValueError("--device cuda: want a CUDA GPU; got none that PyTorch can use")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores, free = cores or 1, free_memory_gib()
    cores = min(cores, int(os.environ.get("SLURM_CPUS_ON_NODE", cores)))  # Slurm may not bind
    free = min(free, int(os.environ.get("SLURM_MEM_PER_NODE", 2**30)) / 1024)  # MiB
    held = max(1, min(cores, int(free / HOST_GIB)))
    if found:
        held = max(1, min(held, sum(int(bytes / 2**30 / GRADING_GIB) for _, bytes in found)))
    held = jobs or held
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = given.split(",") if given else [str(i) for i in range(len(found))]
    return Machine(tuple(names[:len(found)]), found[0][0] if found else "", held, cores,
                   round(min(16.0, max(2.0, 0.8 * free / held)), 2))


def account(worker_user: str, allow_root: bool) -> str:
    """The name of the account that files run as.  worker_user: as for the autograder.  Raises
    ValueError: it would be root, without allow_root; or there is no such account."""
    other = find_user(worker_user)
    uid = other[0] if other else os.geteuid()
    if uid == 0 and not allow_root:
        path = next(iter(closed_to_others()), sys.executable)
        target = os.path.realpath(path)
        raise ValueError(
            "want the files to run as another account than root, who can read and change "
            f"everything here; got no account that can use {path}"
            + f", a link to {target}" * (target != path) + ": make .venv anew with a Python that "
            "is not below /root (rm -r .venv; make grade PYTHON=/usr/bin/python3), or name an "
            "account with --worker-user, or, where nothing else is on this machine, say "
            "--allow-root")
    if uid == 0:
        print("warning: the files run as root, without root's privileges; they can read and change "
              "whatever belongs to root where Landlock does not keep them from it.",
              file=sys.stderr)
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"account {uid}"


def _gpus() -> list[tuple[str, int]]:
    """Name and free bytes of each GPU, from another process, because CUDA would keep memory."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    try:
        return [tuple(gpu) for gpu in json.loads(done.stdout)]
    except ValueError:
        return []
