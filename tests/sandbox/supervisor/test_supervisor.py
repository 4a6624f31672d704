"""What the supervisor ends: processes that hide from their parent, and those over a limit."""

import os
import platform
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from grader.assignment.record import ROOT
from grader.course.calls import SubmissionError
from grader.host.processes import Confinement, Worker
from grader.host.session import Session
from grader.sandbox import LENGTH
from grader.sandbox.supervisor import supervisor
from tests.sessions import double_call

LIMITED = Confinement(memory_bytes=1 << 30)
EXIT = {"x86_64": 60, "aarch64": 93}  # the system call that ends one thread


def ending(source: str, confinement=LIMITED, call_timeout=60.0) -> SubmissionError:
    """How a submission with this double(x) ends."""
    with Session(Worker(source.encode(), "problem_2.py", device="cpu", interpret=False,
                        confinement=confinement), 60) as session:
        session.load("double", None, ("x",))
        session.timeout = call_timeout
        with pytest.raises(SubmissionError) as caught:
            session.run(double_call())
    return caught.value


def processes_with(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def test_a_daemon_that_cleared_its_environment_and_left_its_session_is_ended():
    mark = f"{os.getpid()}.25"
    source = f"""
import os
def double(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "{mark}"], {{}})
        os._exit(0)
    os._exit(3)
"""
    error = ending(source)
    assert error.outcome == "crashed" and "exit code 3" in error.sentence
    assert processes_with(mark) == []


@pytest.mark.skipif(platform.machine() not in EXIT, reason="the number of exit is not known here")
def test_a_process_whose_first_thread_has_ended_is_ended_too():
    source = f"""
import ctypes, os, threading, time
def double(x):
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=time.sleep, args=(60,)).start()
        ctypes.CDLL(None).syscall({EXIT.get(platform.machine())}, 0)
    return 0 * x + pid
"""
    with Session(Worker(source.encode(), "problem_2.py", device="cpu", interpret=False),
                 60.0) as session:
        session.load("double", None, ("x",))
        pid = int(session.run(double_call()).outputs[0]["y"][0, 0])
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            time.sleep(0.01)
        assert len(os.listdir(f"/proc/{pid}/task")) == 2
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.skipif(not supervisor.ON_LINUX, reason="needs Linux's /proc")
@pytest.mark.parametrize("lists", [True, False])
def test_the_process_tree_is_all_below_whoever_started_it(lists, monkeypatch):
    monkeypatch.setattr(supervisor, "LISTS_CHILDREN", lists and supervisor.LISTS_CHILDREN)
    started = []

    def start():
        command = ["sh", "-c", "sleep 600 & echo $!; wait"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    thread = threading.Thread(target=start)  # its children stand in a list of their own
    thread.start()
    thread.join()
    shell, = started
    below = int(shell.stdout.readline())
    try:
        found = supervisor.process_tree()
        assert {shell.pid, below} <= set(found)
        assert os.getpid() not in found and os.getppid() not in found
    finally:
        os.kill(below, 9)
        shell.communicate()


def test_a_child_that_python_spawns_runs_none_of_our_files():
    source = """
import multiprocessing
def double(x):
    child = multiprocessing.get_context("spawn").Process(target=int)
    child.start()
    child.join()
    return 0 * x + child.exitcode
"""
    with Session(Worker(source.encode(), "problem_2.py", device="cpu", interpret=False,
                        confinement=Confinement(hidden=(ROOT,))), 60.0) as session:
        session.load("double", None, ("x",))
        assert session.run(double_call()).outputs[0]["y"][0, 0] == 0


def test_a_worker_that_compiles_need_not_read_all_of_triton_first():
    source = b"""
from triton.runtime.cache import triton_key
print("read", triton_key.cache_info().currsize, "times")
def double(x):
    return x * 2
"""
    with Session(Worker(source, "problem_2.py", device="cpu", interpret=False,
                        compile_for=90), 60.0) as session:
        session.load("double", None, ("x",))
        assert "read 1 times" in session.output.text()


# What a file does: how often, and what it then passed.
OVER = {
    "held a list": (40, "kept.append(bytearray(b'x') * (32 << 20))",
                    "GiB of host memory, more than the 1 GiB it may (--memory)"),
    "held files without a name": (40, "write(os.memfd_create('x'))", "GiB of host memory"),
    "held deleted files": (40, "write(deleted())", "GiB of host memory"),
    "held sockets": (2, "forked(lambda: kept.append(socket.socketpair()))", "GiB of host memory"),
    "opened many files": (20, "forked(lambda: kept.append(os.dup(1)))",
                          "opened more than 65536 files"),
    "started many threads": (9000, "threading.Thread(target=time.sleep, args=(600,)).start()",
                             "started more than 8192 threads"),
    "started many processes": (600, "os.posix_spawn('/bin/sleep', ['sleep', '600'], {})",
                               "started more than 512 processes"),
    "filled its folder": (40, "write(file(os.getcwd()))", "more than 1 GiB into its"),
    "filled its cache": (40, "write(file(os.environ['TRITON_CACHE_DIR']))",
                         "more than 1 GiB into its folder"),
}


@pytest.mark.skipif(not supervisor.ON_LINUX, reason="needs Linux's /proc")
@pytest.mark.parametrize("what", OVER)
def test_what_is_over_a_limit_is_a_crash_that_says_so(what, tmp_path):
    times, act, said = OVER[what]
    source = f"""
import os, socket, tempfile, threading, time
kept = []
threading.stack_size(1 << 16)
def file(folder):
    return tempfile.mkstemp(dir=folder)[0]
def deleted():
    opened = os.open("file", os.O_CREAT | os.O_RDWR)
    os.unlink("file")
    return opened
def write(opened):
    kept.append(opened)
    os.write(opened, bytes(32 << 20))
def forked(act):
    if os.fork() == 0:
        try:
            while True:
                act()
        except OSError:  # no more files
            time.sleep(600)
def double(x):
    for _ in range({times}):
        {act}
    time.sleep(600)
"""
    with Session(Worker(source.encode(), "problem_2.py", device="cpu", interpret=False,
                        cache=tmp_path, confinement=LIMITED), 60) as session:
        session.load("double", None, ("x",))
        with pytest.raises(SubmissionError) as caught:
            session.run(double_call())
    assert said in caught.value.sentence
    assert what != "filled its cache" or not list(tmp_path.iterdir())


@pytest.mark.parametrize("allowed", [1 << 30, 40_000])
def test_empty_files_count_and_are_not_counted_further_than_may_be(allowed, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_FOLDER_BYTES", allowed)
    (tmp_path / "below").mkdir()
    for number in range(100):
        (tmp_path / "below" / str(number)).touch()
    counted = supervisor.folder_bytes(str(tmp_path))
    assert counted >= 101 * 4096 if allowed == 1 << 30 else allowed < counted < 50_000


def test_memory_that_children_share_counts_once():
    source = """
import os, time
kept = bytearray(b"x") * (300 << 20)
def double(x):
    for _ in range(6):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    time.sleep(1.5)
    return x * 2
"""
    with Session(Worker(source.encode(), "problem_2.py", device="cpu", interpret=False,
                        confinement=LIMITED), 60) as session:
        session.load("double", None, ("x",))
        assert session.run(double_call()).outputs


def test_a_folder_without_rights_and_a_deep_one_are_removed():
    source = """
import os
os.mkdir("locked", 0o300)
os.mkdir("locked/inside", 0o300)
open("locked/inside/file", "w").close()
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
def double(x):
    return x * 2
"""
    with Session(Worker(source.encode(), "problem_2.py", device="cpu", interpret=False),
                 60) as session:
        session.load("double", None, ("x",))
        folder = session.worker.folder
    assert not folder.exists()


def test_a_worker_that_ignores_signals_has_ended_when_its_session_has():
    mark = f"{os.getpid()}.77"
    source = f"""
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def double(x):
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{mark}"], {{}})  # signals stay ignored
    time.sleep(600)
"""
    assert ending(source, call_timeout=1.0).outcome == "timeout"
    assert processes_with(mark) == []


def test_a_fork_server_ends_when_the_grader_is_killed_in_a_request():
    ours, theirs = socket.socketpair()
    with open(os.devnull) as nothing:
        socket.send_fds(ours, [LENGTH.pack(10) + b"{"], [nothing.fileno()] * 3)
        ours.close()
        assert supervisor.receive(theirs) is None
    theirs.close()
