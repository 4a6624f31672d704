"""Keeps the records of a class in RESULTS, and locks on what is being graded.

The record of a unit, one file of one stage, is graded/3-SHA256-SETTINGS.json.  While a process
grades it, it holds a lock on one byte of the file .lock, which the system frees when the process
ends in any way, also on another host that shares the folder."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.assignment.record import ROOT, sha256
from grader.course.stages import STAGES
from grader.host import files

FORMAT = 2  # version of a record
WRITTEN = ".written"  # the sha256 and the name of everything that was written for people
HERE = {ROOT, *map(Path, (sys.prefix, sys.base_prefix, tempfile.gettempdir()))}


@dataclass(frozen=True)
class Settings:
    """What may change a verdict."""

    grader: str
    device: str  # "cuda" or "cpu"
    timeout: float  # in seconds
    stage_timeout: float
    class_seed: int | None = None  # for all inputs; None: a fresh one per run
    cases: str = ""  # hash of the instructor's own
    assignment: str = "original"  # one of ASSIGNMENTS

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]


@dataclass(frozen=True, order=True)
class Unit:
    stage: int
    sha256: str


def check_ours(folder: Path, names: Iterable[str]) -> None:
    """Raises ValueError: one of these files, named from RESULTS, is not there as a command of ours
    wrote it."""
    log = folder / WRITTEN
    known = set(log.read_text("utf-8").splitlines()) if log.is_file() else set()
    has_no_log = not log.is_file() and (folder / "class.toml").is_file()  # of an older version
    for name in names:
        path = Path(os.path.normpath(folder / name))
        if path.is_file() and (not has_no_log or name.startswith("..")) \
                and f"{sha256(path.read_bytes())} {name}" not in known:
            raise ValueError(f"want a new file, or one as this command wrote it; got {path}, "
                             "which it did not write, or was changed since: move it somewhere else")


def note(folder: Path, name: str, contents: bytes) -> None:
    """Note that this file, named from RESULTS, is ours."""
    with open(folder / WRITTEN, "a", encoding="utf-8") as log:
        log.write(f"{sha256(contents)} {name}\n")


def put(folder: Path, made: dict[Path, bytes], mode: int = 0o600) -> None:
    """Write files made of RESULTS, each in one step, wherever they lie.  Raises ValueError: as
    check_ours(), and nothing is written; or a file cannot be written."""
    names = {path: os.path.relpath(path, folder) for path in made}
    check_ours(folder, names.values())
    for path, contents in made.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()  # nothing is noted if this fails
            note(folder, names[path], contents)  # first, as in Store.write()
            files.replace(path, contents, mode)
        except OSError as error:
            raise ValueError(f"want a file that can be written; got {path}: {error.strerror}"
                             ) from None


def forget(folder: Path, names: set[str]) -> None:
    """Take these files from the list of what was written, named from RESULTS or, beside it, by
    their last part."""
    log = folder / WRITTEN
    if log.is_file():
        kept = (line for line in log.read_text("utf-8").splitlines(keepends=True)
                if not {line[65:-1], line.strip().rpartition("/")[2]} & names)
        log.write_text("".join(kept), "utf-8")


class Store:
    """`with Store(folder, settings) as store`.  working: this process's own folder, removed at the
    end.  Raises ValueError: the folder cannot be written to, or its file system has no locks."""

    def __init__(self, folder: Path, settings: Settings):
        self.folder, self.settings = folder, settings
        self.graded = folder / "graded"
        host = socket.gethostname()
        self.host_lock = f"alone on {host}"  # shared by gradings side by side, exclusive for one
        name = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self.working = folder / ".working" / name
        try:
            # No account that files run as may read it.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for below in (self.graded, self.working.parent):
                below.mkdir(exist_ok=True)
            self.locks = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            self.lock(name)
            self._sweep()
            self.working.mkdir()
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise ValueError(f"--out: want a file system that knows locks; got {folder}"
                                 ) from None
            raise ValueError(f"--out: want a folder that can be written to; got {folder}: "
                             f"{error.strerror}") from None
        self.known: dict[Unit, dict] = {}  # the records read last

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *error) -> None:
        shutil.rmtree(self.working, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.working.parent.rmdir()  # fails if another process has one
        os.close(self.locks)

    def _sweep(self) -> None:
        """Remove what killed processes left."""
        for old in self.working.parent.iterdir():
            if self.lock(old.name):
                shutil.rmtree(old, ignore_errors=True)
                self.unlock(old.name)

    def lock(self, name: str, shared: bool = False) -> bool:
        """Try to take a lock, without waiting.  -> whether this process has it now."""
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.lockf(self.locks, kind | fcntl.LOCK_NB, 1, _place(name))
        except (PermissionError, BlockingIOError):  # EACCES or EAGAIN: another process has it
            return False
        return True

    def unlock(self, name: str) -> None:
        fcntl.lockf(self.locks, fcntl.LOCK_UN, 1, _place(name))

    def name(self, unit: Unit) -> str:
        return f"{unit.stage}-{unit.sha256}-{self.settings.key}.json"

    def read(self, unit: Unit) -> None:
        """Read the record of a unit, if there is one."""
        try:
            record = json.loads((self.graded / self.name(unit)).read_bytes())
            if record["format"] == FORMAT and record["stage"]["stage"] == unit.stage:
                self.known[unit] = record
        except (OSError, ValueError, KeyError, TypeError):  # a damaged record counts as missing
            self.known.pop(unit, None)

    def put(self, unit: Unit, record: dict) -> None:
        """Keep a record, without this machine's folders, because everyone with that file reads
        it."""
        text = json.dumps({"format": FORMAT, "settings": asdict(self.settings), **record}, indent=1,
                          ensure_ascii=False)
        ours = {*HERE, self.folder.resolve(), self.working.resolve()}
        for place in sorted(map(str, ours), key=len, reverse=True):
            text = text.replace(json.dumps(f"{place}/", ensure_ascii=False)[1:-1], "")
        self.write(self.graded / self.name(unit), text.encode())
        self.known[unit] = json.loads(text)

    def keep(self, folder: Path, files: dict[int, bytes]) -> Path:
        """Make a folder hold just these problem files.  -> the folder."""
        for number in STAGES:
            path = folder / f"problem_{number}.py"
            if number in files:
                self.write(path, files[number])
            else:
                path.unlink(missing_ok=True)
        return folder

    def write(self, path: Path, contents: bytes) -> None:
        """Replace a file of this folder in one step, unless it has these contents already."""
        if path.is_file() and path.read_bytes() == contents:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_relative_to(self.working) and path.parent != self.graded:
            # First, so that a kill in between leaves no file that nobody knows.
            note(self.folder, path.relative_to(self.folder).as_posix(), contents)
        temporary = self.working / f"{secrets.token_hex(8)}.new"
        try:
            temporary.write_bytes(contents)
            os.replace(temporary, path)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(path)) from None
            raise


def _place(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
