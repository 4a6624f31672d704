"""What a worker may touch: Linux's Landlock, which needs no privilege and cannot be undone.

Once confined, a process and all its children write only where they are told (host/processes.py
says where; what is hidden, cli.py), do not see the hidden folders, open no TCP connection, and
signal or trace no process outside.

Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import struct
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on every machine
ASK_VERSION, PATH_BENEATH, NO_NEW_PRIVS = 1, 1, 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
# Kernels learned these one after the other: version -> the first bits it does not know.
ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
TCP, SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "kfd")


def confine(writable: list[str], hidden: list[str], readable: list[str]) -> tuple[str, ...]:
    """Confine this process for good.  -> what was achieved: of "files", "network", "signals".

    writable and readable win over hidden.  Empty where the kernel has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
    if version < 1:
        return ()
    rights = ALL_RIGHTS[min(version, 3)]
    achieved = ["files"]
    attributes = struct.pack("Q", rights)
    if version >= 4:
        attributes += struct.pack("Q", TCP)
        achieved.append("network")
    if version >= 6:
        attributes += struct.pack("Q", SCOPES)
        achieved.append("signals")
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return ()
    for path in _all_but([Path(path) for path in hidden]):
        _allow(libc, ruleset, path, READ)
    for path in readable:
        _allow(libc, ruleset, path, READ)
    # CUDA does not start where it cannot name its threads, which is done in /proc/self.
    devices = (str(path) for name in DEVICES for path in Path("/dev").glob(name))
    for path in [*writable, "/proc/self", *devices]:
        _allow(libc, ruleset, path, rights)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    restricted = libc.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return tuple(achieved) if restricted == 0 else ()


def _all_but(hidden: list[Path], top: Path = Path("/")):
    """The largest folders and files under top that hold none of the hidden ones."""
    if top in hidden:
        return
    if not any(top in path.parents for path in hidden):
        yield str(top)
        return
    try:
        entries = list(os.scandir(top))
    except OSError:
        return
    for entry in entries:
        if not entry.is_symlink():  # what it points to has a place of its own
            yield from _all_but(hidden, top / entry.name)


def _allow(libc, ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    if not os.path.isdir(path):
        rights &= FILE_RIGHTS
    libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
    os.close(handle)
