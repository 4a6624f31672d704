"""The account that workers run as, and where the Python lies that it has to read."""

import importlib.util
import os
import pwd
import sys
import tempfile
from pathlib import Path

AUTOMATIC_USER = "nobody"


def find_user(name: str) -> tuple[int, int] | None:
    """The account to run workers as.  name: an account, "none", or "auto".

    "auto" is the account nobody where this process is root and nobody can read the Python in use;
    otherwise no other account.

    Raises:
        ValueError: the account does not exist, is root, or cannot be taken or used from here.
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
    needed = [sys.executable, *python_folders(), tempfile.gettempdir()]
    closed = [path for path in needed if not _is_open(path)]
    closed += [str(path) for path in Path("/dev").glob("nvidia[0-9]*")
               if path.stat().st_mode & 0o6 != 0o6]
    if closed and automatic:
        return None
    if closed:
        raise ValueError(f"want a Python that {name!r} can read; got {closed[0]}")
    return entry.pw_uid, entry.pw_gid


def python_folders() -> list[str]:
    """Where this process's Python, torch, triton and numpy are."""
    return sorted({sys.prefix, sys.base_prefix, *package_folders()})


def package_folders() -> list[str]:
    """Where this process found torch, triton and numpy; `python -I` alone may not look there."""
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
