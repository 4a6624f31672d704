"""Cleans up after the grader, even if it is killed: the first process it starts and the last left.

It forks the fork server (supervisor.py) and is told the path of every worker's folder before the
folder is made.  When the grader is gone, it ends the fork server, waits for the supervisors, and
removes the folders still there, for which there was no supervisor yet, or whose supervisor was
killed.  It does not import torch: it starts at once, and is so small that a machine that runs out
of memory kills others first.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable

ON_LINUX = sys.platform == "linux"
PR_SET_CHILD_SUBREAPER = 36


def fork_fork_server(folders_fd: int, its_fds: Iterable[int]) -> None:
    """Fork the fork server; only there does this return.

    folders_fd: a pipe on which the grader writes paths, each ended by a zero byte.  its_fds: the
    descriptors that only the fork server may hold.
    """
    inherit_orphans()
    if (fork_server := os.fork()) == 0:
        os.setpgid(0, 0)
        os.close(folders_fd)
        return
    os.setpgid(fork_server, fork_server)  # both processes do this, whichever comes first
    for fd in its_fds:
        os.close(fd)
    for stream in (1, 2):  # or readers of the grader's output would wait for this process
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)  # SIGCHLD: supervisors leave no zombies
    with open(folders_fd, "rb") as announced:
        folders = announced.read().split(b"\0")[:-1]
    try:
        os.killpg(fork_server, signal.SIGKILL)  # supervisors have sessions of their own
    except ProcessLookupError:
        pass
    try:
        os.wait()  # for every supervisor
    except ChildProcessError:
        pass
    for folder in filter(os.path.lexists, map(os.fsdecode, reversed(folders))):
        remove(folder)
    os._exit(0)


def inherit_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    if ON_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def remove(folder: str) -> None:
    """Remove the folder even if the submission removed permissions or nested it deeply."""
    with contextlib.suppress(OSError):
        return os.rmdir(folder)  # works for an empty folder that cannot be listed
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        empty(folder)
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def empty(folder: str) -> None:
    """Remove all that is in it, in the same way."""
    for command in (["chmod", "-R", "u+rwx", folder],
                    ["find", folder, "-mindepth", "1", "-delete"]):
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
