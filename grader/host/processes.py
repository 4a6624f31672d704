"""Starting a worker under its supervisor, hearing how it ended, and ending all it started."""

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
END_SECONDS = 12.0  # the supervisor takes 5 at most, twice, and then removes the folder
FORK_SERVER = Path(__file__).parent.parent / "sandbox" / "__main__.py"
PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH",
    "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBCUDA_PATH", "CC",
    "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH",  # Triton compiles its launchers with CC
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)

@dataclass(frozen=True)
class Confinement:
    """What a worker and its children may do beside computing.

    user: (uid, gid) to run as, but a uid of its own for each worker instead of nobody's; None for
    the grader's own account.  hidden: folders it may not see where the kernel can hide them.
    memory_bytes: of host memory, all processes together.
    """

    user: tuple[int, int] | None = None
    hidden: tuple[Path, ...] = ()
    memory_bytes: int = 16 * GIB


def confinement(hidden: tuple[Path, ...], user: str = "auto",
                memory_gib: float | None = None) -> Confinement:
    """What workers may do: not see these folders, and hold half of the free host memory, at most
    16 GiB, unless told otherwise.

    Raises:
        ValueError: the account is not one that workers can run as.
    """
    if memory_gib is None:
        memory_gib = min(16.0, max(2.0, free_memory_gib() / 2))
    return Confinement(find_user(user), hidden, int(memory_gib * GIB))


def free_memory_gib() -> float:
    """Host memory that new processes could take; 8 where the system does not say."""
    try:
        words = Path("/proc/meminfo").read_text().split()
        return int(words[words.index("MemAvailable:") + 1]) / 2**20
    except (OSError, ValueError):
        return 8.0


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


class ForkServer:
    """The process that supervisors come from; it has imported torch once for all of them.  With
    this process it ends, and so do they and their folders.

    Triton decides when it is imported whether it interprets.  So there are two: one forks the other
    once torch is there, and each imports Triton in its own way.
    """

    _running: "ForkServer | None" = None
    _lock = threading.Lock()

    def __init__(self):
        pairs = [socket.socketpair() for _ in range(2)]
        self.requests = [ours for ours, _ in pairs]  # to the one that compiles, that interprets
        announced, named = os.pipe()
        self.folders = open(named, "wb", buffering=0)  # named here before they are made
        self.around = f"grader-{token_hex(8)}"  # all workers' folders, in the temporary one
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
        """The running one, or a new one in its place; it takes its time to import."""
        with cls._lock:
            if cls._running is None or cls._running.has_ended():
                cls._running = cls()
            return cls._running

    def has_ended(self) -> bool:
        """Whether one of the two has, or who forked them."""
        return self.process.poll() is not None or bool(select.select(self.requests, [], [], 0)[0])

    def new_folder(self) -> Path:
        """A folder for one worker, which does not outlive this process however it ends.  It stands
        in one that can be entered and not listed, so that whoever shares its account, or can undo
        its rights, does not know its name."""
        folder = Path(tempfile.gettempdir()).resolve() / self.around / f"grader-{token_hex(8)}"
        with self._lock:
            if not folder.parent.exists():
                self._make(folder.parent, 0o311)
            self._make(folder, 0o700)
        return folder

    def _make(self, folder: Path, mode: int) -> None:
        with suppress(OSError):  # nobody reads any more, and this process goes on
            self.folders.write(os.fsencode(folder) + b"\0")
        folder.mkdir(mode=0o700)
        folder.chmod(mode)  # whatever this process's umask is

    def forget(self, folder: Path) -> None:
        """Remove what is left of a worker's folder, and the one around the last."""
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock, suppress(OSError):  # another worker has one there
            folder.parent.rmdir()

    def send(self, config: dict, fds: list[int], interpret: bool) -> None:
        """Ask for a supervisor and its worker."""
        text = json.dumps(config).encode()
        with self._lock, suppress(OSError):  # it died; that shows when nothing answers
            socket.send_fds(self.requests[interpret], [LENGTH.pack(len(text))], fds)
            self.requests[interpret].sendall(text)


class Worker:
    """A fresh worker process for one file, still to be spoken to (session.py).

    source: the file's bytes, read once by the caller; none for one that waits for its file, or
    replays.  name: "problem_3.py".  compile_for: 90 compiles launches for sm_90, runs nothing.
    cache: Triton's cache; None for an empty one that goes with the worker.
    """

    def __init__(self, source: bytes, name: str, *, device: str, interpret: bool,
                 compile_for: int | None = None, cache: Path | None = None,
                 confinement: Confinement | None = None):
        confinement = confinement or Confinement()
        interpret = interpret and not compile_for
        self.other_user = confinement.user is not None
        ids = ids_for_worker(confinement.user, cache.name if cache else "")
        self.process_tree = None
        self.fork_server = fork_server = ForkServer.running()
        self.folder = fork_server.new_folder()
        self.socket, theirs = socket.socketpair()
        try:
            for part in ("work", "cache"):
                (self.folder / part).mkdir()
            self.path = path = self.folder / "work" / name
            path.write_bytes(source)
            if ids is not None:
                for item in (self.folder, *self.folder.rglob("*")):
                    os.chown(item, *ids)
            config = dict(path=str(path), device=device, compile_for=compile_for, idle=not source,
                          user=ids, own_account=ids != confinement.user)
            self.process_tree = ProcessTree(
                fork_server, config, self.folder, cache or self.folder / "cache", theirs.fileno(),
                interpret=interpret, confinement=confinement)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()

    def close(self) -> None:
        """End it and everything it started; remove its folder.  Takes a bounded time."""
        self.socket.close()
        if self.process_tree is not None:
            self.process_tree.end()
            self.process_tree.stdout.close()
        self.fork_server.forget(self.folder)


class ProcessTree:
    """The supervisor, the worker, and every process that comes of it.

    folder: the worker's own, removed at the end.  cache: Triton's, where it may write too.
    channel: the worker's end.
    """

    def __init__(self, fork_server: ForkServer, config: dict, folder: Path, cache: Path,
                 channel: int, *, interpret: bool, confinement: Confinement):
        self.folder = folder
        environment = _passed_on()
        if interpret or config["compile_for"]:
            environment["TRITON_INTERPRET"] = "1"  # files look for it to run without a GPU
        if config["device"] == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        environment |= {"HOME": str(folder), "TMPDIR": str(folder), "TRITON_CACHE_DIR": str(cache),
                        "USER": "nobody"}  # PyTorch asks, and a uid of its own has no name
        hidden = [path.resolve() for path in confinement.hidden]
        config = {
            **config, "folder": str(folder), "environment": environment,
            "memory_bytes": confinement.memory_bytes,
            "writable": [str(folder), str(cache)],
            "hidden": [*map(str, hidden)],
            "readable": readable_folders(environment, hidden),
        }
        self.control, theirs = socket.socketpair()
        output, printed = os.pipe()
        self.stdout = open(output, "rb", buffering=0)
        os.set_blocking(output, False)
        fork_server.send(config, [channel, theirs.fileno(), printed], interpret)
        theirs.close()
        os.close(printed)

    def has_ended(self) -> bool:
        """Whether the worker is dead, or its supervisor is."""
        return bool(select.select([self.control], [], [], 0)[0])

    def ending(self, seconds: float) -> Ending | None:
        """How the worker ended; None if it still lives after that time."""
        if not select.select([self.control], [], [], seconds)[0]:
            return None
        try:
            words = json.loads(self.control.makefile().readline())
            return Ending(words["returncode"], words["over"])
        except (ValueError, OSError):  # the supervisor itself was killed
            return Ending(None)

    def end(self) -> None:
        """End all of it.  Returns within END_SECONDS or so, whatever the processes do."""
        try:
            self.control.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + END_SECONDS
            while select.select([self.control], [], [], max(0, deadline - time.monotonic()))[0]:
                if not self.control.recv(4096):  # the supervisor ended, and all before it
                    break
        except OSError:  # closed before
            pass
        self.control.close()
        _end_strays(str(self.folder))


def seems_to_have_gpu() -> bool:
    """Before torch can say; the second is WSL's."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))


def _passed_on() -> dict[str, str]:
    """What of the grader's own environment a worker gets."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def _end_strays(folder: str) -> None:
    """Where a supervisor died before its time: kill what still works in the worker's folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(folder):
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue  # it ended meanwhile, or belongs to somebody else
