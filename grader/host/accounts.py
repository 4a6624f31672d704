"""Chooses the account that workers run as, and the folders that it must be able to read."""

import functools
import hashlib
import importlib.util
import os
import pwd
import secrets
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

AUTOMATIC_USER = "nobody"
# No homes, no /var, /run or temporary folders; of /etc only what loaders and Python read.
SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store",
    "/run/opengl-driver", "/sys/bus", "/sys/class", "/sys/devices", "/sys/fs/cgroup",
    "/sys/kernel/mm", "/sys/module",
    *(f"/etc/{name}" for name in (
        "OpenCL", "alternatives", "crypto-policies", "group", "ld.so.cache", "ld.so.conf",
        "ld.so.conf.d", "localtime", "nsswitch.conf", "nvidia", "os-release", "passwd",
        "pki/tls/openssl.cnf", "ssl/certs", "ssl/openssl.cnf", "timezone")),
)
# Ids that no account has: nobody gives them by hand, and neither systemd, its containers nor
# directory services use them.  A container with few ids may have only the second range.
UNUSED_IDS = ((0x78000000, 1 << 26), (61184, 4336))
ID_MAPS = ("/proc/self/uid_map", "/proc/self/gid_map")
BESIDE_PROGRAMS = ("include", "lib", "lib64", "libexec")


def find_user(name: str) -> tuple[int, int] | None:
    """The (uid, gid) to run workers as; None for the grader's own account.

    name: an account, "none", or "auto", which is nobody's if this process is root and nobody can
    read the Python in use, and otherwise the grader's own.

    Raises:
        ValueError: the account does not exist, is root, or cannot be used from here.
    """
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
    closed = closed_to_others()
    if closed and automatic:
        return None
    if closed:
        raise ValueError(f"want a Python that {name!r} can read; got {closed[0]}")
    return entry.pw_uid, entry.pw_gid


def closed_to_others() -> list[str]:
    """What a worker needs and an account without privileges cannot use: of Python, the temporary
    folder and the GPUs."""
    needed = [sys.executable, *python_folders(), tempfile.gettempdir()]
    return [path for path in needed if not _is_open(path)] + [
        str(path) for path in Path("/dev").glob("nvidia[0-9]*")
        if path.stat().st_mode & 0o6 != 0o6]


def ids_for_worker(user: tuple[int, int] | None, group: str = "") -> tuple[int, int] | None:
    """(uid, gid) of one worker.  Other programs may use nobody's uid, so the worker gets an unused
    one instead; its gid is the group's or, without a group, the same number."""
    if user is None or user[0] != _nobody() or (ids := unused_ids()) is None:
        return user
    uid = ids[secrets.randbelow(len(ids))]
    digest = int.from_bytes(hashlib.sha256(group.encode()).digest())
    return uid, ids[digest % len(ids)] if group else uid


def unused_ids() -> range | None:
    """Ids of no account that this process may use; None if it has only a few ids of its own."""
    try:
        maps = [[tuple(map(int, row.split())) for row in Path(name).read_text().splitlines()]
                for name in ID_MAPS]
    except OSError:
        return None
    return next((range(first, first + count) for first, count in UNUSED_IDS if all(
        any(start <= first and first + count <= start + length for start, _, length in rows)
        for rows in maps)), None)


def _nobody() -> int | None:
    try:
        return pwd.getpwnam(AUTOMATIC_USER).pw_uid
    except KeyError:
        return None


def readable_folders(environment: dict[str, str], hidden: Iterable[Path] = ()) -> list[str]:
    """What a worker must read outside of its own folder: the system's programs and libraries,
    Python, and what its environment names for compilers and CUDA, but nothing hidden and no
    home."""
    named = set()
    for part in os.pathsep.join(environment.values()).split(os.pathsep):
        if part.startswith("/"):
            folder = Path(part).resolve()
            folder = folder.parent if os.path.isfile(folder) else folder
            named.add(folder)
            if folder.name == "bin":
                named.update(folder.parent / name for name in BESIDE_PROGRAMS)
    named = {str(folder) for folder in named if len(folder.parts) > 1 and not any(
        home.is_relative_to(folder) for home in _homes()) and not any(
        folder.is_relative_to(other) for other in hidden)}
    no_process = map(str, Path("/proc").glob("[!0-9]*"))  # nor the list of them, /proc itself
    return sorted({*SYSTEM, *no_process, *python_folders(), *named})


@functools.cache  # a directory service may have thousands
def _homes() -> list[Path]:
    homes = {Path(home).resolve() for home in (Path.home(), *(
        entry.pw_dir for entry in pwd.getpwall()))}
    return [home for home in homes if len(home.parts) > 1]


def python_folders() -> list[str]:
    """Where this process's Python, torch, triton and numpy are."""
    return sorted({sys.prefix, sys.base_prefix, *package_folders()})


def package_folders() -> list[str]:
    """Where this process found torch, triton and numpy; `python -I` may not look there."""
    folders = []
    for name in ("torch", "triton", "numpy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            folders.append(str(Path(spec.origin).parent.parent))
    return sorted(set(folders))


def _is_open(path) -> bool:
    """Whether every account can read this file, or enter this folder, and enter all above it."""
    path = Path(path).resolve()
    try:
        return path.stat().st_mode & 0o5 == 0o5 and all(
            parent.stat().st_mode & 0o1 for parent in path.parents)
    except OSError:
        return False
