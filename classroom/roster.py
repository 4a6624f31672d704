"""Reads tables as spreadsheets and learning systems write them, and matches the people in them."""

import codecs
import csv
import io
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from grader.text import escape

HEADERS = {  # the names of each column, in lower case without spaces
    "name": ("name", "student", "fullname", "studentname"),
    "first": ("firstname", "givenname"), "last": ("lastname", "surname", "familyname"),
    "id": ("id", "identifier", "idnumber", "idnummer", "studentid", "sid", "sisuserid"),
    "login": ("login", "loginid", "sisloginid", "username"),
    "email": ("email", "emailaddress", "mail"),
    "handed_in": ("handedin", "lastmodifiedsubmission"), "status": ("submissionstatus", "status"),
    "extension": ("extension", "extensionuntil"), "team": ("team",)}
STATUS = re.compile(r"submitted|draft|no submission|nothing|reopened|new|(not )?graded|-|$",
                    re.IGNORECASE)  # how Moodle's begin, in English
DATED = re.compile(r".*\d.*\d:\d\d.*|[- ]*")  # a time in any language, or none
NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
SHORTENED = re.compile(r"[0-9]([.,][0-9]+)?E\+(09|[1-9][0-9])")  # an id as Excel shows it
WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how an .xlsx or .ods begins, and an .xls
TEST_STUDENT = "Student, Test"  # as whom a teacher of Canvas sees a course; without a SIS user id
NUMBERED = re.compile(r"(?P<word>\D{3,})(?P<number>\d+)")  # "Participant 4712", in any language


@dataclass(frozen=True)
class Person:
    """A row of the roster; "" for what is not known.  handed_in, extension: times, as written
    there; typed: whether handed_in is, and not a system's; status: what Moodle's worksheet says
    about the submission; system: "canvas" or "moodle", if the id is its own; team: of students who
    hand in together."""

    name: str = ""
    id: str = ""
    login: str = ""
    email: str = ""
    handed_in: str = field(default="", compare=False)
    status: str = field(default="", compare=False)
    extension: str = field(default="", compare=False)
    also: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # more as in known
    typed: bool = field(default=False, compare=False)
    system: str = field(default="", compare=False)
    team: str = field(default="", compare=False)

    @property
    def shown(self) -> str:
        return self.name or self.login or self.email or self.id

    @property
    def unnumbered(self) -> "Person":
        """Without the number, login or address that tells them from a namesake in reports."""
        name = self.name
        for _, value in self.known:
            name = name.removesuffix(f" ({value})")
        return replace(self, name=name)

    @property
    def known(self) -> list[tuple[str, str]]:
        """Their numbers, logins and addresses, each with the kind that it is of."""
        return [(kind, value) for kind, value in ((self.system or "id", self.id), (
            "login", self.login), ("email", self.email), *self.also) if value]

    @property
    def keys(self) -> set[str]:
        """All names that a folder of theirs may have, with the words of the name in any order."""
        words = re.split(r"[\s,]+", self.name)
        turned = {squash("".join(words[i:] + words[:i])) for i in range(len(words))}
        return (turned | {squash(value) for _, value in self.known}) - {""}


def squash(text: str) -> str:
    """Letters and digits in lower case, as learning systems write names in file names."""
    return re.sub(r"[\W_]", "", unicodedata.normalize("NFC", text)).casefold()


class Form(NamedTuple):
    """How a table is written."""

    delimiter: str = ","
    newline: str = "\r\n"
    encoding: str = "utf-8"


COMMAS = Form()


def number(text: str) -> float:
    """A number with a point or a comma before its decimals, also "1e1" (10); NaN if it is none."""
    return float(text.replace(",", ".")) if NUMBER.fullmatch(text.strip()) else float("nan")


def whole(text: str) -> int:
    """A number of 0 or more without decimals.  Raises ValueError: it is none."""
    if (value := number(text)) not in range(10**6):
        raise ValueError
    return int(value)


def cells(path: Path, what: str) -> tuple[list[list[str]], Form]:
    """-> the rows of a table; how it is written.  what: begins an error's message.  Raises
    ValueError: it is no such table."""
    if not path.is_file():
        raise ValueError(f"{what}: want a table, a .csv; got {path}")
    data = path.read_bytes()
    if data.startswith(WORKBOOKS):
        raise ValueError(f"{what}: want a table, a .csv; got {path}, a workbook: open it in Excel "
                         "or LibreOffice, and save it as CSV UTF-8")
    encoding = "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding = "cp1252"  # as Excel saves a .csv
        text = data.decode(encoding, "replace")
        if not {"\0", "\ufffd"}.isdisjoint(text):
            raise ValueError(f"{what}: want a table in UTF-8; got another encoding in {path}"
                             ) from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"{what}: want a table of values separated by commas, semicolons or "
                         f"tabs; got {error} in {path}") from None
    for line, row in enumerate(rows, start=1):
        if len(row) > len(rows[0]):
            raise ValueError(f"{what}: want {len(rows[0])} cells a row; got {len(row)} in row "
                             f"{line} of {path}: quote what holds a {delimiter!r}")
        if short := next(filter(SHORTENED.fullmatch, row), ""):
            raise ValueError(f"{what}: want numbers in full; got {short} in row {line} of {path}"
                             ", as Excel shortens them: give the file as it was downloaded")
    newline = re.search(r"\r\n|\n|\r|$", text)[0] or COMMAS.newline
    return rows, Form(delimiter, newline, encoding)


def written(rows: Iterable[Iterable], form: Form = COMMAS) -> bytes:
    """Write a table of these rows; None gives an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=form.delimiter, lineterminator=form.newline).writerows(rows)
    return text.getvalue().encode(form.encoding)


def table(path: Path, what: str, columns: tuple[str, ...], also: tuple[str, ...] = ()
          ) -> tuple[list[str], list[dict[str, str]]]:
    """-> the headers, squashed; the rows by header.  columns: required; also: optional.  Raises
    ValueError: as cells(), or a column is missing, or there twice."""
    rows, _ = cells(path, what)
    headers = [squash(header) for header in rows[0]] if rows else []
    if not set(map(squash, columns)) <= set(headers):
        raise ValueError(f"{what}: want the columns {', '.join(columns)}; got {_shown(rows)} in "
                         f"{path}")
    if twice := [column for column in (*columns, *also) if headers.count(squash(column)) > 1]:
        raise ValueError(f"{what}: want each column once; got {twice[0]} twice in {path}")
    return headers, [dict.fromkeys(headers, "") | {
        header: cell.strip() for header, cell in zip(headers, row, strict=False)}
        for row in rows[1:]]


def _shown(rows: list[list[str]]) -> str:
    """The headers of a table, as they are in it."""
    return escape(", ".join(rows[0])) if rows else "nothing"


def read(path: Path, what: str = "--roster") -> list[Person]:
    """The people in a roster, or in a learning system's gradebook.  what: as in cells().  Raises
    ValueError: it is no such table, or two people have the same id, login or address."""
    headers, rows = table(path, what, (), tuple(chain(*HEADERS.values())))
    columns = {column: next((name for name in names if name in headers), None)
               for column, names in HEADERS.items()}
    is_worksheet = _know_a_worksheet(columns, headers, rows)
    system = "moodle" if is_worksheet else "canvas" * (
        "section" in headers and "id" in headers[1:3])
    if not any(columns[name] for name in ("name", "id", "login", "email")) \
            and not (columns["first"] and columns["last"]):
        raise ValueError(f"{what}: want a column name (or first name and last name), id, login or "
                         f"e-mail; got {_shown(cells(path, what)[0])} in {path}")
    people, typed = [], columns["handed_in"] == HEADERS["handed_in"][0]
    for row in rows:
        person = {column: row[name] for column, name in columns.items() if name}
        parts = f"{person.pop('first', '')} {person.pop('last', '')}".strip()
        person["name"] = person.get("name") or parts
        person["also"] = tuple((name, row[name]) for name in HEADERS["id"] if row.get(name)
                               and name != columns["id"])
        if is_worksheet and not columns["status"] and headers[0] != "identifier":
            person["status"] = "no column of that name"
        elif not (is_worksheet or STATUS.match(person.get("status", ""))):
            person["status"] = ""  # of something else
        is_test = system == "canvas" and not row.get("sisuserid") and person["name"] == (
            TEST_STUDENT if columns["name"] else "Test Student")
        if any(person.values()) and not is_test \
                and not person["name"].startswith("Points Possible"):
            people.append(Person(**person, typed=typed, system=system))
    if not people:
        raise ValueError(f"{what}: want a row per student; got none in {path}")
    for column in ("id", "login", "email"):
        values = [getattr(person, column).casefold() for person in people]
        if twice := next((value for value in values if value and values.count(value) > 1), ""):
            raise ValueError(f"{what}: want an {column} for one student each; got {twice} twice "
                             f"in {path}")
    if len(set(people)) < len(people):
        twice = next(person.shown for person in people if people.count(person) > 1)
        raise ValueError(f"{what}: want each student once; got {twice} twice in {path}")
    return people


def _know_a_worksheet(columns: dict[str, str | None], headers: list[str],
                      rows: list[dict[str, str]]) -> bool:
    """Find id, name and address in a Moodle worksheet from the cells, because its headers are in
    the site's language; ids become numbers.  -> whether it is one; other tables are left alone."""
    rows = [row for row in rows if any(row.values())]
    cells = [NUMBERED.fullmatch(row[headers[0]]) for row in rows]
    if not all(cells) or len({cell["word"] for cell in cells}) != 1 or len(headers) < 2 \
            or headers[0] in (columns["name"], columns["login"]):
        return False
    columns["id"] = headers[0]
    for row, cell in zip(rows, cells, strict=True):
        row[headers[0]] = cell["number"]
    if headers[0] != "identifier":  # in English, HEADERS knows the rest
        names = {row[headers[1]] for row in rows}  # few: names are hidden, this is the status
        columns["name"] = headers[1] if 2 * len(names) > len(rows) else None
        columns["email"] = next((header for header in headers
                                 if all("@" in row[header] for row in rows)), None)
        columns["handed_in"] = columns["handed_in"] or next((
            header for header in headers[1:] if all(DATED.fullmatch(row[header]) for row in rows)
            and any(row[header].strip("- ") for row in rows)), None)
    return True


def joined(people: list[Person], exported: list[Person]) -> list[Person]:
    """The people of a roster, with what a gradebook's rows say about them, and whoever is only
    there.  What the roster says itself comes first."""
    found, alone = {person: [] for person in people}, []
    differ = differing(exported, people)
    for row in exported:
        may_be = match(row, people, differ)
        (found[may_be[0]] if len(may_be) == 1 else alone).append(row)
    for person, rows in found.items():
        if len(rows) == 1:
            (row,) = rows
            alone.append(replace(
                person, typed=(person if person.handed_in else row).typed,
                system=(row if person.id in ("", row.id) else person).system,
                also=(*person.also, *row.known), **{
                    name: getattr(person, name) or getattr(row, name)
                    for name in HEADERS.keys() - {"first", "last"}}))
        else:
            alone += [person, *rows]
    return alone


def match(given: Person, people: Iterable[Person],
          differ: Callable[[Person, Person], bool] = lambda given, person: False) -> list[Person]:
    """The people who this may be, by numbers, logins and addresses, and by name unless one of these
    differs; several if they contradict each other."""
    numbers = {value.casefold() for _, value in given.known}
    by_number = [person for person in people
                 if numbers & {value.casefold() for _, value in person.known}]
    by_name = [person for person in people if squash(given.name) in person.keys
               and (by_number or not differ(given, person))]
    both = [person for person in by_number if person in by_name]
    return both or list(dict.fromkeys(by_number + by_name))


def differing(given: Iterable[Person], people: Iterable[Person], *systems: str
              ) -> Callable[[Person, Person], bool]:
    """-> whether one of given and one of people have different numbers of the same kind.  Kinds are
    the same if at least half of the values are, and those of these systems always."""
    ours, theirs = defaultdict(set), defaultdict(set)
    for kinds, group in ((ours, given), (theirs, people)):
        for person in group:
            for kind, value in person.known:
                kinds[kind].add(value.casefold())
    same = {(system, system) for system in systems} | {
        (kind, other) for kind, values in ours.items() for other, others in theirs.items()
        if 2 * len(values & others) >= min(len(values), len(others))}

    def differ(one: Person, person: Person) -> bool:
        pairs = [(value.casefold(), other.casefold()) for kind, value in one.known
                 for like, other in person.known if (kind, like) in same]
        return bool(pairs) and all(value != other for value, other in pairs)
    return differ
