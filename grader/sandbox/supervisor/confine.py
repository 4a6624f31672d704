"""Limits what a worker can touch, by Linux's Landlock, which needs no privilege and is permanent.

A confined process and its children read and write only the paths they are given (by
host/processes.py, and cli.py for hidden ones), open no TCP connection, and signal or trace no
process outside.  seccomp.py closes what Landlock does not cover.

Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import struct
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls on every machine
ASK_VERSION, PATH_BENEATH, NO_NEW_PRIVS = 1, 1, 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
# Version of Landlock -> all rights it knows, as bits; later ones know more.
ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
TCP, SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "kfd", "dxg")
BOUNDING_DROP, AMBIENT, AMBIENT_RAISE, AMBIENT_CLEAR = 24, 47, 2, 4
CAPABILITIES_VERSION, READ_ANYTHING, ALL = 0x20080522, 1 << 2, (1 << 64) - 1


def drop_privileges(readable: list[str]) -> tuple[str, ...]:
    """Give up root's capabilities, and by no_new_privs every way to regain one, for good.

    -> ("privileges",) if none is left.  One is kept if root needs it to read Python in a private
    folder of another account.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(AMBIENT, AMBIENT_CLEAR, 0, 0, 0)
    held = _capabilities(libc)
    _set_capabilities(libc, effective=0, permitted=held, inheritable=0)
    kept = 0 if all(map(_can_read, readable)) else held & READ_ANYTHING
    _set_capabilities(libc, effective=held, permitted=held, inheritable=kept)
    for capability in range(64):  # those of programs it may start
        libc.prctl(BOUNDING_DROP, capability, 0, 0, 0)
    _set_capabilities(libc, kept, kept, kept)
    if kept:
        libc.prctl(AMBIENT, AMBIENT_RAISE, kept.bit_length() - 1, 0, 0)
    return () if _capabilities(libc) else ("privileges",)


def _capabilities(libc) -> int:
    """The capabilities permitted to this process, as bits."""
    sets = ctypes.create_string_buffer(24)
    if libc.capget(struct.pack("Ii", CAPABILITIES_VERSION, 0), sets):
        return ALL
    _, low, _, _, high, _ = struct.unpack("6I", sets)
    return low | high << 32


def _set_capabilities(libc, effective: int, permitted: int, inheritable: int) -> None:
    sets = (effective, permitted, inheritable)
    words = [bits >> shift & 0xFFFFFFFF for shift in (0, 32) for bits in sets]
    libc.capset(struct.pack("Ii", CAPABILITIES_VERSION, 0), struct.pack("6I", *words))


def _can_read(folder: str) -> bool:
    try:
        os.scandir(folder).close()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def confine(writable: list[str], hidden: list[str], readable: list[str]) -> tuple[str, ...]:
    """Confine this process for good.  -> what is in force, of "files", "reads" and "signals";
    nothing if the kernel has no Landlock.

    readable: files and folders, without the hidden ones inside.  no_new_privs must be set.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
    if version < 1:
        return ()
    rights = ALL_RIGHTS[min(version, 3)]
    achieved = ["files", "reads"]
    attributes = struct.pack("Q", rights)
    if version >= 4:
        attributes += struct.pack("Q", TCP)
    if version >= 6:
        attributes += struct.pack("Q", SCOPES)
        achieved.append("signals")
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return ()
    for top in map(os.path.realpath, readable):  # a path that is listed counts even if it is hidden
        for path in _all_but([Path(path) for path in hidden if path != top], Path(top)):
            _allow(libc, ruleset, path, READ)
    _allow(libc, ruleset, "/dev", READ_DIR)
    # CUDA does not start unless it can name its threads, in /proc/self.
    devices = (str(path) for name in DEVICES for path in Path("/dev").glob(name))
    for path in [*writable, "/proc/self", *devices]:
        _allow(libc, ruleset, path, rights)
    restricted = libc.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return tuple(achieved) if restricted == 0 else ()


def _all_but(hidden: list[Path], top: Path):
    """The largest folders and files under top without any hidden one in them."""
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
        if not entry.is_symlink():  # its target is found where it is
            yield from _all_but(hidden, top / entry.name)


def _allow(libc, ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it does not exist, and needs no rule
    if not os.path.isdir(path):
        rights &= FILE_RIGHTS
    libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
    os.close(handle)
