"""Runs the processes between the grader and a worker, which never run a line of a submission.

The fork server is started once, by host/processes.py, through __main__.py and reaper.py.  It
imports what every worker needs, which takes seconds.  Once torch is imported it forks a second one,
whose Triton interprets.  Each forks a supervisor for every request on its socket.

A supervisor forks the worker and confines it.  Every process whose parent dies becomes its child,
so that no process can leave the worker's tree.  It ends them all, and removes their folder, when
the grader says so, when the worker has ended, or when the grader is gone.
It holds the process tree to its limits and says one thing to the grader, a JSON line on the control
socket: {"returncode": as subprocess has it, "over": which limit was passed, or ""}.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from .. import LENGTH
from ..worker import worker
from . import confine, seccomp
from .reaper import ON_LINUX, empty, inherit_orphans, remove

LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # not in every kernel
POLL_SECONDS, MOST_SECONDS = 0.1, 1.0  # from one look at the processes to the next
END_SECONDS = 5.0  # a CUDA context can take this long to come down
MAX_PROCESSES = 512
MAX_THREADS = 8192  # libraries start one thread per core
MAX_OPEN, MAX_OPEN_ALL = 4096, 65536  # files per process, and of all processes together
MAX_FOLDER_BYTES = 1 << 30
FULL = "wrote more than 1 GiB into its folder, which is the limit (a file counts as at least 4 KiB)"
LEAST_FILE = 4096  # bytes that an empty file counts for: it takes an inode and a place in a folder
PIPE_BYTES, MOST_SOCKET_BYTES = 1 << 16, 16 << 20
GIB = 2.0**30
TRITON = ("triton", "triton.language", "triton.compiler", "triton.compiler.code_generator",
          "triton.runtime.interpreter")  # what every file of stages 2 to 9 needs
LEAST_TRITON = (3, 6)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4


def main(compiling_fd: int, interpreting_fd: int, key_fd: int | None) -> None:
    """Run both fork servers.

    A request is a length and JSON, with three descriptors: the worker's channel, the supervisor's
    control socket, and the pipe for what the worker prints.  key_fd: Triton's key comes from there.
    """
    if os.fork() == 0:
        os.close(compiling_fd)
        if key_fd is not None:
            os.close(key_fd)
        os.environ["TRITON_INTERPRET"] = "1"
        serve(interpreting_fd, None)
    else:
        os.close(interpreting_fd)
        serve(compiling_fd, key_fd)
    os._exit(0)  # an orderly exit after importing torch takes half a second


def serve(fd: int, key_fd: int | None) -> None:
    """Run one fork server until the grader closes the socket."""
    requests = socket.socket(fileno=fd)
    import_triton()
    if key_fd is not None:
        take_key(key_fd)
    gc.freeze()  # workers must neither scan these objects nor copy their pages
    gc.enable()
    sys.dont_write_bytecode = True  # leave nothing beside a submission's file
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that supervisors leave no zombies
    while (request := receive(requests)) is not None:
        words, fds = request
        if words["device"] == "cuda" or words["compile_for"]:
            read_triton()
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                keep(words, *fds)
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)


def import_triton() -> None:
    """Import Triton once for all workers.  One that is too old for the hooks, or fails, counts as
    missing: stage 1 needs none."""
    try:
        for name in TRITON:
            importlib.import_module(name)
        if tuple(map(int, sys.modules["triton"].__version__.split(".")[:2])) >= LEAST_TRITON:
            return
    except Exception:  # whatever the reason
        pass
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]
    sys.modules["triton"] = None  # imports then fail as if there were none


def take_key(fd: int) -> None:
    """Take Triton's key, which was made while torch was imported."""
    with contextlib.suppress(Exception), open(fd) as pipe:
        if key := pipe.read():
            importlib.import_module("triton.runtime.cache").triton_key = lambda: key


def read_triton() -> None:
    """Let Triton read all its own files, as it does before compiling, once for all workers."""
    with contextlib.suppress(Exception):  # if it fails, each worker reads them
        importlib.import_module("triton.runtime.cache").triton_key()  # the result is cached


def receive(requests: socket.socket) -> tuple[dict, list[int]] | None:
    """The next request and its descriptors; None if the grader is gone, even amid a request."""
    head, fds, _, _ = socket.recv_fds(requests, LENGTH.size, 3)
    if len(head) < LENGTH.size:
        return None
    text = b""
    while len(text) < LENGTH.unpack(head)[0]:
        part = requests.recv(LENGTH.unpack(head)[0] - len(text))
        if not part:
            return None
        text += part
    return json.loads(text), fds


def keep(config: dict, channel: int, control_fd: int, output: int) -> None:
    """Run a supervisor from start to end."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.clear()
    os.environ.update(config["environment"])
    tempfile.tempdir = None  # torch's dill has set it before the fork
    if sys.modules.get("triton") is None:  # no Triton, nothing to interpret
        os.environ.pop("TRITON_INTERPRET", None)
    control = socket.socket(fileno=control_fd)
    inherit_orphans()
    child = Child(os.fork())
    if child.pid == 0:
        control.close()
        run_worker({**config, "fd": channel})  # does not return
    os.close(channel)  # so that it closes when the worker ends
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if ON_LINUX:
        # Other processes of this account must not look into this one.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
    # The cache of a worker without a file holds the kernels of many files.
    folder, *cache = config["writable"][:1 if config["idle"] else 2]
    over = None
    try:
        over = wait(control, child, config["memory_bytes"], [folder, *cache])
        end_all(child)
        if over is not None:  # otherwise the grader is not waiting for it
            line = json.dumps({"returncode": child.returncode, "over": over}) + "\n"
            control.sendall(line.encode())
            control.recv(1)  # until the grader has read it, or is gone
    except OSError:
        pass
    finally:
        end_all(child)
        remove(folder)
        if over == FULL and cache:
            empty(*cache)


# --------------------------------------------------------------------- the worker's side
def run_worker(config: dict) -> None:
    """Become the worker: change the user, set limits, confine, then run worker.py."""
    try:
        os.chdir(os.path.dirname(config["path"]))
        if ON_LINUX:
            # If memory runs out all the same, the system should kill this process first.
            Path("/proc/self/oom_score_adj").write_text("1000")
        for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, MAX_FOLDER_BYTES),
                            (resource.RLIMIT_NOFILE, MAX_OPEN)):
            _, hard = resource.getrlimit(limit)  # as set by `ulimit -H`
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (most, most))
        confined = []
        if config["own_account"]:  # its folder is private, but its group shares the cache
            os.umask(0o007)
        if config["user"] is not None:
            uid, gid = config["user"]
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            # Between two looks of the supervisor, which says so.
            resource.setrlimit(resource.RLIMIT_NPROC, (2 * MAX_THREADS, 2 * MAX_THREADS))
            confined.append("user")
        if ON_LINUX:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user resets it
            confined += confine.drop_privileges(config["readable"])
            confined += confine.confine(
                config["writable"], config["hidden"], config["readable"])
            confined += seccomp.confine(config["own_account"])
        config["confined"] = confined
        # A child started by the file would otherwise run our main module again.
        sys.modules["__main__"] = ModuleType("__main__")
        worker.main(config)
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        sys.stdout.flush()
        os._exit(0)


# --------------------------------------------------------------------- the supervisor's side
class Child:
    """The worker.  returncode: as in subprocess; None until it ends."""

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None

    def reap(self) -> bool:
        """Collect all dead children, orphans included, because zombies count as processes.  ->
        whether no child is left, and so no descendant either."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self.pid:
                    self.returncode = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return True
        return False


def wait(control, child: Child, memory_bytes: int, folders: list[str]) -> str | None:
    """Wait for an end.  -> the limit that was passed; "" if the worker ended by itself; None if the
    grader wants it ended or is gone."""
    handles = [control]
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old one: poll
        handles.append(os.pidfd_open(child.pid))
    next_walk, pause = time.monotonic() + 1.0, POLL_SECONDS
    while True:
        ready = select.select(handles, [], [], pause)[0]
        if control in ready:
            return None
        child.reap()
        if child.returncode is not None:
            return ""
        if not ON_LINUX:
            continue
        start = time.monotonic()
        members = process_tree()
        if len(members) > MAX_PROCESSES:
            return f"started more than {MAX_PROCESSES} processes"
        if sum(len(tasks(pid)) for pid in members) > MAX_THREADS:
            return f"started more than {MAX_THREADS} threads"
        files, beside = open_files(members)
        if files > MAX_OPEN_ALL:
            return f"opened more than {MAX_OPEN_ALL} files"
        used = beside + sum(map(resident_bytes, members))
        if used > memory_bytes:  # look again: shared pages were counted once per process
            used = beside + sum(map(proportional_bytes, members))
        if used > memory_bytes:
            return (f"held {used / GIB:.1f} GiB of host memory, more than the "
                    f"{memory_bytes / GIB:.3g} GiB it may (--memory)")
        if time.monotonic() > next_walk:
            if sum(map(folder_bytes, folders)) > MAX_FOLDER_BYTES:
                return FULL
            next_walk = time.monotonic() + 1.0
        # Thousands of processes or files take long to go through.
        pause = min(max(POLL_SECONDS, 20 * (time.monotonic() - start)), MOST_SECONDS)


def end_all(child: Child) -> None:
    """Kill every descendant."""
    deadline = time.monotonic() + END_SECONDS
    while not child.reap() and time.monotonic() < deadline:
        for pid in process_tree() if ON_LINUX else [child.pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def process_tree() -> list[int]:
    """The descendants of this process, also dead ones that no one has collected; those that start
    meanwhile may be missed."""
    children = listed_children if LISTS_CHILDREN else all_children()
    found, waiting = [], [os.getpid()]
    while waiting:
        waiting += (below := children(waiting.pop()))
        found += below
    return found


def listed_children(pid: int) -> list[int]:
    """From the kernel's lists, which are a few files instead of one per process of the machine."""
    found = []
    for task in tasks(pid):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def all_children() -> Callable[[int], list[int]]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            # "pid (name) state parent ..."; the name may hold anything
            about = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2]
            children.setdefault(int(about.split()[1]), []).append(int(name))
    return lambda pid: children.get(pid, [])


def tasks(pid: int) -> list[str]:
    """The ids of a process's threads."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def resident_bytes(pid: int) -> int:
    # A thread that has ended shows no memory, though its process may have some.
    pages = _pages(pid) or max(map(_pages, tasks(pid)[-1:]), default=0)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _pages(task: int | str) -> int:
    try:
        return int(Path(f"/proc/{task}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Resident memory, with each shared page divided among its processes."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * sum(int(line.split()[1]) for line in text.splitlines()
                          if line.startswith("Pss:"))
    except (OSError, IndexError, ValueError):
        return resident_bytes(pid)


def open_files(members: list[int]) -> tuple[int, int]:
    """How many files these processes hold open, and the bytes of memory behind them: of deleted
    files and those of memfd_create (their mapped parts count twice), and what pipes and sockets
    may hold."""
    found, count = {}, 0
    for pid in members:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as opened:
            for entry in opened:
                count += 1
                with contextlib.suppress(OSError):  # closed meanwhile
                    file = entry.stat()
                    if stat.S_ISSOCK(file.st_mode):
                        held = socket_bytes()
                    elif stat.S_ISFIFO(file.st_mode):
                        held = PIPE_BYTES
                    else:  # a GPU's memory looks like a file, too, but not like a regular one
                        deleted = stat.S_ISREG(file.st_mode) and file.st_nlink == 0
                        held = file.st_blocks * 512 * deleted
                    found[file.st_dev, file.st_ino] = held
        if count > MAX_OPEN_ALL:
            break
    return count, sum(found.values())


@functools.cache
def socket_bytes() -> int:
    """The most that may wait in one socket; the kernel doubles what a process asks for."""
    try:
        most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    except (OSError, ValueError):  # it is not told in a container
        most = 212992
    return min(2 * most, MOST_SOCKET_BYTES)


def folder_bytes(folder: str) -> int:
    """Bytes on the disk, or more than MAX_FOLDER_BYTES as soon as there are.

    os.walk is recursive and would fail on folders nested 2000 deep.
    """
    total, waiting = 0, [folder]
    while waiting and total <= MAX_FOLDER_BYTES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    blocks = entry.stat(follow_symlinks=False).st_blocks
                    total += max(LEAST_FILE, blocks * 512)
                    if total > MAX_FOLDER_BYTES:
                        break
        except OSError:  # gone, closed, or its path is too long
            continue
    return total
