"""Starting a worker under its keeper, hearing how it ended, and ending all it started."""

import atexit
import json
import os
import secrets
import select
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

from grader.sandbox.accounts import package_folders, python_folders

GIB = 1 << 30
END_SECONDS = 12.0  # the keeper takes 5 at most, twice, and then removes the folder
NURSERY = Path(__file__).parent.parent / "inside" / "__main__.py"
PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH",
    "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBCUDA_PATH", "CC",
    "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH",  # Triton compiles its launchers with CC
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)


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
        known = number in [*signal.Signals]  # most real-time signals have no names
        name = f" ({signal.Signals(number).name})" if known else ""
        return f"was killed by signal {number}{name}"


class Nursery:
    """The process that keepers come from; it has imported torch once for all of them.

    device: "cuda" or "cpu", which is decided for good when torch is imported.  Triton too decides
    then whether it interprets, so that only on a GPU, where it never does, it is imported here.
    """

    _running: dict[str, "Nursery"] = {}
    _lock = threading.Lock()

    def __init__(self, device: str):
        modules = ["triton", "triton.language"] if device == "cuda" else []
        self.requests, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-u", str(NURSERY), str(theirs.fileno()),
             os.pathsep.join(package_folders()), ",".join(modules)],
            cwd="/", env=worker_environment(device, False), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True)
        theirs.close()

    @classmethod
    def of(cls, device: str) -> "Nursery":
        """The running one, or a new one in its place; it takes its time to import."""
        with cls._lock:
            nursery = cls._running.get(device)
            if nursery is None or nursery.process.poll() is not None:
                if not cls._running:
                    atexit.register(cls.end_all)
                nursery = cls._running[device] = cls(device)
            return nursery

    @classmethod
    def end_all(cls) -> None:
        """Of this process, with which the folders of its sessions go."""
        for nursery in cls._running.values():
            nursery.requests.close()
        for nursery in cls._running.values():
            nursery.process.kill()
            nursery.process.wait()
        cls._running.clear()

    def new_folder(self) -> Path:
        """A folder for one worker, which does not outlive this process however it ends."""
        folder = Path(tempfile.gettempdir()).resolve() / f"grader-{secrets.token_hex(8)}"
        self.send(str(folder), [])
        folder.mkdir(mode=0o700)
        return folder

    def send(self, words: dict | str, fds: list[int]) -> None:
        """Ask for a keeper and its worker, or announce a folder."""
        from grader.inside.wire import LENGTH  # imports torch: after the nursery has begun to

        text = json.dumps(words).encode()
        with self._lock, suppress(OSError):  # it died; that shows when nothing answers
            socket.send_fds(self.requests, [LENGTH.pack(len(text))], fds)
            self.requests.sendall(text)


class Family:
    """The keeper, the worker, and every process that comes of it.

    folder: the worker's own, removed at the end.  cache: Triton's, where it may write too.
    channel: the worker's end.
    """

    def __init__(self, config: dict, folder: Path, cache: Path, channel: int, *, interpret: bool,
                 confinement: Confinement):
        self.folder = folder
        environment = worker_environment(config["device"], interpret)
        environment |= {"HOME": str(folder), "TMPDIR": str(folder), "TRITON_CACHE_DIR": str(cache)}
        config = {
            **config, "folder": str(folder), "environment": environment,
            "memory_bytes": confinement.memory_bytes, "user": confinement.user,
            "writable": [str(folder), str(cache)],
            "hidden": [str(path.resolve()) for path in confinement.hidden],
            "readable": python_folders(),
        }
        nursery = Nursery.of(config["device"])
        self.control, theirs = socket.socketpair()
        output, printed = os.pipe()
        self.stdout = open(output, "rb", buffering=0)
        os.set_blocking(output, False)
        nursery.send(config, [channel, theirs.fileno(), printed])
        theirs.close()
        os.close(printed)

    def has_ended(self) -> bool:
        """Whether the worker is dead, or its keeper is."""
        return bool(select.select([self.control], [], [], 0)[0])

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
        try:
            self.control.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + END_SECONDS
            while select.select([self.control], [], [], max(0, deadline - time.monotonic()))[0]:
                if not self.control.recv(4096):  # the keeper has ended, and everything before it
                    break
        except OSError:  # closed before
            pass
        self.control.close()
        _end_strays(str(self.folder))


def worker_environment(device: str, interpret: bool) -> dict[str, str]:
    """What of the grader's own environment a worker gets, and how it is to run Triton."""
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def _end_strays(folder: str) -> None:
    """Where a keeper died before its time: kill what still works in the worker's folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(folder):
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue  # it ended meanwhile, or belongs to somebody else
