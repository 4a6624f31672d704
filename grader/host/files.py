"""Files of the user's: replaced in one step, and kept before they are changed."""

import itertools
import os
import stat
import tempfile
from pathlib import Path


def replace(path: Path, contents: bytes, mode: int | None = None) -> None:
    """Write the file so that a reader or a Ctrl-C never meets half of it.

    mode: its rights; None for those that it has.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        # mkstemp made it private.
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if mode is None else mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)  # a Ctrl-C may come just after the replacement
        raise


def write(path: Path, contents: bytes) -> None:
    """The same where the user said: what a link leads to is replaced, and a device or a pipe
    written to."""
    if is_stream(path):
        with open(path, "wb") as file:
            file.write(contents)
    else:
        replace(Path(os.path.realpath(path)), contents, 0o644)


def is_stream(path: Path) -> bool:
    """Whether it is a device or a pipe, which nobody may replace.

    Raises:
        OSError: links that lead nowhere but to each other, say.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def keep(path: Path, copy: Path) -> Path:
    """Copy path to copy, or to copy.2, copy.3 ... if that is taken; -> where it is now."""
    names = itertools.chain([copy.name], (f"{copy.name}.{i}" for i in itertools.count(2)))
    copy = next(copy.with_name(name) for name in names if not copy.with_name(name).exists())
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
    return copy
