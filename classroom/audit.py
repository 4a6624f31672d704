"""Keeps in RESULTS/audit what an audit needs when nothing else is left: every run with its command
and version, every change of a grade, and the tables that decided.

Policy, cases and overrides are copied, an override's private note as a hash.  Of a roster or a
gradebook there is only the hash: what it says about students is in their own JSON.
"""

import csv
import io
import json
import shlex
import subprocess
from datetime import datetime
from pathlib import Path

from classroom import roster
from classroom.book import EMPTY, plain
from classroom.settings import TABLES
from classroom.standing import grades
from grader.assignment.record import ROOT, sha256

RUNS = ("date", "command", "grader", "commit", "tables")
HISTORY = ("date", "key", "student", "what", "before", "after", "reason", "grader", "commit")


def commit() -> str:
    """The commit of this checkout, with a + if its code was changed since; "" if there is none."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    code = ["grader", "classroom", "reference.py"]
    try:
        head, changed = (subprocess.run([*git, *words], capture_output=True, text=True, check=True)
                         .stdout.strip() for words in (
                             ["rev-parse", "HEAD"], ["status", "--porcelain", "--", *code]))
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + "+" * bool(changed)


def files(results: Path, words: list[str], tables: dict[str, str], given: dict[str, Path | None],
          stands: dict[str, dict], reports: list[dict], gone: list[str]) -> dict[str, bytes]:
    """What to write: name -> contents.

    words: the command's; tables: their hashes; given: policy, cases, overrides; stands: a student's
    key -> the last report; gone: keys of students to be forgotten.
    """
    now, version = datetime.now().astimezone().isoformat(timespec="seconds"), commit()
    runs = _rows(results / "audit/runs.csv")
    runs.append(dict(zip(RUNS, (now, "python -m classroom " + shlex.join(words),
                                reports[0]["grader"], version, json.dumps(tables)), strict=True)))
    history = [row for row in _rows(results / "audit/history.csv") if row["key"] not in gone]
    for row in _changes(history, stands, reports):
        history.append(row | {"date": now, "commit": version})
    made = {f"audit/{name}.csv": roster.written([columns, *(
        [row[column] for column in columns] for row in rows)]) for name, columns, rows in (
            ("runs", RUNS, runs), ("history", HISTORY, history))}
    made[TABLES] = (json.dumps(tables, indent=1) + "\n").encode()
    for name, path in given.items():
        if path:
            made[f"audit/{name}{path.suffix}"] = _without_notes(path) if name == "overrides" else \
                path.read_bytes()
    return made


def _changes(history: list[dict], stands: dict[str, dict], reports: list[dict]) -> list[dict]:
    """A row for every grade that is not as the history has it."""
    last = {(row["key"], row["what"]): row["after"] for row in history}
    found = []
    for report in reports:
        key, old, reasons = report["key"], stands.get(report["key"]), []
        now = {} if report["state"] in EMPTY and report["points"] is None else grades(report)
        before = {what: grade for (owner, what), grade in last.items() if owner == key}
        for what in [*now, *(what for what in before if what not in now)]:
            was, after = before.get(what, ""), now.get(what, "not settled")
            if was == after:
                continue
            single = what[1:].isdigit()
            reasons += [_why(old, report, int(what[1:]))] if single else []
            reason = reasons[-1] if single else "; ".join(dict.fromkeys(
                reasons or report["held"] or [report["late"]]))
            found.append({"key": key, "student": plain(report["student"]), "what": what,
                          "before": was, "after": after, "reason": plain(reason),
                          "grader": report["grader"]})
    return found


def _why(old: dict | None, new: dict, number: int) -> str:
    """Why the grade of a stage is another one."""
    was, stage = ({each["stage"]: each for each in report["stages"]}.get(number, {})
                  for report in (old or {"stages": []}, new))
    word = stage.get("override")
    for is_so, reason in (
            (word and word != was.get("override"), f"a person: {word and word['reason']}"),
            (not was or old["state"] in EMPTY, "first grade"),
            (not word and "override" in was, "the override is gone"),
            (was.get("sha256") != stage.get("sha256"), "another file"),
            (old and old["grader"] != new["grader"], "another grader"),
            (was.get("earned") != stage.get("earned"), "graded again"),
            (old and old["late"] != new["late"], f"late: {new['late'] or 'no longer'}")):
        if is_so:
            return reason
    return "policy"


def _without_notes(path: Path) -> bytes:
    """overrides.csv with a hash for each private note."""
    rows, delimiter = roster.cells(path, "--overrides")
    at = [i for i, header in enumerate(rows[0]) if roster.squash(header) == "note"]
    return roster.written([rows[0], *([
        "sha256:" + sha256(cell.encode())[:16] if i in at and cell else cell
        for i, cell in enumerate(row)] for row in rows[1:])], delimiter=delimiter)


def _rows(path: Path) -> list[dict[str, str]]:
    text = path.read_text("utf-8") if path.is_file() else ""
    return list(csv.DictReader(io.StringIO(text, newline="")))
