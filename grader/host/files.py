"""Replaces a user's files in one step, and keeps copies of them."""

import itertools
import os
import stat
import tempfile
from pathlib import Path


def replace(path: Path, contents: bytes, mode: int | None = None) -> None:
    """Write the file so that neither a reader nor a Ctrl-C can leave half of it.

    mode: its permissions; None keeps them.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        # mkstemp makes private files.
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if mode is None else mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)  # missing if it was just replaced
        raise


def write(path: Path, contents: bytes) -> None:
    """Write to a path that the user named: follow links, and write to devices and pipes without
    replacing them."""
    if is_stream(path):
        with open(path, "wb") as file:
            file.write(contents)
    else:
        replace(Path(os.path.realpath(path)), contents, 0o644)


def is_stream(path: Path) -> bool:
    """Whether it is a device or a pipe, which must not be replaced.

    Raises:
        OSError: it cannot be looked at, for example because links form a circle.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def keep(path: Path, copy: Path) -> Path:
    """Copy path to copy or, if that exists, to copy.2, copy.3 ...; -> the copy's path."""
    names = itertools.chain([copy.name], (f"{copy.name}.{i}" for i in itertools.count(2)))
    copy = next(copy.with_name(name) for name in names if not copy.with_name(name).exists())
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
    return copy
