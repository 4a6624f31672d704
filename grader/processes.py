"""Starting a worker under its keeper, hearing how it ended, and ending all it started."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
END_SECONDS = 8.0  # the keeper takes 5 at most, and then removes the folder
HERE = Path(__file__).parent
# Loaded by the worker from here, whatever else of the grader is hidden from it.
WORKER_FILES = ("worker.py", "watch.py", "ledger.py", "trace.py", "seal.py", "explain.py",
                "compile_only.py", "pretend_gpu.py")
AUTOMATIC_USER = "nobody"


@dataclass(frozen=True)
class Confinement:
    """What a worker and its children may do beside computing.

    user: (uid, gid) to run as; None for the grader's own account.  hidden: folders it may not see
    where the kernel can hide them.  memory_bytes: of host memory, all processes together.
    """

    user: tuple[int, int] | None = None
    hidden: tuple[Path, ...] = ()
    memory_bytes: int = 16 * GIB


@dataclass(frozen=True)
class Ending:
    """How a worker ended.  returncode as subprocess has it, None if unknown; over: which limit."""

    returncode: int | None
    over: str = ""


class Family:
    """The keeper, the worker, and every process that comes of it.

    folder: the worker's own, removed at the end.  cache: one more folder it may write into.
    fd: the worker's end of the channel.
    """

    def __init__(self, config: dict, folder: Path, cache: Path, environment: dict[str, str],
                 fd: int, confinement: Confinement):
        self.folder = folder
        self.control, theirs = socket.socketpair()
        config = {
            **config, "fd": fd, "control": theirs.fileno(), "folder": str(folder),
            "memory_bytes": confinement.memory_bytes, "user": confinement.user,
            "writable": [str(folder), str(cache)],
            "hidden": [str(path.resolve()) for path in confinement.hidden],
            "readable": [*(str(HERE / name) for name in WORKER_FILES), *python_folders()],
        }
        try:
            self.keeper = subprocess.Popen(
                [sys.executable, "-I", "-B", "-u", str(HERE / "keeper.py"), json.dumps(config)],
                cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=(fd, theirs.fileno()), start_new_session=True,
            )
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        self.stdout = self.keeper.stdout
        os.set_blocking(self.stdout.fileno(), False)

    def has_ended(self) -> bool:
        """Whether the worker is dead, or its keeper is."""
        return bool(select.select([self.control], [], [], 0)[0]) or self.keeper.poll() is not None

    def ending(self, seconds: float) -> Ending | None:
        """How the worker ended; None if it still lives after that time."""
        if not select.select([self.control], [], [], seconds)[0]:
            return None
        try:
            words = json.loads(self.control.makefile().readline())
            return Ending(words["returncode"], words["over"])
        except (ValueError, OSError):  # the keeper itself was killed
            return Ending(None)

    def end(self) -> None:
        """End all of it.  Returns within END_SECONDS or so, whatever the processes do."""
        self.control.close()
        try:
            self.keeper.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        _end_strays(self.keeper, str(self.folder).encode())


def _end_strays(keeper: subprocess.Popen, folder: bytes) -> None:
    """Where a keeper died before its time: kill what carries its session or its environment."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        if keeper.poll() is None:  # not yet reaped, so the number is still ours
            keeper.kill()
        strays = _strays(keeper.pid, folder)
        for pid in strays:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if keeper.poll() is not None and not strays:
            return
        time.sleep(0.01)


def _strays(session: int, folder: bytes) -> list[int]:
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


# -------------------------------------------------------------------- accounts
def find_user(name: str) -> tuple[int, int] | None:
    """The account to run workers as.  name: an account, "none", or "auto".

    "auto" is the account nobody where this process is root and nobody can read the Python in use;
    otherwise no other account.

    Raises:
        ValueError: the account does not exist, is root, or cannot be taken or used from here.
    """
    import pwd

    automatic = name == "auto"
    if name == "none" or automatic and os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(AUTOMATIC_USER if automatic else name)
    except KeyError:
        if automatic:
            return None
        raise ValueError(f"want an account of this machine; got {name!r}") from None
    if os.geteuid() != 0:
        raise ValueError("want the grader run as root, who alone may change the account; got "
                         f"{pwd.getpwuid(os.geteuid()).pw_name}")
    if entry.pw_uid == 0:
        raise ValueError(f"want an account without privileges; got {name!r}, which is root")
    needed = [sys.executable, *python_folders(), HERE, tempfile.gettempdir()]
    closed = [path for path in needed if not _is_open(path)]
    closed += [str(path) for path in Path("/dev").glob("nvidia[0-9]*")
               if path.stat().st_mode & 0o6 != 0o6]
    if closed and automatic:
        return None
    if closed:
        raise ValueError(f"want a Python and a grader that {name!r} can read; got {closed[0]}")
    return entry.pw_uid, entry.pw_gid


def python_folders() -> list[str]:
    """Where this process's Python, torch, triton and numpy are."""
    return sorted({sys.prefix, sys.base_prefix, *package_folders()})


def package_folders() -> list[str]:
    """Where this process found torch, triton and numpy; `python -I` alone may not look there."""
    import importlib.util

    folders = []
    for name in ("torch", "triton", "numpy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            folders.append(str(Path(spec.origin).parent.parent))
    return sorted(set(folders))


def _is_open(path) -> bool:
    """Whether every account may read this file or enter this folder, and all folders above it."""
    path = Path(path).resolve()
    try:
        return path.stat().st_mode & 0o5 == 0o5 and all(
            parent.stat().st_mode & 0o1 for parent in path.parents)
    except OSError:
        return False
