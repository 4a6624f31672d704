"""Reads what students handed in as bytes: no archive is unpacked to the disk, no link followed,
nothing run.  Whatever is not accepted gets a reason, and everyone a row."""

import ast
import errno
import gzip
import io
import json
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial, reduce
from itertools import islice, repeat
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

from classroom import late, notebooks, roster
from grader.assignment import submission
from grader.assignment.record import sha256
from grader.assignment.submission import MAX_BYTES
from grader.course.stages import STAGES
from grader.report.submit import REPORT
from grader.text import decode, escape, syntax_tree

PROBLEM = re.compile(rf"problem_({'|'.join(map(str, STAGES))})\.py")
NEARLY = re.compile(rf".*problem[\W_]*0*({'|'.join(map(str, STAGES))})(?!\d).*",
                    re.IGNORECASE | re.DOTALL)
CODE = (".py", ".ipynb")
GIVEN = re.compile(  # files of the assignment and the like, in which no one writes an answer
    r"(autograder(_optional)?|reference|warmups|exercises|__init__)\.py|.*\.pyc|"
    r"(readme|licen[cs]e|agents)(\.\w+)?|(exercises|submission)\.json|"
    r"(requirements|timestamp)\.txt|makefile|dockerfile|pyproject\.toml|uv\.lock|"
    r".*\.code-workspace", re.IGNORECASE)
ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
PACKED = (*ARCHIVES, ".rar", ".7z", ".gz", ".bz2", ".xz", ".zst")  # the others are not opened
# Ben Braun_4712_assignsubmission_file/... or ..._file_problem_2.py; an older one ends in _.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?P<kind>[a-z]+)_?(?P<file>.*)")
TEAM = re.compile(r"[^-]*\d[^-]*-")  # Team 7-Ben Braun
# andersonanna_LATE_101_55101_problem_1.py; text typed in: ..._101_text.html; where names are hidden
# anon_x2k9q_55101_problem_1.py.
CANVAS = re.compile(r"(?P<name>(?P<hidden>anon_)[^_]+|.+?)_(?P<late>LATE_)?(?(hidden)|(?P<id>\d+)_)"
                    r"(?:\d+_(?P<file>.+)|(?P<kind>text|link)\.html)")
AGAIN = re.compile(r"-\d+(?=\.\w+$)")  # Canvas adds it to a file handed in again
SYSTEMS = ("canvas", "moodle")  # whose numbers are in the names of their downloads
NOT_LISTED = "not on the roster"
GRADESCOPE = "submission_metadata.yml"  # in its export: owners and times of submission_4712/ ...
FORMATS = {b"{\\rtf": "RTF", b"<!doctype html": "an HTML page", b"<html": "an HTML page",
           b"%pdf": "a PDF"}  # how a file begins that was saved under the name of a problem
TIMESTAMP = "timestamp.txt"  # nbgrader's, with the time of the hand-in
NESTED = 2  # levels of archives in an archive
MOST_ARCHIVES = 8  # of one student, beside or in each other
MOST_CODE = 100  # files of one student that are looked into, and copies of one file
MOST_ENTRIES = 20_000  # in a folder or an archive
MOST_NOTEBOOK = 16 << 20  # bytes
MOST_ARCHIVE = 64 << 20  # bytes of an archive in an archive, and of an unpacked .tar.gz
MOST_HANDED_IN = 256 << 20  # bytes of an archive that is all that a student handed in
MOST_REPORTED = 8 << 20  # bytes of a document, and of a student's own report: usually 200 kB
MOST_KEPT = 8 << 20  # bytes of a student of whom something is refused
NOT_KEPT = "not kept.txt"  # a list of what is more
LITTER = {"__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"}  # of systems, handed in by no one
INSTALLED = {"node_modules", "site-packages", ".git"}  # not looked into
NOT_TAKEN = {*LITTER, *INSTALLED, "__pycache__", "grader"}  # nor is a hidden file
NOT_THEIRS = {"site", "venv", "env"}  # the guide, and what pip installed
UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, tarfile.TarError,
              zlib.error, lzma.LZMAError, struct.error)  # raised by damaged archives
ENCRYPTED = 1  # a flag in a zip
NOT_REGULAR = "it is not a regular file"


class Refused(Exception):
    """Why a submission, or a file of it, is not accepted."""


@dataclass(frozen=True)
class Submitted:
    """What one student handed in; nothing, if there are neither files nor reasons.  files: stage ->
    bytes, at most MAX_BYTES of them."""

    name: str  # safe to show
    key: str  # unique, and safe as a file name
    files: dict[int, bytes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # stage -> why that file is not accepted
    report: bytes = b""  # the submission.json handed in; not trusted
    trouble: str = ""  # why nothing is accepted
    notes: tuple[str, ...] = ()  # more for a person to look at
    aside: tuple[str, ...] = ()  # what became of all else that was handed in, for the student
    person: roster.Person = roster.Person()  # from the roster
    returns: str = ""  # the file name under which the learning system returns feedback
    time: datetime | None = None  # when it was handed in
    marked_late: bool = False  # by the learning system
    hand_ins: tuple["Submitted", ...] = ()  # by time, if there are several
    kept: dict[str, bytes] = field(default_factory=dict)  # all of it, if any of it is refused
    refusal: str = ""  # then, a hash of all of it
    may_own: tuple[str, ...] = ()  # if they handed in nothing: hand-ins that match no student
    mate: str = ""  # who handed it in, for the whole team

    @property
    def is_nothing(self) -> bool:
        return not (self.files or self.refused or self.trouble)

    def is_blank(self, stages: Collection[int]) -> bool:
        """Whether nothing is written in the files of these stages, and none is refused."""
        theirs = self.files.keys() & {*stages}
        return bool(theirs) and not (self.trouble or self.refused.keys() & {*stages}) and all(
            _is_blank(number, self.files[number]) for number in theirs)

    @property
    def extension(self) -> datetime | None:
        """Until when this student may hand in, if that is later than for others."""
        return late.read(self.person.extension) or late.extension(self.person.status)

    @property
    def is_due(self) -> bool:
        """Whether the learning system says that something was handed in."""
        status = self.person.status.lower()  # Moodle's
        return status.startswith("submitted") or bool(self.person.handed_in.strip("- ")) \
            and not status.startswith("no submission")


class Member(NamedTuple):
    """A file of a submission.  read(most) -> at most so many bytes; may raise Refused."""

    path: PurePosixPath
    read: Callable[[int], bytes]


class Entry(NamedTuple):
    """What is directly in SUBMISSIONS.  members() -> the files of a folder, or the file itself; may
    raise Refused or OSError."""

    name: str
    is_folder: bool
    members: Callable[[], Iterable[Member]]


class Place(NamedTuple):
    """A folder, an archive, or a single file with the name that the student gave it.  returns,
    time, marked_late: as in Submitted."""

    entry: Entry
    file: str = ""
    returns: str = ""
    time: datetime | None = None
    marked_late: bool = False


class Asked(NamedTuple):
    """What is graded."""

    stages: Collection[int] = STAGES.keys()
    ignored: Collection[str] = ()  # patterns of the names of files in which no one writes an answer


def gather(submissions: Path, *listed: Path, options: Iterable[str] = repeat("roster"),
           say: Callable[[str], None] = lambda line: None, asked: Asked = Asked()  # noqa: B008
           ) -> list[Submitted]:
    """Everyone in a folder or an index (columns name and path), and in the tables listed: a roster,
    then gradebooks.  options: that gave them.  say() gets a line on what is left out.  -> the
    students by name.  Raises ValueError: it is neither, or empty, or a table is invalid."""
    tables = [roster.read(table, f"--{option}") for table, option in zip(
        listed, options, strict=False)]
    with ExitStack() as opened:
        if submissions.is_dir():
            places = _places(_on_disk(submissions, listed), _stamps(submissions, listed, asked))
        elif submissions.is_file() and submissions.suffix.lower() == ".zip":
            places = _places(_in_download(submissions, opened), {})
        elif submissions.is_file() and submissions.suffix.lower() == ".csv":
            places = _in_index(submissions)
        else:
            raise ValueError("SUBMISSIONS: want a folder with a folder or an archive per student, "
                             "the .zip that a learning system made of one, or a .csv with the "
                             f"columns name and path; got {submissions}")
        return _students(list(places), tables, submissions, say, asked)


def _students(places: list[tuple[roster.Person, "Place | None"]],
              tables: list[list[roster.Person]], submissions: Path,
              say: Callable[[str], None], asked: Asked) -> list[Submitted]:
    people = reduce(roster.joined, tables) if tables else []
    found: dict[roster.Person, list[Place]] = {}
    for given, place in places:
        found.setdefault(given, []).extend([place] if place else [])
    differ = roster.differing(found, people, *SYSTEMS)
    for given in [*found]:
        if (given.name, given.system) == ("studenttest", "canvas") \
                and not roster.match(given, people, differ):
            say(f"not graded, as they are of Canvas's Test Student ({given.id}): "
                + ", ".join(escape(place.entry.name) for place in found.pop(given)))
    if not found:
        raise ValueError("SUBMISSIONS: want a folder or an archive per student; got none in "
                         f"{submissions}")
    students: dict[roster.Person, list[list[Place]]] = {person: [] for person in people}
    notes: dict[roster.Person, str] = {}
    doubtful: set[roster.Person] = set()  # a submission may be theirs or someone else's
    strays: list[roster.Person] = []  # who match no student
    for given, theirs in found.items():
        may_be = roster.match(given, people, differ)
        person = may_be[0] if len(may_be) == 1 else given
        students.setdefault(person, []).append(theirs)
        if people and len(may_be) != 1:
            namesakes = may_be or roster.match(given, people)
            notes[person] = ("of several on the roster: " if may_be else NOT_LISTED + (
                ", where the number, login or address is another one: " * bool(namesakes))) \
                + ", ".join(escape(each.shown) for each in namesakes)
            doubtful.update(may_be)
            strays += [person] * (not may_be)
    count = Counter(person.shown for person in students)
    made = []
    for person, groups in students.items():
        also = next(filter(None, (person.id, person.login, person.email)), "")
        name = person.shown + f" ({also})" * (count[person.shown] > 1 and bool(also))
        student = _submitted(name, person, groups, notes.get(person, ""), asked)
        made.append(student if any(groups) else replace(
            student, trouble="it is not known whose it is" * (person in doubtful),
            may_own=tuple(escape(stray.shown) for stray in strays if not differ(stray, person))))
    return sorted(made, key=lambda student: (student.name.casefold(), student.key))


def one(folder: Path, asked: Asked) -> Submitted:
    """The submission in a folder, of a student whose name is not known."""
    return _submitted("submission", roster.Person(), [[Place(_entry(folder))]], "", asked)


def _entry(path: Path) -> Entry:
    return Entry(path.name, path.is_dir(), partial(_files, path))


def _may_be_taken(*names: str) -> bool:
    return not any(name.startswith(".") or name in NOT_TAKEN for name in names)


def _on_disk(folder: Path, listed: tuple[Path, ...]) -> dict[str, Entry]:
    """What is in a folder, without those tables."""
    tables = {table.resolve() for table in listed}
    return {path.name: _entry(path) for path in sorted(folder.iterdir())
            if _may_be_taken(path.name) and path.resolve() not in tables}


def _in_download(download: Path, opened: ExitStack) -> dict[str, Entry]:
    """What is in a learning system's zip of a class, which is read where it is: what one student
    handed in cannot stop the others.  Raises ValueError: it is no such zip."""
    found: dict[str, list[Member]] = {}
    try:
        members = _unpacked(download.name, opened.enter_context(_open(download)), opened)
    except (Refused, OSError) as error:
        raise ValueError(f"SUBMISSIONS: want a .zip that can be unpacked; got {download}: {error}"
                         ) from None
    export = next((member.path.parent for member in members if len(member.path.parts) == 2
                   and member.path.name == GRADESCOPE), PurePosixPath())
    folders = set()
    for path, read in members:
        inside = path.relative_to(export) if path.is_relative_to(export) else path
        top, *below = inside.parts
        folders.update([top] * bool(below))
        found.setdefault(top, []).append(Member(PurePosixPath(*below or [top]), read))
    return {name: Entry(name, name in folders, partial(iter, theirs))
            for name, theirs in sorted(found.items()) if _may_be_taken(name)}


def _stamps(folder: Path, listed: tuple[Path, ...], asked: Asked) -> dict[str, datetime]:
    """Student's folder -> the time in nbgrader's timestamp.txt, which is beside the files, or in
    the folder of one assignment.  Anyone may hand in a file of that name, so it counts only if
    every student has one in that place, or has nothing but folders of other assignments."""
    folders = [folder / name for name in _on_disk(folder, listed)]
    if not folders or not all(path.is_dir() and not MOODLE.fullmatch(path.name)
                              for path in folders):
        return {}
    inside = {path: {each.name for each in path.iterdir() if _may_be_taken(each.name)}
              for path in folders}
    stamped = {below for path in folders for below in ("", *inside[path])
               if (path / below / TIMESTAMP).is_file()}
    places = [below for below in stamped if len(stamped) == 1 or any(
        (named := NEARLY.fullmatch(each.name)) and int(named[1]) in asked.stages
        for path in folders if (path / below).is_dir() for each in (path / below).iterdir())]
    if len(places) != 1:
        return {}
    with suppress(Refused):
        return {path.name: late.read(_read(path / places[0] / TIMESTAMP, 100).decode(
            errors="replace")) for path in folders
                if places[0] in inside[path] or not inside[path] <= stamped}
    return {}


def _places(entries: dict[str, Entry], stamps: dict[str, datetime]
            ) -> Iterator[tuple[roster.Person, Place]]:
    """-> who it is by the names in the download, and what."""
    exported = _of_gradescope(entries.pop(GRADESCOPE, None))
    for name, entry in entries.items():
        if PROBLEM.fullmatch(name):
            raise ValueError("SUBMISSIONS: want a folder per student in it; got a problem file: "
                             f"{name}")
        people, time = exported.get(name, ((), None))
        for person in people:
            yield person, Place(entry, time=time)
        if people:
            continue
        system = MOODLE.fullmatch(name) or not entry.is_folder and CANVAS.fullmatch(name)
        canvas = bool(system) and system.re is CANVAS
        if system:
            typed = system["kind"] if system["kind"] != "file" else ""  # a text or a link
            returns = name[:max(0, system.start("file"))] if canvas else \
                f"{system['name']}_{system['id']}_assignsubmission_file/"
            file = AGAIN.sub("", system["file"] or "") if canvas else system["file"]
            yield roster.Person(
                TEAM.sub("", system["name"], count=1), system["id"] or "",
                system=SYSTEMS[not canvas]), Place(
                    entry, typed or file, returns=returns,
                    marked_late=canvas and bool(system["late"]))
        else:
            stem = name if entry.is_folder else re.sub(r"(?<=.)(\.tar)?\.\w+$", "", name)
            yield roster.Person(stem), Place(entry, time=stamps.get(name))


def _of_gradescope(entry: Entry | None) -> dict[str, tuple[list[roster.Person], datetime | None]]:
    """Folder -> who handed it in, several for a group, and when; {} if there is no such file.
    Raises ValueError: the file is damaged."""
    if entry is None:
        return {}
    text = next(iter(entry.members())).read(MOST_ARCHIVE).decode(errors="replace")
    _, *blocks = re.split(r"^(\S+):$", text, flags=re.MULTILINE)
    found = {}
    for folder, block in zip(blocks[::2], blocks[1::2], strict=True):
        _, *submitters = re.split(r"^  - (?=:name:)", block, flags=re.MULTILINE)
        found[folder] = [roster.Person(
            _of_ruby(":name", each), _of_ruby("    :sid", each), email=_of_ruby("    :email", each))
            for each in submitters], late.read(_of_ruby("  :created_at", block))
    if not any(people for people, _ in found.values()):
        raise ValueError(f"SUBMISSIONS: want {GRADESCOPE} as Gradescope exports it; got no "
                         "submitters in it")
    return found


def _of_ruby(key: str, text: str) -> str:
    """The YAML string after a key at the start of a line, quoted or not; "" if there is none."""
    found = re.search(rf"^{key}: *(.*)$", text, re.MULTILINE)
    scalar = found[1] if found else ""
    if scalar.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(scalar))
    return scalar[1:-1].replace("''", "'") if scalar.startswith("'") else scalar


def _in_index(index: Path) -> Iterator[tuple[roster.Person, Place | None]]:
    _, rows = roster.table(index, "SUBMISSIONS", ("name", "path"), ("time",))
    for number, row in enumerate(rows, start=2):
        time = late.read(row.get("time", ""))
        if row.get("time") and time is None:
            raise ValueError("SUBMISSIONS: want a time such as 2026-11-30T23:59:00+01:00; got "
                             f"{row['time']} in row {number} of {index}")
        if row["name"]:
            yield roster.Person(row["name"]), Place(
                _entry(index.parent / row["path"]), time=time) if row["path"] else None


def _submitted(name: str, person: roster.Person, groups: list[list[Place]],
               note: str, asked: Asked) -> Submitted:
    places = [place for group in groups for place in group]
    times = [place.time for place in places]
    if len(groups) == 1 and len(places) > 1 and all(times):
        return _several(name, person, places, note, asked)
    student = Submitted(
        escape(name), file_name(name), notes=(note,) * bool(note), person=person,
        returns=next((escape(place.returns) for place in places if place.returns), ""),
        time=next(filter(None, times), late.read(person.handed_in)),
        marked_late=any(place.marked_late for place in places))
    try:
        if len(groups) > 1 or sum(not place.file for place in places) > 1:
            raise Refused("it is there more than once: "
                          + ", ".join(escape(place.entry.name) for place in places[:4]))
        with ExitStack() as opened:
            members = [member for place in places for member in _members(place, opened)]
            student = _taken(student, members, opened, asked)
    except (Refused, OSError) as error:
        student = replace(student, trouble=f"cannot read it: {error.strerror}" if isinstance(
            error, OSError) else str(error))
    if not (student.trouble or student.refused):
        return student
    kept = _kept(places)
    return replace(student, kept=kept, refusal=sha256(
        "".join(sorted(map(sha256, kept.values()))).encode()))


def _kept(places: list[Place]) -> dict[str, bytes]:
    """What was handed in, as it was: safe path -> bytes.  Of what is too much there is a list."""
    found, left, size = {}, "", 0
    for place in places:
        folder = [place.entry.name] * place.entry.is_folder
        name = file_name(place.entry.name)
        try:
            for path, read in sorted(islice(place.entry.members(), MOST_ENTRIES),
                                     key=lambda member: member.path):
                name = "/".join(map(file_name, (*folder, *path.parts)))
                try:
                    data = read(MOST_HANDED_IN)
                except Refused as error:
                    left += f"{name}: {error}\n"
                    continue
                if size + len(data) <= MOST_KEPT:
                    found[name], size = data, size + len(data)
                else:
                    left += f"{name}: the sha256 of its first {len(data)} bytes is {sha256(data)}\n"
        except (Refused, OSError) as error:
            left += f"{name}: {error}\n"
    return found | ({NOT_KEPT: left.encode()} if left else {})


def _several(name: str, person: roster.Person, places: list[Place], note: str, asked: Asked
             ) -> Submitted:
    """A student with several hand-ins: the last one, which also holds all of them by time."""
    places = sorted(places, key=lambda place: place.time.timestamp())
    made = [_submitted(name, person, [[place]], note, asked) for place in places]
    return replace(made[-1], hand_ins=numbered(made, made[-1].key))


def numbered(hand_ins: Iterable[Submitted], key: str, **more) -> tuple[Submitted, ...]:
    """The hand-ins of a student with this key, by time.  more: fields to replace."""
    return tuple(replace(each, key=f"{key}~{number}", **more)
                 for number, each in enumerate(hand_ins, start=1))


def file_name(name: str) -> str:
    """A name made safe as a file name: unusual characters become %XX."""
    kept = "".join(char if char.isalnum() or char in " -_.,@+=()" else
                   quote(char, safe="", errors="surrogateescape") for char in name)
    if kept.startswith("."):
        kept = "%2E" + kept[1:]
    if len(kept.encode()) > 180:
        digest = zlib.crc32(name.encode(errors="surrogateescape"))
        kept = kept.encode()[:160].decode(errors="ignore") + f"~{digest:08x}"
    return kept


def _taken(student: Submitted, members: list[Member], opened: ExitStack, asked: Asked
           ) -> Submitted:
    """The student with the problem files, wherever they are, if there is one candidate for each: a
    file of the right name, else one of nearly that name or with that problem's code in it.  Of
    several that differ none is chosen, nor what has the code of another problem, nor what is
    hidden, and none is missing or has nothing written in it if its code may be in another one.
    Raises Refused: nothing can be accepted."""
    given, (members, shut) = members, _opened(
        [member for member in members if not _is_ignored(member, asked)], opened)
    exact, near, others, hidden = defaultdict(list), defaultdict(list), [], []
    members = sorted((member for member in members if not (
        INSTALLED & {*member.path.parts} or _is_ignored(member, asked))), key=(
        lambda member: (_is_hidden(member), not _is_code(member),
                        len(member.path.parts), member.path)))
    inside = {member: _stages_in(member) for member in islice((
        member for member in members if _is_code(member) or not (
            _is_hidden(member) or GIVEN.fullmatch(member.path.name))), MOST_CODE)}
    for member in members:
        match = NEARLY.fullmatch(member.path.name)
        if _is_hidden(member):
            hidden.append(member)
        elif PROBLEM.fullmatch(member.path.name):
            exact[int(match[1])].append(member)
        elif match:
            near[int(match[1])].append(member)
        elif not GIVEN.fullmatch(member.path.name):
            others.append(member)
    loose = [member for member in inside if _is_code(member) and member not in hidden
             and not PROBLEM.fullmatch(member.path.name)]
    swapped = {member: inside[member] for stage, theirs in exact.items() for member in theirs
               if inside.get(member) and stage not in inside[member]}
    home = min((each[0].path.parent for each in exact.values()),
               key=lambda path: len(path.parts), default=PurePosixPath())
    files, refused, used = {}, {}, {}
    for stage in STAGES:
        named = exact[stage] + [member for member in loose if inside[member] == {stage}
                                or member in near[stage] and not (exact[stage] or inside[member])]
        try:
            if wrong := [member for member in exact[stage] if member in swapped]:
                raise Refused(f"{_names(wrong[:1])} has the code of problem "
                              + " or ".join(map(str, sorted(swapped[wrong[0]]))))
            if named:
                files[stage] = _only(named)
                used[named[0]] = stage
        except Refused as error:
            refused[stage] = f"{_names(named)} " * (named != exact[stage] and len(named) == 1) \
                + str(error)
    if given and not (files or refused or any(near.values())):
        raise Refused("; ".join(shut) or f"no problem_1.py ... problem_9.py is in it, but "
                      f"{_names(members or given)}")
    is_beside = shut or others or hidden or swapped or any(near.values())
    blank = {stage for stage in files if is_beside and _is_blank(stage, files[stage])}
    for stage in STAGES.keys() - (files.keys() - blank) - refused.keys():
        may_be = near[stage] + [member for member in others
                                if stage in (inside.get(member) or asked.stages)]
        may_be += [member for member in (*swapped, *hidden) if stage in inside.get(member, ())
                   or member in hidden and _is_named(stage, member)]
        may_be = [member for member in may_be if member not in used and not (
            (stage in blank or member in others and not inside.get(member))
            and _adds_nothing(stage, member))]
        where = _names(may_be) or "what could not be opened: " + "; ".join(shut)
        if (may_be or shut) and stage in blank:
            del files[stage]
            refused[stage] = f"nothing is written in it, and its code may be in {where}"
        elif may_be or shut:
            refused[stage] = f"want problem_{stage}.py; got {where}" if may_be else \
                f"problem_{stage}.py may be in {where}"
    notes = []
    for stage in exact:
        if stage in files and (beside := [
                member for member in near[stage] if _is_code(member) and member not in used
                and inside.get(member) == set()]):
            notes.append(f"{_names(beside)} lies beside problem_{stage}.py, which was taken")
    aside = [f"{_names([member])} was taken as problem_{stage}.py" for member, stage in used.items()
             if stage in files and member.path != home / f"problem_{stage}.py"]
    aside += [*notes, *(f"not opened: {why}" for why in shut)]
    if unread := [member for member in others if member not in used and (
            _is_code(member) or inside.get(member))]:
        aside.append(f"not graded, as it is not the file of one problem: {_names(unread)}")
    report = b""
    with suppress(Refused):
        report = next((member.read(MOST_REPORTED) for member in members
                       if member.path == home / REPORT), b"")
    return replace(student, files=files, refused=refused, report=report,
                   aside=tuple(aside), notes=(*student.notes, *notes, *(
                       f"problem_{stage}.py is empty" for stage in files
                       if not files[stage].strip())))


def _opened(members: list[Member], opened: ExitStack) -> tuple[list[Member], list[str]]:
    """-> the files and those in archives among them; why some archives were not opened."""
    files, shut, count = [], [], 0
    queue = [(member, 0) for member in members]
    for member, level in queue:  # which grows
        if _is_hidden(member) or not member.path.name.lower().endswith(PACKED):
            files.append(member)
            continue
        try:
            if level == NESTED:
                raise Refused(f"want at most {NESTED} archives in each other; got more")
            if count == MOST_ARCHIVES:
                raise Refused(f"want at most {MOST_ARCHIVES} archives; got more")
            count += 1
            queue += [(Member(member.path / path, read), level + 1)
                      for path, read in _inside(member, MOST_ARCHIVE, opened)]
        except Refused as error:
            shut.append(str(error) if member.path.name in str(error) else
                        f"{_names([member])}: {error}")
    return files, shut


def _only(members: list[Member]) -> bytes:
    """What is in a file, of which there may be copies with the same code.  Raises Refused: they
    differ, or one cannot be read."""
    found = {_meaning(code): code for code in map(_code, members[:MOST_CODE])}
    if len(members) > MOST_CODE or len(found) > 1:
        raise Refused("it is there twice or more, and not the same: " + _names(members))
    code = _code(members[0])
    try:
        decode(code)
    except SyntaxError as error:  # it may be right, and Python cannot read it
        raise Refused(error.msg) from None
    for start, words in FORMATS.items():
        if code.lstrip().lower().startswith(start):
            raise Refused(f"want Python; got {words}")
    return code


def _meaning(code: bytes) -> str | bytes:
    """The code without comments and spacing, or as it is if it is no Python."""
    try:
        return ast.dump(syntax_tree(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code


def _code(member: Member) -> bytes:
    """The code of a file; that of a notebook is in its cells.  Raises Refused: there is none, or it
    is too long."""
    try:
        read, most = (notebooks.code, MOST_NOTEBOOK) if member.path.suffix.lower() == ".ipynb" \
            else (notebooks.exported, MAX_BYTES)
        data = member.read(most + 1)
        if len(data) <= most and len(made := read(data)) <= MAX_BYTES:
            return made
    except ValueError as error:
        raise Refused(str(error)) from None
    raise Refused(f"want at most {most >> 10} KiB"
                  + f", and {MAX_BYTES >> 10} KiB of code in it" * (most != MAX_BYTES)
                  + "; got more")


def _is_hidden(member: Member) -> bool:
    return not _may_be_taken(*member.path.parts) or bool(NOT_THEIRS & {*member.path.parts[:-1]})


def _is_ignored(member: Member, asked: Asked) -> bool:
    name = member.path.name.lower()
    return not PROBLEM.fullmatch(name) and any(
        fnmatchcase(name, pattern.lower()) for pattern in asked.ignored)


def _is_code(member: Member) -> bool:
    return member.path.name.lower().removesuffix(".txt").endswith(CODE)


def _stages_in(member: Member) -> set[int]:
    """The stages that the code may be for: that of its step markers, or those whose function it
    has, in a text of another kind anywhere in a line."""
    begins, read = (r"^[ \t]*", _code) if _is_code(member) else ("", _prose)
    try:
        text = read(member).replace(b"\0", b"").decode(errors="replace")  # perhaps of UTF-16
    except Refused:
        return set()
    found = re.findall(rf"{begins}# BEGIN SOLUTION (\d)\.\d+", text, re.MULTILINE)
    return {*map(int, found)} & {*STAGES} or {
        number for number, stage in STAGES.items()
        if re.search(rf"{begins[:1]}(?:def|class) +{stage.entry}\b", text, re.MULTILINE)}


def _prose(member: Member) -> bytes:
    """The text of a file that is no code: of a .docx or .odt, what is between its tags."""
    data = member.read(MOST_REPORTED)
    with suppress(*UNREADABLE), zipfile.ZipFile(io.BytesIO(data)) as document:
        for name in {"word/document.xml", "content.xml"} & {*document.namelist()}:
            with document.open(name) as text:
                data = re.sub(rb"<[^>]*>", b"", text.read(MOST_REPORTED))
    return data[:MAX_BYTES]


def _is_blank(stage: int, code: bytes) -> bool:
    """Whether nothing is written in a file, except perhaps what was copied from earlier ones."""
    file = submission.of_bytes(Path(f"problem_{stage}.py"), code, STAGES[stage].entry)
    return file.state == "not_started" or bool(file.steps) and {
        step.id for step in file.steps if not step.origin} <= {*file.blank_new}


def _adds_nothing(stage: int, member: Member) -> bool:
    """Whether a file is compiled, or nothing is written in it, either."""
    with suppress(Refused):
        return member.path.suffix == ".pyc" or _is_blank(
            stage, _code(member) if _is_code(member) else member.read(MAX_BYTES))
    return False


def _is_named(stage: int, member: Member) -> bool:
    """Whether it is code, compiled or not, of nearly the right name."""
    match = NEARLY.fullmatch(member.path.name)
    return bool(match) and stage == int(match[1]) and (
        _is_code(member) or member.path.suffix == ".pyc")


def _names(members: list[Member]) -> str:
    return ", ".join(escape(str(member.path)) for member in members[:3]) \
        + ", ..." * (len(members) > 3)


def _members(place: Place, opened: ExitStack) -> list[Member]:
    """The files of a place.  Raises Refused: it is a link, or an archive that is damaged or leads
    out of its folder; OSError: it cannot be read."""
    found = _limited([*islice(place.entry.members(), MOST_ENTRIES + 1)])
    if place.file:
        return [Member(PurePosixPath(place.file), found[0].read)]
    if place.entry.is_folder:
        return found
    if not (inside := _inside(found[0], MOST_HANDED_IN, opened)):
        raise Refused(f"{_names(found)} has no files in it")
    return inside


def _inside(archive: Member, most: int, opened: ExitStack) -> list[Member]:
    """The files of an archive of at most so many bytes; raises Refused."""
    if not archive.path.name.lower().endswith(ARCHIVES):
        raise Refused(f"want a folder, a .zip or a .tar.gz; got {_names([archive])}")
    data = archive.read(most + 1)
    if len(data) > most:
        raise Refused(f"{_names([archive])} has more than {most >> 20} MiB")
    return _limited(_unpacked(archive.path.name, io.BytesIO(data), opened))


def _files(path: Path) -> Iterator[Member]:
    """The files of a folder, or the file itself.  Raises as _members does."""
    if path.is_symlink() or not path.exists():
        raise Refused("it is a link" if path.is_symlink() else f"there is no {escape(path.name)}")
    found = [path]
    for each in found:  # which grows
        if each == path and path.is_dir() or each.is_dir() and not (
                each.is_symlink() or PROBLEM.fullmatch(each.name)
                or each.name in LITTER | INSTALLED):
            found += each.iterdir()
        else:
            inside = each.relative_to(path) if each != path else each.name
            yield Member(PurePosixPath(inside), partial(_read, each))


def _limited(members: list[Member]) -> list[Member]:
    """What one student handed in, without what their system added.  Raises Refused: it is too much,
    or leads out of its folder."""
    if len(members) > MOST_ENTRIES:
        raise Refused(f"more than {MOST_ENTRIES} files are in it")
    for path, _ in members:
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0][1:2]:
            raise Refused(f"the archive climbs out of its folder: {escape(str(path))}")
    return [member for member in members if not any(
        part in LITTER or part.startswith("._") for part in member.path.parts)]


def _open(path: Path) -> BinaryIO:
    """Open a file.  Raises Refused: it is a link, a device, a folder, or cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else f"cannot read it: {error.strerror}"
        raise Refused(why) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Refused(NOT_REGULAR)
    return open(handle, "rb")


def _read(path: Path, most: int) -> bytes:
    with _open(path) as file:
        try:
            return file.read(most)
        except OSError as error:
            raise Refused(f"cannot read it: {error.strerror}") from None


def _unpacked(name: str, file: BinaryIO, opened: ExitStack) -> list[Member]:
    """The files of an archive, which stays open.  Raises Refused: it is damaged."""
    try:
        if name.lower().endswith(".zip"):
            return list(_in_zip(opened.enter_context(zipfile.ZipFile(file))))
        if name.lower().endswith("gz"):
            file = opened.enter_context(gzip.GzipFile(fileobj=file))
        data = file.read(MOST_ARCHIVE + 1)  # all of it: sizes in its headers cannot be trusted
        if len(data) > MOST_ARCHIVE:
            raise Refused(f"it would unpack to more than {MOST_ARCHIVE >> 20} MiB")
        return list(_in_tar(opened.enter_context(tarfile.open(fileobj=io.BytesIO(data),
                                                              mode="r:"))))
    except UNREADABLE as error:
        raise Refused(f"cannot read the archive: {_words(error)}") from None


def _in_zip(archive: zipfile.ZipFile) -> Iterator[Member]:
    for member in archive.infolist():
        mode = stat.S_IFMT(member.external_attr >> 16)
        why = "it is a link" if mode == stat.S_IFLNK else \
            "it is encrypted" if member.flag_bits & ENCRYPTED else \
            NOT_REGULAR * (member.is_dir() or mode not in (0, stat.S_IFREG))
        yield from _member(member.filename, member.is_dir(), why, partial(archive.open, member))


def _in_tar(archive: tarfile.TarFile) -> Iterator[Member]:
    for member in archive:
        why = "it is a link" if member.issym() or member.islnk() else \
            NOT_REGULAR * (not member.isreg())
        yield from _member(member.name, member.isdir(), why, partial(archive.extractfile, member))


def _member(name: str, is_folder: bool, why: str, open_: Callable[[], BinaryIO]
            ) -> Iterator[Member]:
    """A member of an archive, and why it is not read, or "".  Folders are left out, unless one is
    named like a problem file or leads out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))

    def read(most: int) -> bytes:
        if why:
            raise Refused(why)
        try:
            with open_() as file:
                return file.read(most)
        except UNREADABLE as error:
            raise Refused(f"cannot unpack it: {_words(error)}") from None

    if path.parts and (not is_folder or PROBLEM.fullmatch(path.name) or ".." in path.parts):
        yield Member(path, read)


def _words(error: Exception) -> str:
    return escape(str(error)) or type(error).__name__
