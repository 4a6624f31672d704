"""Reads what students handed in: a folder or a zip each, or an index that names them.

Only files named problem_1.py ... problem_9.py are taken, as bytes; nothing is unpacked, followed or
run.  What is not taken has a reason in words.
"""

import csv
import errno
import lzma
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from grader.submission import MAX_BYTES
from grader.submit import REPORT
from grader.text import escape

PROBLEM = re.compile(r"problem_([1-9])\.py")
DEPTH = 3  # folders below a student's own in which the files may lie
MOST_ENTRIES = 20_000  # of a folder or an archive
MOST_UNPACKED = 16 << 20  # bytes of one problem file in an archive; one has some 20 thousand
MOST_REPORTED = 8 << 20  # bytes of a student's own report; one has some 200 thousand
NOT_LOOKED_INTO = {"__MACOSX", "__pycache__", "node_modules", "site-packages", "grader"}
UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error,
              lzma.LZMAError, struct.error)  # what zipfile raises on damaged or encrypted archives


Found = tuple[dict[int, bytes], dict[int, str], bytes]


class Refused(Exception):
    """Why a submission, or a file of it, is not taken."""


@dataclass(frozen=True)
class Submitted:
    """What one student handed in.  files: stage -> bytes, at most MAX_BYTES + 1 of them."""

    name: str  # fit to be shown
    key: str  # fit to be a file's name, another one for every name
    files: dict[int, bytes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # stage -> why that file is not taken
    report: bytes = b""  # the submission.json beside them; not trusted
    trouble: str = ""  # why nothing is taken


def gather(submissions: Path) -> tuple[list[Submitted], list[str]]:
    """Everything in a folder, or in the index with the columns name and path.

    -> the students by name, and what in the folder is no submission.

    Raises:
        ValueError: it is neither, or nobody's submission is in it.
    """
    ignored: list[str] = []
    if submissions.is_dir():
        places = list(_in_folder(submissions, ignored))
    elif submissions.is_file() and submissions.suffix.lower() == ".csv":
        places = list(_in_index(submissions))
    else:
        raise ValueError("SUBMISSIONS: want a folder with a folder or a .zip a student, or a .csv "
                         f"with the columns name and path; got {submissions}")
    if not places:
        raise ValueError(f"SUBMISSIONS: want a folder or a .zip a student; got none in "
                         f"{submissions}")
    by_name: dict[str, list[Path]] = {}
    for name, place in places:
        by_name.setdefault(name, []).append(place)
    return [_submitted(name, paths) for name, paths in sorted(by_name.items())], ignored


def _in_folder(folder: Path, ignored: list[str]) -> Iterator[tuple[str, Path]]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name in NOT_LOOKED_INTO:
            continue
        if PROBLEM.fullmatch(entry.name):
            raise ValueError("SUBMISSIONS: want a folder a student in it; got a problem file: "
                             f"{entry}")
        if entry.is_dir() or entry.is_symlink():
            yield entry.name, entry
        elif entry.suffix.lower() == ".zip":
            yield entry.stem, entry
        else:
            ignored.append(escape(entry.name))


def _in_index(index: Path) -> Iterator[tuple[str, Path]]:
    try:
        with index.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if not {"name", "path"} <= set(rows.fieldnames or ()):
                raise ValueError(f"{index}: want the columns name and path; got "
                                 f"{', '.join(rows.fieldnames or ['nothing'])}")
            for row in rows:
                if (row["name"] or "").strip():
                    yield row["name"].strip(), index.parent / (row["path"] or "").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{index}: want a table in UTF-8; got {error.reason}") from None
    except csv.Error as error:
        raise ValueError(f"{index}: want a table of comma-separated values; got: {error}") from None


def _submitted(name: str, paths: list[Path]) -> Submitted:
    shown, key = escape(name), file_name(name)
    try:
        if name in (".", "..") or "/" in name or "\0" in name:
            raise Refused("its name is a path")
        if len(paths) > 1:
            raise Refused("it is there more than once: "
                          + ", ".join(escape(path.name) for path in paths))
        path = paths[0]
        if path.is_symlink():
            raise Refused("it is a link")
        if path.is_dir():
            found = read_folder(path)
        elif path.is_file():
            found = read_zip(path)
        else:
            raise Refused(f"there is no {escape(str(path))}")
        files, refused, report = found
        if not files and not refused:
            raise Refused("no problem_1.py ... problem_9.py is in it")
    except Refused as error:
        return Submitted(shown, key, trouble=str(error))
    except OSError as error:
        return Submitted(shown, key, trouble=f"cannot read it: {error.strerror}")
    return Submitted(shown, key, files, refused, report)


def file_name(name: str) -> str:
    """A name that stays in its folder, whatever it is made of: what is odd in it becomes %XX."""
    kept = "".join(char if char.isalnum() or char in " -_.,@+=()" else
                   quote(char, safe="", errors="surrogateescape") for char in name)
    if kept.startswith("."):
        kept = "%2E" + kept[1:]
    if len(kept.encode()) > 180:
        digest = zlib.crc32(name.encode(errors="surrogateescape"))
        kept = kept.encode()[:160].decode(errors="ignore") + f"~{digest:08x}"
    return kept


# ------------------------------------------------------------------------- folders
def read_folder(folder: Path) -> Found:
    """Its problem files, from the highest folder that has any; else those of the one archive in it.

    -> stage -> bytes, stage -> why that file is not taken, the report beside them or b"".

    Raises:
        Refused: what is in it is ambiguous.
        OSError: it cannot be read.
    """
    found: dict[Path, dict[int, Path]] = {}
    archives, entries = [], 0

    def fail(error):
        raise error

    for place, folders, names in os.walk(folder, onerror=fail):
        depth = len(Path(place).relative_to(folder).parts)
        entries += len(folders) + len(names)
        if entries > MOST_ENTRIES:
            raise Refused(f"more than {MOST_ENTRIES} files are in it")
        for name in [*names, *folders]:
            if match := PROBLEM.fullmatch(name):
                found.setdefault(Path(place), {})[int(match[1])] = Path(place, name)
        archives += [Path(place, name) for name in names if name.lower().endswith(".zip")]
        folders[:] = [name for name in folders if depth < DEPTH and not name.startswith(".")
                      and name not in NOT_LOOKED_INTO and not PROBLEM.fullmatch(name)]
    if found:
        place = _highest({path: len(path.parts) for path in found}, folder)
        with suppress(Refused):
            return *_each(found[place], read_file), read_file(place / REPORT, MOST_REPORTED)
        return *_each(found[place], read_file), b""
    if len(archives) > 1:
        raise Refused("several archives are in it, want one: "
                      + ", ".join(escape(path.name) for path in archives[:3]))
    if archives:
        if archives[0].is_symlink():
            raise Refused(f"{escape(archives[0].name)} is a link")
        return read_zip(archives[0])
    return {}, {}, b""


def _highest(depths: dict, top):
    """The one place with the fewest folders above it."""
    least = min(depths.values())
    highest = [place for place, depth in depths.items() if depth == least]
    if len(highest) > 1:
        names = ", ".join(escape(str(place.relative_to(top))) for place in sorted(highest)[:3])
        raise Refused(f"problem files are in several of its folders: {names}")
    return highest[0]


def _each(chosen: dict[int, object], read) -> tuple[dict[int, bytes], dict[int, str]]:
    files, refused = {}, {}
    for stage, place in sorted(chosen.items()):
        try:
            files[stage] = read(place)
        except Refused as error:
            refused[stage] = str(error)
    return files, refused


def read_file(path: Path, most: int = MAX_BYTES + 1) -> bytes:
    """The first bytes of a regular file; a problem file that has more the grader will refuse.

    Raises:
        Refused: it is a link, a device, a folder, or cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else f"cannot read it: {error.strerror}"
        raise Refused(why) from None
    with open(handle, "rb") if stat.S_ISREG(os.fstat(handle).st_mode) else _closed(handle) as file:
        try:
            return file.read(most)
        except OSError as error:
            raise Refused(f"cannot read it: {error.strerror}") from None


def _closed(handle: int):
    os.close(handle)
    raise Refused("it is not a regular file")


# ------------------------------------------------------------------------ archives
def read_zip(path: Path) -> Found:
    """As read_folder; of the members nothing is unpacked but the problem files, into memory.

    Raises:
        Refused: it is no zip, climbs out of its folder, or is ambiguous.
    """
    found: dict[PurePosixPath, dict[int, list[zipfile.ZipInfo]]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MOST_ENTRIES:
                raise Refused(f"the archive holds more than {MOST_ENTRIES} files")
            for member in members:
                place = PurePosixPath(member.filename.replace("\\", "/"))
                if place.is_absolute() or ".." in place.parts or ":" in place.parts[:1]:
                    raise Refused("the archive climbs out of its folder: "
                                  f"{escape(member.filename)}")
                if (match := PROBLEM.fullmatch(place.name)) and len(place.parts) <= DEPTH + 1 \
                        and not NOT_LOOKED_INTO & set(place.parts):
                    found.setdefault(place.parent, {}).setdefault(int(match[1]), []).append(member)
            if not found:
                return {}, {}, b""
            depths = {place: len(place.parts) for place in found}
            place = _highest(depths, PurePosixPath())
            beside = [member for member in members if member.filename == str(place / REPORT)]
            report = b""
            with suppress(Refused):
                report = _read_member(archive, beside, MOST_REPORTED) if beside else b""
            return *_each(found[place], lambda twins: _read_member(archive, twins)), report
    except UNREADABLE as error:
        raise Refused(f"cannot read the archive: {escape(str(error)) or type(error).__name__}"
                      ) from None


def _read_member(archive: zipfile.ZipFile, twins: list[zipfile.ZipInfo],
                 most: int = MAX_BYTES + 1) -> bytes:
    member = twins[0]
    kind = stat.S_IFMT(member.external_attr >> 16)
    if len(twins) > 1:
        raise Refused("it is in the archive twice")
    if kind == stat.S_IFLNK:
        raise Refused("it is a link")
    if kind not in (0, stat.S_IFREG) or member.is_dir():
        raise Refused("it is not a regular file")
    if member.file_size > MOST_UNPACKED:
        raise Refused(f"it would unpack to {member.file_size >> 20} MiB; want at most "
                      f"{MAX_BYTES >> 10} KiB")
    try:
        with archive.open(member) as file:
            return file.read(most)
    except UNREADABLE as error:
        raise Refused(f"cannot unpack it: {escape(str(error)) or type(error).__name__}") from None
