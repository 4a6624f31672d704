"""Keeps the kernels compiled from a submission for the next run, on a GPU.

Students run a stage many times, and compiling for its many cases takes seconds.  A folder is named
after the file's hash, so that a submission only finds what the very same bytes compiled before.  A
grading locks its folder, which is then kept until its process ends.
"""

import fcntl
import functools
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from grader.host.accounts import ids_for_worker

KEPT = 64  # folders of files kept; one takes a few MiB
REPLAYED_KEPT = 4096  # variants kept for replaying workers, about 100 KiB each
CHECKED_KEPT = 300  # variants of a problem that are known to compile
SANDBOX = Path(__file__).parents[1] / "sandbox" / "kernels"
_held: dict[Path, int] = {}  # the open folders that this process has locked


def folder_for(source: bytes, user: tuple[int, int] | None = None) -> Path | None:
    """The folder for this file's kernels, made if necessary; None if it cannot be written.

    user: (uid, gid) of another account that will write there.  The folders are then where that
    account can reach them, and each belongs to it, but not the folder around them, so that it
    cannot make more.  If each worker has its own uid, those of one folder share the folder's group.
    """
    return _folder(hashlib.sha256(source).hexdigest(), user)


def knows(source: bytes, user: tuple[int, int] | None = None) -> bool:
    """Whether something was compiled from this file before."""
    folder = folder_for(source, user)
    return folder is not None and any(folder.iterdir())


def replaying_folder(user: tuple[int, int] | None = None) -> Path | None:
    """The folder for what replaying workers compile, from whatever file.  No submission that
    Landlock confines can write there."""
    return _folder("clean", user, REPLAYED_KEPT)


def checked(filename: str) -> dict[str, int]:
    """The variants of this problem's kernels that compiled without a GPU, as kept by keep_checked.

    Another version of the grader's own compiling knows none of them."""
    folder = _folder("checked", None)
    try:
        found = json.loads((folder / f"{filename}.json").read_text("utf-8"))
        return found["variants"] if found["by"] == _compiling() else {}
    except (TypeError, OSError, ValueError, LookupError):  # TypeError: there is no folder
        return {}


def keep_checked(filename: str, variants: dict[str, int]) -> None:
    """Keep variants that compiled without a warning: Triton's hash -> bytes of shared memory."""
    folder, known = _folder("checked", None), checked(filename)
    if folder is None or not variants.keys() - known.keys():
        return
    older = {variant: known[variant] for variant in known if variant not in variants}
    newest = dict([*(older | variants).items()][-CHECKED_KEPT:])
    text = json.dumps({"by": _compiling(), "variants": newest})
    with suppress(OSError):
        new = folder / f"{filename}.{os.getpid()}"
        new.write_text(text, "utf-8")
        new.replace(folder / f"{filename}.json")


@functools.cache
def _compiling() -> str:
    """The hash of the files that decide what compiles."""
    files = sorted(SANDBOX.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _folder(name: str, user: tuple[int, int] | None, kept_in_it: int | None = None) -> Path | None:
    try:
        base = _shared_base() if user is not None else Path(
            os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flash-attention-course"
        folder = base / name
        folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            uid, gid = ids_for_worker(user, name)
            shared = (uid, gid) != user
            os.chown(folder, 0 if shared else uid, gid)
            os.chmod(folder, 0o2770 if shared else 0o700)
        os.utime(folder)  # used now, so it is removed last
        if _hold(folder) and kept_in_it is not None:
            _forget(folder, kept_in_it)
        _forget(base, KEPT)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return folder if os.access(folder, os.W_OK) else None


def _hold(folder: Path) -> bool:
    """Keep the folder while this process lives.  -> whether no one else held it.

    Never waits, because the graded file might hold it for ever.
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
    """Remove the folders in base that are not locked, those used longest ago first."""
    try:
        folders = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # another grading may be removing them, too
        return
    for old in folders[kept:]:
        with suppress(OSError):
            opened = os.open(old, os.O_RDONLY)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(opened)


def _shared_base() -> Path:
    base = Path("/var/tmp") / f"flash-attention-course-{os.geteuid()}-shared"
    base.mkdir(mode=0o711, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.geteuid():
        raise OSError("somebody else's folder stands in its place")
    return base
