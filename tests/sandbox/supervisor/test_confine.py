"""What a worker may touch, seen from inside one."""

import platform
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grader.assignment.record import ROOT
from grader.course.calls import OutputSpec
from grader.host import accounts
from grader.host.accounts import find_user, ids_for_worker
from grader.host.processes import Confinement, Worker
from grader.host.session import Session
from grader.sandbox.supervisor import (  # noqa: F401 -- importing starts nothing
    confine,
    seccomp,
    supervisor,
)
from tests.sessions import double_call

HELPERS = """
import ctypes, errno, os, re, resource, socket, subprocess, threading, torch
from pathlib import Path

def tried(act):
    try:
        act()
        return [1.0]
    except OSError as error:
        return [float(error.errno in (errno.EFAULT, errno.EINVAL, errno.EAGAIN))]

def caller(numbers):
    libc = ctypes.CDLL(None, use_errno=True)
    def call(name, *arguments):
        if libc.syscall(numbers[name], *map(ctypes.c_long, arguments)) < 0:
            raise OSError(ctypes.get_errno(), name)
    return call

def has_some(pattern):
    if not re.search(pattern, Path("/proc/self/status").read_text()):
        raise OSError(errno.EPERM, pattern)
"""
LANDLOCK = "the kernel has no Landlock, or an old one"


def ask(source: str, confinement=None) -> tuple[list[float], tuple[str, ...]]:
    """The numbers that a submission's double(x) returns, and what held it."""
    count = source.count("CHECK")
    spec = (OutputSpec("y", (count,), double_call().inputs["x"].storage.dtype),)
    lines = "\n".join("    " + line.replace("CHECK", "found +=") for line in source.splitlines())
    text = HELPERS + (f"def double(x):\n    found = []\n{lines}\n    return torch.tensor(found)\n")
    with Session(Worker(text.encode(), "problem_2.py", device="cpu", interpret=False,
                        confinement=confinement), 60) as session:
        session.load("double", None, ("x",))
        return session.run(double_call(outputs=spec)).outputs[0]["y"].tolist(), session.confined


def test_a_worker_writes_into_its_own_folder_and_nowhere_else(tmp_path):
    found, held = ask(f"""
CHECK tried(lambda: Path('here').write_text('x'))
CHECK tried(lambda: Path(os.environ['TMPDIR'], 'here').write_text('x'))
CHECK tried(lambda: Path({str(tmp_path)!r}, 'left').write_text('x'))
CHECK tried(lambda: Path('/dev/shm/left').write_text('x'))""".strip())
    if "files" not in held:
        pytest.skip(LANDLOCK)
    assert found == [1.0, 1.0, 0.0, 0.0]
    assert not list(tmp_path.iterdir())


def test_a_worker_does_not_see_what_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "reference.py").write_text("x")
    (tmp_path / "open.txt").write_text("x")
    found, held = ask(f"""
CHECK tried(lambda: Path({str(tmp_path)!r}, 'secret', 'reference.py').read_text())
CHECK tried(lambda: os.listdir({str(tmp_path / "secret")!r}))
CHECK tried(lambda: Path({str(tmp_path)!r}, 'open.txt').read_text())""".strip(),
                      Confinement(hidden=(tmp_path / "secret",)))
    if "files" not in held:
        pytest.skip(LANDLOCK)
    assert found == [0.0, 0.0, 1.0]


def test_a_worker_uses_its_own_process_folder_and_pairs_of_sockets_as_it_likes():
    found, _ = ask("""
CHECK tried(lambda: os.kill(os.getpid(), 0))
CHECK tried(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
CHECK tried(lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0)))
CHECK tried(lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
CHECK tried(socket.socketpair)
CHECK tried(lambda: os.memfd_create('x'))
CHECK tried(lambda: Path('/proc/self/maps').read_text())
CHECK tried(lambda: Path('/proc/self/comm').write_text('x'))
CHECK tried(lambda: Path('/proc/meminfo').read_text())
CHECK tried(lambda: subprocess.run(['/bin/sh', '-c', 'cat /proc/cpuinfo > here'], check=True))
CHECK tried(lambda: threading.Thread(target=int).start())""".strip())
    assert all(found)


def test_a_worker_inherits_its_channel_and_what_it_prints_to_and_nothing_else():
    found, _ = ask("CHECK [float(len(os.listdir('/proc/self/fd')))]")
    assert found == [5.0]  # standard input, which is empty, two streams, the channel, the list


# --------------------------------------------------------------------- probes
# What each has to be kept from: by what `confined` says, as an expression that tries it.
PROBES = {
    "capabilities": ("privileges", "has_some(r'Cap(?:Eff|Prm):.*[1-9a-f]')"),
    "TCP": ("network", "socket.socket().bind(('127.0.0.1', 0))"),
    "UDP": ("network", "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))"),
    "MPTCP": ("network", "socket.socket(proto=262)"),
    "raw sockets": ("network", "socket.socket(type=socket.SOCK_RAW, proto=1)"),
    "netlink": ("network", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    "a Unix socket with a path": ("network", "socket.socket(socket.AF_UNIX).connect(SOCKET)"),
    "a datagram to one": (
        "network", "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'', SOCKET)"),
    "io_uring": ("network", "call('io_uring_setup', 1, 0)"),
    "shared memory": ("ipc", "call('shmget', 0, 4096, 0o1600)"),
    "its segments": ("ipc", "call('shmat', -1, 0, 0)"),
    "message queues": ("ipc", "call('msgget', 0, 0o1600)"),
    "semaphores": ("ipc", "call('semget', 0, 1, 0o1600)"),
    "POSIX message queues": ("ipc", "call('mq_open', 0, 0, 0, 0)"),
    "key rings": ("ipc", "call('keyctl', 0, -3, 0)"),
    "a limit": ("processes", "resource.prlimit(PARENT, resource.RLIMIT_NOFILE)"),
    "a priority": ("processes", "os.setpriority(0, PARENT, os.getpriority(0, PARENT))"),
    "an affinity": ("processes", "os.sched_setaffinity(PARENT, os.sched_getaffinity(PARENT))"),
    "a scheduler": ("processes", "os.sched_setscheduler(PARENT, 0, os.sched_param(0))"),
    "a user namespace": ("processes", "call('unshare', 0x10000000)"),
    "mounts": ("processes", "call('mount', 0, 0, 0, 0, 0)"),
    "tracing": ("processes", "call('process_vm_readv', os.getpid(), 0, 0, 0, 0, 0)"),
    "signals": ("signals", "os.kill(PARENT, 0)"),
    "the list of processes": ("reads", "os.listdir('/proc')"),
    "a command line": ("reads", "open(f'/proc/{PARENT}/cmdline').read()"),
    "a command line by another way": (
        "reads", "open(f'/proc/self/root/proc/{PARENT}/cmdline').read()"),
    "its environment": ("signals", "open(f'/proc/{PARENT}/environ').read()"),
    "a key of ssh": ("reads", "open(OUTSIDE).read()"),
    "the folder around it": ("reads", "os.listdir(os.path.dirname(OUTSIDE))"),
    "the temporary folder": ("reads", "os.listdir('/tmp')"),
    "passwords": ("reads", "open('/etc/shadow').read()"),
    "another worker's file": ("reads", "open(NEIGHBOUR).read()"),
    "the names of other workers": ("reads", "os.listdir(os.path.join(FOLDER, '..'))"),
    "rights": ("processes", "os.chmod(OUTSIDE, 0o600)"),
    "another worker's rights": ("processes", "os.chmod(os.path.dirname(NEIGHBOUR), 0)"),
    "times": ("processes", "os.utime(OUTSIDE)"),
    "owners": ("processes", "os.chown(OUTSIDE, -1, -1)"),
    "attributes": ("processes", "os.setxattr(OUTSIDE, 'user.x', b'x')"),
    "thousands of open files": ("privileges", "os.dup2(1, 5000)"),
    "gaining some": ("privileges", "has_some('NoNewPrivs:.*0')"),
}


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """What of PROBES a worker could do, beside another worker; and what held it."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "id_ed25519").write_text("secret")
    numbers = {name: pair[list(seccomp.MACHINES).index(platform.machine())]
               for name, pair in seccomp.REFUSED.items()
               } if platform.machine() in seccomp.MACHINES else {}
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "agent"))
    listening.listen()
    confinement = Confinement(find_user("auto"))
    neighbour = Worker(b"secret", "problem_2.py", device="cpu", interpret=False,
                       confinement=confinement)
    try:
        found, held = ask("\n".join([
            f"SOCKET, OUTSIDE = {str(folder / 'agent')!r}, {str(folder / 'id_ed25519')!r}",
            f"NEIGHBOUR, PARENT = {str(neighbour.path)!r}, os.getppid()",
            "FOLDER = os.environ['TMPDIR']",
            f"call = caller({numbers})",
            *(f"CHECK tried(lambda: {tried})" for _, tried in PROBES.values())]), confinement)
    finally:
        neighbour.close()
        listening.close()
    return dict(zip(PROBES, found, strict=True)), held


@pytest.mark.parametrize("probe", PROBES)
def test_a_worker_is_kept_from(probe, probed):
    found, held = probed
    if PROBES[probe][0] not in held:
        pytest.skip(f"open on this machine, and said to be: {PROBES[probe][0]}")
    assert not found[probe]


WITHOUT_LANDLOCK = """
from grader.sandbox.supervisor import confine, seccomp
confine.CREATE_RULESET = 9999  # as in kernels without them
seccomp.MACHINES.clear()
print(*confine.confine([], [], []), *seccomp.confine(False))
open("pyproject.toml")
"""


def test_what_a_kernel_cannot_close_is_not_said_to_be_closed():
    done = subprocess.run([sys.executable, "-c", WITHOUT_LANDLOCK], cwd=ROOT, check=True,
                          capture_output=True, text=True)
    assert done.stdout == "\n"


def test_all_but_the_hidden_is_open(tmp_path):
    for name in ("a", "b", "b/c", "b/d"):
        (tmp_path / name).mkdir()
    found = set(confine._all_but([tmp_path / "b" / "c"], tmp_path))
    assert found == {str(tmp_path / "a"), str(tmp_path / "b" / "d")}


# --------------------------------------------------------------------- accounts
def test_each_worker_in_nobodys_place_has_an_id_that_no_account_has():
    if (ids := accounts.unused_ids()) is None:
        pytest.skip("this process has few ids of its own")
    nobody = pwd.getpwnam("nobody")
    nobody = nobody.pw_uid, nobody.pw_gid
    workers = [ids_for_worker(nobody) for _ in range(20)]
    assert len(set(workers)) > 15 and all(uid in ids and gid == uid for uid, gid in workers)
    sharing = [ids_for_worker(nobody, "cache") for _ in range(20)]
    assert len({gid for _, gid in sharing}) == 1 and len({uid for uid, _ in sharing}) > 15
    assert ids_for_worker(None) is None and ids_for_worker((1000, 1000)) == (1000, 1000)


def test_where_ids_are_few_those_of_a_container_do(monkeypatch, tmp_path):
    rows = {"many": "0 0 4294967295", "container": "0 100000 65536", "few": "0 1000 1"}
    for name, row in rows.items():
        (tmp_path / name).write_text(row + "\n")
    for name, first in (("many", 0x78000000), ("container", 61184)):
        monkeypatch.setattr(accounts, "ID_MAPS", [str(tmp_path / name)])
        assert accounts.unused_ids()[0] == first
    monkeypatch.setattr(accounts, "ID_MAPS", [str(tmp_path / "many"), str(tmp_path / "few")])
    assert accounts.unused_ids() is None


def test_what_the_environment_names_may_be_read_but_no_home_and_nothing_hidden(tmp_path):
    for name in ("tool/bin", "tool/lib", "secret/bin"):
        (tmp_path / name).mkdir(parents=True)
    found = accounts.readable_folders(
        {"PATH": f"{tmp_path}/tool/bin:{tmp_path}/secret/bin:{Path.home()}:/:."},
        [tmp_path / "secret"])
    assert {f"{tmp_path}/tool/bin", f"{tmp_path}/tool/lib"} <= set(found)
    assert not {f"{tmp_path}/secret/bin", str(Path.home()), "/", "."} & set(found)


def test_nobody_asked_for_is_nobody_taken():
    assert find_user("none") is None


@pytest.mark.parametrize(("name", "words"), [
    ("no-such-account", "want an account of this machine"),
    ("root", "want"),
])
def test_an_account_that_will_not_do_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        find_user(name)
