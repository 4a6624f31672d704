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


def folder_for(source: bytes, user: tuple[int, int] | None = None) -> Path | None:
    """The folder for this file's kernels, made if need be; None where none can be written.

    user: (uid, gid) of another account that is to write there; its folders stand where that
    account can reach them, and belong to it one by one, so that it cannot make more.
    """
    digest = hashlib.sha256(source).hexdigest()
    try:
        base = _base() if user is None else _shared_base()
        folder = base / digest
        folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            os.chown(folder, *user)
        os.utime(folder)  # used now: the last to be forgotten
        folders = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    for old in folders[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder if os.access(folder, os.W_OK) else None


def _base() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "flash-attention-course"


def _shared_base() -> Path:
    base = Path("/var/tmp") / f"flash-attention-course-{os.geteuid()}"
    base.mkdir(mode=0o711, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.geteuid():
        raise OSError("somebody else's folder stands in its place")
    return base
