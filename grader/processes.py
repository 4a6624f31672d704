"""Ending a worker together with everything it started."""

import os
import signal
import subprocess
import time
from pathlib import Path

END_SECONDS = 5.0  # a CUDA context can take this long to come down


def end_family(process: subprocess.Popen, folder: Path) -> None:
    """Kill the worker, its session, and strays that still carry its environment.

    folder: the worker's own temporary folder, named by HOME in its environment and by nobody
    else's.  Returns within END_SECONDS or so, whatever the processes do.
    """
    deadline = time.monotonic() + END_SECONDS
    if process.poll() is None:  # not yet reaped, so the number is still ours
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    while time.monotonic() < deadline:
        strays = _family(process.pid, str(folder).encode())
        for pid in strays:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if process.poll() is not None and not strays:
            return
        time.sleep(0.01)


def _family(session: int, folder: bytes) -> list[int]:
    """Living processes of this session, or with HOME=folder.  Empty where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # "pid (name) state ppid pgrp session ..."; the name may hold anything
            status = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            state, owner = status[0], int(status[3])
            if state in b"ZX":
                continue
            if owner == session:
                found.append(int(entry.name))
            elif b"HOME=" + folder in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or belongs to somebody else
    return found
