"""The first process that the grader starts, and the last one that is left of it.

It forks the fork_server, supervisor.py, and hears the path of every worker's folder before that is
made. When the grader is gone, however it ended, this ends the fork_server, waits for the
supervisors, and removes the folders that are still there: of a grader that was killed before it had
asked for a supervisor, and of a supervisor that could not begin or was killed.  It imports no
torch, so that it is there at once, and so small that a machine without memory takes others first.
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
    """Return in the fork server only.  folders_fd: a pipe on which the grader writes paths, each
    ended by a zero byte; its_fds: what the fork server alone is to hold."""
    inherit_orphans()
    if (fork_server := os.fork()) == 0:
        os.setpgid(0, 0)
        os.close(folders_fd)
        return
    os.setpgid(fork_server, fork_server)  # whichever of the two comes first
    for fd in its_fds:
        os.close(fd)
    for stream in (1, 2):  # whoever reads what the grader prints need not wait for this
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)  # the last: supervisors leave no zombies
    with open(folders_fd, "rb") as announced:
        folders = announced.read().split(b"\0")[:-1]
    try:
        os.killpg(fork_server, signal.SIGKILL)  # supervisors are in sessions of their own
    except ProcessLookupError:
        pass
    try:
        os.wait()  # for all of them
    except ChildProcessError:
        pass
    for folder in filter(os.path.lexists, map(os.fsdecode, reversed(folders))):
        remove(folder)
    os._exit(0)


def inherit_orphans() -> None:
    """Whatever is below this process and loses its parent becomes a child of it."""
    if ON_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def remove(folder: str) -> None:
    """Remove the folder though the submission took rights away or nested it deep."""
    with contextlib.suppress(OSError):
        return os.rmdir(folder)  # an empty one, which need not be listed
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        for command in (["chmod", "-R", "u+rwx", folder], ["rm", "-rf", folder]):
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
