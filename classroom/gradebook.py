"""Puts grades into the gradebooks of other systems.  A row that may belong to several students is
left as it is."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from classroom import roster
from classroom.gather import SYSTEMS
from classroom.reports import EMPTY, person_of, plain
from classroom.roster import number
from classroom.verdicts import verdicts
from grader.text import escape

SLUG = "flashattention"
EXCUSED = "EX"  # Canvas: excused
NBGRADER = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email",
            "raw_score", "late_submission_penalty", "score", "max_score")


class Sheet(NamedTuple):
    """An exported file.  rows: all of it; people: whose each student's row is; column: the one to
    fill; kept: the columns to write; most: the maximum there, if given."""

    rows: list[list[str]]
    people: dict[int, roster.Person]
    column: int
    kept: list[int]
    most: str


def filled(path: Path, system: str, column: str, most: float, graded: list[dict]
           ) -> tuple[bytes, list[str], list[str]]:
    """Fill a column of the file that "canvas" or "moodle" exported.  column: its title, or "" if
    there is only one candidate.  most: the points that are full marks here.  -> the new file; a
    line for everyone who is in only one of the two, is undecided, or has no clear row; who had
    another grade there.  Raises ValueError: it is no such file."""
    rows, form = roster.cells(path, f"--{system}")
    sheet = (_canvas if system == "canvas" else _moodle)(rows, column, path)
    if sheet.most and (there := number(sheet.most)) != most:
        raise ValueError(f"--{system}: want a column of {most:g} points; got {sheet.most}: pass "
                         f"--scale {there:g}, or change the maximum there")
    point = "," if any("," in cell and number(cell) == number(cell) for cell in (
        sheet.most, *(rows[row][sheet.column] for row in sheet.people))) else "."
    said, replaced, owners, doubtful = [], [], {row: [] for row in sheet.people}, set()
    differ = roster.differing(map(person_of, graded), sheet.people.values(), *SYSTEMS)
    for report in graded:
        may_be = roster.match(person_of(report), sheet.people.values(), differ)
        found = [row for row, person in sheet.people.items() if person in may_be]
        if len(found) > 1:
            doubtful.update(found)
        if len(found) != 1:
            said.append(f"{report['student']}: " + (
                f"matches rows {' and '.join(str(row + 1) for row in found)} of {path.name}, which "
                "are left as they are" if found else f"not in {path.name}"))
        for row in found:
            owners[row].append(report)
    for row, theirs in owners.items():
        name = theirs[0]["student"] if theirs else ""
        if not theirs:
            said.append(f"{escape(sheet.people[row].shown)}: not in the class; the row in "
                        f"{path.name} is left as it is")
        elif len(theirs) > 1:
            said.append(f"{' or '.join(each['student'] for each in theirs)}: row {row + 1} of "
                        f"{path.name} matches both, and is left as it is")
        elif row in doubtful:
            continue
        elif theirs[0]["points"] is None:
            if theirs[0]["state"] not in EMPTY:
                said.append(f"{name}: no grade yet; the row in {path.name} is left as it is")
        elif sheet.rows[row][sheet.column].strip().upper() == EXCUSED:
            said.append(f"{name}: excused in {path.name}, and stays so")
        else:
            points = theirs[0]["points"] * most / (theirs[0]["max_points"] or 1)
            if system == "moodle" and points > most:  # Moodle would drop it silently
                said.append(f"{name}: {points:.2f} points, written as {most:g}, Moodle's maximum")
                points = most
            now = f"{points:.2f}".replace(".", point)
            was, sheet.rows[row][sheet.column] = sheet.rows[row][sheet.column], now
            if was.strip("- ") and number(was) != number(now):
                replaced.append(f"{name} ({escape(was)} -> {now})")
    return roster.written(([row[i] for i in sheet.kept if i < len(row)] for row in sheet.rows),
                          form), said, replaced


def _canvas(rows: list[list[str]], column: str, path: Path) -> Sheet:
    """Only the student's columns and the one to fill are written, so that other grades changed in
    Canvas since then stay."""
    header = rows[0] if rows else []
    id = header.index("ID") if "ID" in header else 0
    if "Section" not in header or not (header[:id] == ["LastName", "FirstName"]
                                       or id == 1 and "Student" in header[0]):
        raise ValueError("--canvas: want an exported gradebook with the columns Student, ID, "
                         "..., Section, ...; got "
                         f"{', '.join(header[:5]) or 'nothing'} in {path}")
    section = header.index("Section")
    works = {i: title for i, title in enumerate(header) if i > section
             and re.fullmatch(r".+ \(\d+\)", title)}
    chosen = [i for i, title in works.items()
              if column in ("", title, title.rpartition(" (")[0])]
    if len(chosen) != 1:
        raise ValueError("--column: want one of " + "; ".join(works.values())
                         + f"; got {column or 'none'}")
    people, most = {}, ""
    for line, row in enumerate(rows[1:], start=1):
        row += [""] * (len(header) - len(row))
        if "Points Possible" in row[0]:
            most = row[chosen[0]].strip()
        elif not all(re.fullmatch(r"\s*(Muted|Manual Posting.*)?\s*", cell) for cell in row):
            person = roster.Person(
                ", ".join(row[:id]).strip(), row[id].strip(), system="canvas", also=tuple(
                    (header[i], row[i].strip()) for i in range(id + 1, section)))
            if person.name != roster.TEST_STUDENT or "SIS User ID" in dict(person.known):
                people[line] = person
    return Sheet(rows, people, chosen[0], [*range(section + 1), chosen[0]], most)


def _moodle(rows: list[list[str]], column: str, path: Path) -> Sheet:
    """Headers are in the site's language, but the first columns say who it is."""
    header = rows[0] if rows else []
    column = column or "Grade"
    if len(header) < 4 or header.count(column) != 1 or header[0] == "Identifier" \
            and (column, "Last modified (grade)" in header) != ("Grade", True):
        raise ValueError("--moodle: want a grading worksheet with the columns Identifier, Full "
                         "name, ..., Grade, ..., Last modified (grade); if it is in another "
                         "language, name the column for the grades with --column; got "
                         f"{', '.join(header) or 'nothing'} in {path}")
    at = header.index(column)
    people, most = {}, ""
    for line, row in enumerate(rows[1:], start=1):
        if not any(row):
            continue
        row += [""] * (len(header) - len(row))
        if row[at].strip("- ") and number(row[at]) != number(row[at]):
            raise ValueError(f"--column: want a column of numbers; got {row[at]} in row "
                             f"{line + 1} of {path}")
        id = re.search(r"\d+$", row[0].strip())
        people[line] = roster.Person(
            row[1].strip(), id[0] if id else "", system="moodle", also=tuple(
                (title, cell.strip()) for title, cell in zip(header[1:5], row[1:5], strict=True)
                if "@" in cell))
        beside = "".join(row[at + 1:at + 2])  # the maximum, unless grades are not numbers
        most = most or beside * (number(beside) == number(beside))
    return Sheet(rows, people, at, list(range(len(header))), most)


def nbgrader(graded: list[dict], assignment: str) -> bytes:
    """The table that `nbgrader export` writes for one assignment, with everyone decided."""
    table: list = [NBGRADER]
    for report in graded:
        if report["points"] is not None:
            name = person_of(report).unnumbered.name
            last, comma, first = name.partition(", ")
            if not comma:
                first, _, last = name.rpartition(" ")
            table.append([assignment, "", "", *map(plain, (
                report["login"] or report["id"] or report["student"], last, first,
                report["email"])), round(report["points"] + report["late_penalty"], 2),
                report["late_penalty"], report["points"], report["max_points"]])
    return roster.written(table, roster.Form(newline="\n"))


def check50(report: dict) -> bytes:
    """A student's results as in check50 --output json: one check per stage."""
    results = [{
        "name": each.name, "description": each.title, "passed": each.passed,
        "log": each.said.splitlines(),
        "data": {"points": each.points, "max_points": each.max_points},
        "cause": {"rationale": each.mistake, "help": each.help} if each.help else None,
        "dependency": None} for each in verdicts(report)]
    return (json.dumps({"slug": SLUG, "results": results, "version": report["grader"]}, indent=4)
            + "\n").encode()
