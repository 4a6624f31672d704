"""Starts a worker under its supervisor, hears how it ended, and ends all it started."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from grader.host.accounts import (
    find_user,
    ids_for_worker,
    package_folders,
    readable_folders,
)
from grader.sandbox import LENGTH

GIB = 1 << 30
END_SECONDS = 12.0  # at most 5 for the supervisor, twice, and then it removes the folder
FORK_SERVER = Path(__file__).parent.parent / "sandbox" / "__main__.py"
PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH",
    "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBCUDA_PATH", "CC",
    "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH",  # Triton compiles its launchers with CC
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)

@dataclass(frozen=True)
class Confinement:
    """What a worker and its children may do.

    user: (uid, gid) to run as (nobody's stands for a uid per worker); None for the grader's own
    account.  hidden: folders it must not read, if the kernel can hide them.  memory_bytes: host
    memory of all its processes together.  readable: folders that it needs besides Python's own.
    """

    user: tuple[int, int] | None = None
    hidden: tuple[Path, ...] = ()
    memory_bytes: int = 16 * GIB
    readable: tuple[Path, ...] = ()


def confinement(hidden: tuple[Path, ...], user: str = "auto",
                memory_gib: float | None = None) -> Confinement:
    """What workers may do.  memory_gib: by default half of the free host memory, at most 16 GiB.

    Raises:
        ValueError: workers cannot run as this account.
    """
    if memory_gib is None:
        memory_gib = min(16.0, max(2.0, free_memory_gib() / 2))
    return Confinement(find_user(user), hidden, int(memory_gib * GIB))


def free_memory_gib() -> float:
    """Host memory that new processes could take; 8 if the system does not say."""
    try:
        words = Path("/proc/meminfo").read_text().split()
        return int(words[words.index("MemAvailable:") + 1]) / 2**20
    except (OSError, ValueError):
        return 8.0


@dataclass(frozen=True)
class Ending:
    """How a worker ended.  returncode: as in subprocess, None if unknown; over: the limit it
    passed.
    """

    returncode: int | None
    over: str = ""

    def words(self) -> str:
        """What the file did that ended its process."""
        if self.over:
            return self.over
        if self.returncode is None:
            return "ended the process that watches over it"
        if self.returncode >= 0:
            return f"ended its own process with exit code {self.returncode}"
        number = -self.returncode
        if number == signal.SIGSEGV:
            return "crashed the process with a segmentation fault"
        if number == signal.SIGKILL:
            return "was killed by signal 9 (SIGKILL), probably for want of host memory"
        known = number in [*signal.Signals]  # most real-time signals have no name
        name = f" ({signal.Signals(number).name})" if known else ""
        return f"was killed by signal {number}{name}"


class ForkServer:
    """The process that supervisors are forked from; it imports torch once for all of them.  When
    this process ends, it ends, too, with all supervisors and their folders.

    Triton decides at its import whether it interprets.  So there are two: one forks the other once
    torch is imported, and each imports Triton in its own way.
    """

    _running: "ForkServer | None" = None
    _lock = threading.Lock()

    def __init__(self):
        pairs = [socket.socketpair() for _ in range(2)]
        self.requests = [ours for ours, _ in pairs]  # to the compiling one, to the interpreting one
        announced, named = os.pipe()
        self.folders = open(named, "wb", buffering=0)  # announced here before they are made
        self.around = f"grader-{token_hex(8)}"  # the folder around all workers' folders
        fds = [*(theirs.fileno() for _, theirs in pairs), announced]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-u", str(FORK_SERVER), ",".join(map(str, fds)),
             "gpu" * seems_to_have_gpu(), os.pathsep.join(package_folders())],
            cwd="/", env=_passed_on(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, pass_fds=fds, start_new_session=True)
        os.close(announced)
        for _, theirs in pairs:
            theirs.close()

    @classmethod
    def running(cls) -> "ForkServer":
        """The running one, or a new one in its place, which imports for a while."""
        with cls._lock:
            if cls._running is None or cls._running.has_ended():
                cls._running = cls()
            return cls._running

    def has_ended(self) -> bool:
        """Whether one of the two, or their parent, has ended."""
        return self.process.poll() is not None or bool(select.select(self.requests, [], [], 0)[0])

    def new_folder(self) -> Path:
        """Make a folder for one worker; it is removed even if this process is killed.  The folder
        around it can be entered but not listed, so that other workers cannot learn its name, not
        even with the same account."""
        folder = Path(tempfile.gettempdir()).resolve() / self.around / f"grader-{token_hex(8)}"
        with self._lock:
            if not folder.parent.exists():
                self._make(folder.parent, 0o311)
            self._make(folder, 0o700)
        return folder

    def _make(self, folder: Path, mode: int) -> None:
        with suppress(OSError):  # the reaper is gone, and this process goes on
            self.folders.write(os.fsencode(folder) + b"\0")
        folder.mkdir(mode=0o700)
        folder.chmod(mode)  # whatever the umask is

    def forget(self, folder: Path) -> None:
        """Remove what is left of a worker's folder and, after the last, the folder around it."""
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock, suppress(OSError):  # another worker's folder is still there
            folder.parent.rmdir()

    def send(self, config: dict, fds: list[int], interpret: bool) -> None:
        """Ask for a supervisor and its worker."""
        text = json.dumps(config).encode()
        with self._lock, suppress(OSError):  # it died, which shows when no one answers
            socket.send_fds(self.requests[interpret], [LENGTH.pack(len(text))], fds)
            self.requests[interpret].sendall(text)


class Worker:
    """A fresh worker process for one file, its supervisor, and all processes that these start;
    session.py talks to it.

    source: the file's bytes; empty if the worker waits for its file, or replays.  name:
    "problem_3.py".  compile_for: 90 compiles all launches for sm_90 and runs nothing.  cache:
    Triton's cache; None for a new one that ends with the worker.  pretends: whether there seems to
    be a GPU where there is none.  records: whether a trace of every call is kept.
    """

    def __init__(self, source: bytes, name: str, *, device: str, interpret: bool,
                 compile_for: int | None = None, cache: Path | None = None,
                 confinement: Confinement | None = None, pretends: bool = True,
                 records: bool = True):
        confinement = confinement or Confinement()
        self.other_user = confinement.user is not None
        ids = ids_for_worker(confinement.user, cache.name if cache else "")
        self.fork_server = ForkServer.running()
        self.folder = folder = self.fork_server.new_folder()
        self.path = folder / "work" / name
        self.socket, channel = socket.socketpair()
        self.control, control = socket.socketpair()
        output, printed = os.pipe()
        self.stdout = open(output, "rb", buffering=0)
        os.set_blocking(output, False)
        environment = _passed_on() | {
            "HOME": str(folder), "TMPDIR": str(folder),
            "TRITON_CACHE_DIR": str(cache or folder / "cache"),
            "USER": "nobody"}  # PyTorch asks; an unused uid has no name
        if interpret or compile_for:
            environment["TRITON_INTERPRET"] = "1"  # files ask for it, to run without a GPU
        if device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        hidden = [path.resolve() for path in confinement.hidden]
        try:
            with channel, control, open(printed, "wb"):
                for part in ("work", "cache"):
                    (folder / part).mkdir()
                self.path.write_bytes(source)
                if ids is not None:
                    for item in (folder, *folder.rglob("*")):
                        os.chown(item, *ids)
                self.fork_server.send({
                    "path": str(self.path), "device": device, "compile_for": compile_for,
                    "pretends": pretends, "records": records, "idle": not source, "user": ids,
                    "own_account": ids != confinement.user,
                    "environment": environment, "memory_bytes": confinement.memory_bytes,
                    "writable": [str(path) for path in (folder, cache) if path],
                    "hidden": [*map(str, hidden)],
                    "readable": [*readable_folders(environment, hidden),
                                 *map(str, confinement.readable)],
                }, [channel.fileno(), control.fileno(), printed], interpret and not compile_for)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it and all it started, and remove its folder, in bounded time."""
        self.socket.close()
        self.end()
        self.stdout.close()
        self.fork_server.forget(self.folder)

    def has_ended(self) -> bool:
        """Whether the worker or its supervisor has ended."""
        return bool(select.select([self.control], [], [], 0)[0])

    def ending(self, seconds: float) -> Ending | None:
        """How the worker ended; None if it is still alive after that time."""
        if not select.select([self.control], [], [], seconds)[0]:
            return None
        try:
            words = json.loads(self.control.makefile().readline())
            return Ending(words["returncode"], words["over"])
        except (ValueError, OSError):  # the supervisor was killed
            return Ending(None)

    def end(self) -> None:
        """End all of it, within about END_SECONDS, whatever the processes do."""
        try:
            self.control.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + END_SECONDS
            while select.select([self.control], [], [], max(0, deadline - time.monotonic()))[0]:
                if not self.control.recv(4096):  # the supervisor ended, and it ends last
                    break
        except OSError:  # closed already
            pass
        self.control.close()
        _end_strays(str(self.folder))


def seems_to_have_gpu() -> bool:
    """Whether there is a GPU, asked before torch is imported; the second path is WSL's."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))


def _passed_on() -> dict[str, str]:
    """The part of the grader's environment that a worker gets."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def _end_strays(folder: str) -> None:
    """Kill what still runs in the worker's folder, if a supervisor was killed."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(folder):
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue  # it ended meanwhile, or belongs to another account
