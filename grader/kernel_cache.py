"""Where the kernels compiled from a submission are kept from one run to the next, on a GPU.

A student runs the same stage many times, and compiling for its many cases takes seconds.  The
folder's name is the hash of the file: a submission only ever finds what the very same bytes
compiled before, never what another file left.
"""

import hashlib
import os
import shutil
from pathlib import Path

KEPT = 64  # files remembered; one takes a few MiB
CLEAN_KEPT = 4096  # compiled variants remembered for clean workers; one takes some 100 KiB


def folder_for(source: bytes, user: tuple[int, int] | None = None) -> Path | None:
    """The folder for this file's kernels, made if need be; None where none can be written.

    user: (uid, gid) of another account that is to write there; its folders stand where that
    account can reach them, and belong to it one by one, so that it cannot make more.
    """
    return _folder(hashlib.sha256(source).hexdigest(), user)


def clean_folder(user: tuple[int, int] | None = None) -> Path | None:
    """The folder for what clean workers compile, whichever file it came from: no submission can
    write there, where the kernel confines it."""
    folder = _folder("clean", user)
    if folder is not None:
        _forget(folder, CLEAN_KEPT)
    return folder


def _folder(name: str, user: tuple[int, int] | None) -> Path | None:
    try:
        base = _base() if user is None else _shared_base()
        folder = base / name
        folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            os.chown(folder, *user)
        os.utime(folder)  # used now: the last to be forgotten
        _forget(base, KEPT)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return folder if os.access(folder, os.W_OK) else None


def _forget(base: Path, kept: int) -> None:
    """Remove the folders in base that were not written to for longest."""
    try:
        folders = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # another grading removes them too
        return
    for old in folders[kept:]:
        shutil.rmtree(old, ignore_errors=True)


def _base() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "flash-attention-course"


def _shared_base() -> Path:
    base = Path("/var/tmp") / f"flash-attention-course-{os.geteuid()}"
    base.mkdir(mode=0o711, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.geteuid():
        raise OSError("somebody else's folder stands in its place")
    return base
