"""Where the kernels compiled from a submission are kept from one run to the next, on a GPU.

A student runs the same stage many times, and compiling for its many cases takes seconds.  The
folder's name is the hash of the file: a submission only ever finds what the very same bytes
compiled before, never what another file left.  What a grading uses stays until its process ends,
however many others run beside it: it holds a lock on the folder.
"""

import fcntl
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from grader.host.accounts import ids_for_worker

KEPT = 64  # files remembered; one takes a few MiB
REPLAYED_KEPT = 4096  # compiled variants remembered for replaying workers; one takes some 100 KiB
_held: dict[Path, int] = {}  # the open folders that this process holds a lock on


def folder_for(source: bytes, user: tuple[int, int] | None = None) -> Path | None:
    """The folder for this file's kernels, made if need be; None where none can be written.

    user: (uid, gid) of another account that is to write there; its folders stand where that
    account can reach them, and belong to it one by one, so that it cannot make more.  Where each
    worker has a uid of its own, those with the same folder share a group, which the folder has.
    """
    return _folder(hashlib.sha256(source).hexdigest(), user)


def knows(source: bytes, user: tuple[int, int] | None = None) -> bool:
    """Whether something was compiled from this file before."""
    folder = folder_for(source, user)
    return folder is not None and any(folder.iterdir())


def replaying_folder(user: tuple[int, int] | None = None) -> Path | None:
    """The folder for what replaying workers compile, whichever file it came from: no submission can
    write there, where the kernel confines it."""
    return _folder("clean", user, REPLAYED_KEPT)


def _folder(name: str, user: tuple[int, int] | None, kept_in_it: int | None = None) -> Path | None:
    try:
        base = _base() if user is None else _shared_base()
        folder = base / name
        folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            uid, gid = ids_for_worker(user, name)
            shared = (uid, gid) != user
            os.chown(folder, 0 if shared else uid, gid)
            os.chmod(folder, 0o2770 if shared else 0o700)
        os.utime(folder)  # used now: the last to be forgotten
        if _hold(folder) and kept_in_it is not None:
            _forget(folder, kept_in_it)
        _forget(base, KEPT)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return folder if os.access(folder, os.W_OK) else None


def _hold(folder: Path) -> bool:
    """Have it stay while this process lives.  -> whether nobody held it before.

    Never waits: the file that is graded might hold it for good.
    """
    if folder in _held:
        return False
    _held[folder] = opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:
        alone = False
    with suppress(OSError):  # a file system without locks
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return alone


def _forget(base: Path, kept: int) -> None:
    """Remove the folders in base that were not written to for longest and that nobody holds."""
    try:
        folders = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # another grading removes them too
        return
    for old in folders[kept:]:
        with suppress(OSError):
            opened = os.open(old, os.O_RDONLY)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(opened)


def _base() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "flash-attention-course"


def _shared_base() -> Path:
    base = Path("/var/tmp") / f"flash-attention-course-{os.geteuid()}-shared"
    base.mkdir(mode=0o711, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.geteuid():
        raise OSError("somebody else's folder stands in its place")
    return base
