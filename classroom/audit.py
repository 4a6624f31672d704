"""Keeps in RESULTS/audit what an audit needs when nothing else is left.  Of a private note, a
roster or a gradebook there is only a hash."""

import csv
import io
import json
import shlex
import subprocess
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from classroom import late, roster
from classroom.reports import EMPTY, plain, read_reports, undecided
from classroom.settings import TABLES
from classroom.standing import changes, grades, moved, outputs
from classroom.store import Store, note, put
from grader.assignment.record import ROOT, sha256
from grader.host.files import replace

RUNS = ("date", "command", "grader", "commit", "tables")
HISTORY_FILE = "audit/history.csv"
JOINED = "other results were joined, and the grade here stands"
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


def begin(store: Store, arguments, tables: dict[str, str]) -> dict[str, str]:
    """Note this run, before it grades, in case it is killed.  A student named in the command is
    not.  tables: their hashes.  -> its line in runs.csv."""
    words = list(arguments.words)
    for name in (*arguments.again, *arguments.forget):
        words = ["STUDENT" if word == name else
                 word.removesuffix(name) + "STUDENT" if word.endswith(f"={name}") else word
                 for word in words]
    run = dict(zip(RUNS, (
        datetime.now().astimezone().isoformat(timespec="seconds"),
        "python -m classroom " + shlex.join(words), store.settings.grader, commit(),
        json.dumps(tables)), strict=True))
    store.write(store.folder / "audit/runs.csv",
                _table(RUNS, [*_rows(store.folder / "audit/runs.csv"), run]))
    return run


def files(results: Path, run: dict[str, str], given: dict[str, Path | None],
          stands: dict[str, dict], reports: list[dict]) -> dict[str, bytes]:
    """What to write at the end of a run: name -> contents.  given: policy, cases, overrides;
    stands: a student's key -> the last report, perhaps under another key."""
    keys = {plain(old["key"]): plain(key) for key, old in stands.items()}
    history = [row | {"key": keys.get(row["key"], row["key"])}
               for row in _rows(results / HISTORY_FILE)]
    history += [row | {"date": run["date"], "commit": run["commit"]}
                for row in _changes(history, stands, reports)]
    made = {HISTORY_FILE: _table(HISTORY, history),
            TABLES: (json.dumps(json.loads(run["tables"]), indent=1) + "\n").encode()}
    for name, path in given.items():
        made |= {f"audit/{old.name}": b"" for old in results.glob(f"audit/{name}.*")}
        if path:
            made[f"audit/{name}{path.suffix}"] = _without_notes(path) if name == "overrides" else \
                path.read_bytes()
    return made


def join(results: Path, other: Path) -> list[str]:
    """Take over what another `grade` of this class wrote: its records, histories, and the students
    who have nothing here.  -> a line for each whom both have graded, and not alike; the grade here
    stands.  Raises ValueError: it is no such folder, or a file here is not ours."""
    ours = {report["key"]: report for report in (
        read_reports(results) if any(results.glob("students/*.json")) else ())}
    names, lines, made = [], [], {}
    for report in read_reports(other):
        mine = ours.get(report["key"])
        if mine is None or mine["state"] in EMPTY:
            names += outputs(report["key"])
        elif report["state"] not in EMPTY and (words := changes(mine, report)):
            lines.append(f"{report['student']}: graded here and in {other}, where it is {words}")
    names += [path for name in sorted((other / "graded").glob("*.json*"))
              if not (results / (path := f"graded/{name.name}")).is_file()]
    for name in filter(lambda name: (other / name).is_file(), names):
        made[results / name] = (other / name).read_bytes()
    for name, columns in (("audit/runs.csv", RUNS), (HISTORY_FILE, HISTORY)):
        rows = {tuple(row.values()): row for row in (*_rows(results / name), *_rows(other / name))}
        made[results / name] = _table(columns, sorted(
            rows.values(), key=lambda row: datetime.fromisoformat(row["date"])))
    results.mkdir(mode=0o700, parents=True, exist_ok=True)
    put(results, made)
    return lines


def forget(results: Path, key: str, student: str) -> None:
    """Remove the lines of a student, also from the aliases of a leaderboard.  Raises ValueError:
    one of the tables is damaged."""
    for name, column, value in (("aliases.csv", "student", student), (HISTORY_FILE, "key", key)):
        if (results / name).is_file():
            headers, rows = roster.table(results / name, name, (column,))
            contents = _table(headers, [
                row for row in rows if row[column] not in (value, plain(value))])
            replace(results / name, contents, 0o600)
            note(results, name, contents)


def _changes(history: list[dict], stands: dict[str, dict], reports: list[dict]) -> list[dict]:
    """A row for every grade that is not as the history has it."""
    last: dict[str, dict[str, str]] = {}
    for row in history:
        last.setdefault(row["key"], {})[row["what"]] = row["after"]
    found = []
    for report in reports:
        key, old, reasons = plain(report["key"]), stands.get(report["key"]), []
        for what, was, after in moved(last.get(key, {}), grades(report)):
            if was and old and grades(old).get(what, "not settled") == after:
                reason = JOINED
            elif what[1:].isdigit():
                reasons.append(reason := _why(old, report, was, int(what[1:])))
            else:
                reason = "; ".join(dict.fromkeys(reasons)) or _why(old, report, was, None)
            found.append({"key": key, "student": plain(report["student"]), "what": what,
                          "before": was, "after": after, "reason": plain(reason),
                          "grader": report["grader"]})
    return found


def _why(old: dict | None, new: dict, was: str, number: int | None) -> str:
    """Why the grade of a stage is another one, or the sum, if no stage of it is.  was: what it was,
    or ""."""
    before, stage = ({each["stage"]: each for each in report["stages"]}.get(number, {})
                     for report in (old or {"stages": []}, new))
    word, is_late = stage.get("override"), f"late: {new['late'] or 'no longer'}"
    is_days = f"; {is_late}" * bool(new["late_days"])
    for is_so, reason in (
            (new["held"] or not number and undecided(new), ", ".join(sorted(undecided(new)))),
            (word and word != before.get("override"), f"a person: {word and word['reason']}"),
            (old and old["held"], is_late if new["late"] else
             "no longer " + ", ".join(sorted(undecided(old or new)))),
            (not was, f"first grade{is_days}"),
            (number and not stage, "the stage is not graded any more"),
            (not word and "override" in before, "the override is gone"),
            (before.get("sha256") != stage.get("sha256"), _which(old, new) + is_days),
            (number and old and old["grader"] != new["grader"], "another grader"),
            (before.get("earned") != stage.get("earned"), "graded again"),
            (old and old["late"] != new["late"], is_late)):
        if is_so:
            return reason
    return "policy"


def _which(old: dict | None, new: dict) -> str:
    """Which file counts now: perhaps that of an earlier hand-in, if the best counts."""
    time = new["handed_in"]
    return f"the hand-in of {late.said(late.read(time))} counts" \
        if old and time and time != old["handed_in"] else "another file"


def _without_notes(path: Path) -> bytes:
    """overrides.csv with a hash for each private note."""
    rows, form = roster.cells(path, "--overrides")
    at = [i for i, header in enumerate(rows[0]) if roster.squash(header) == "note"]
    return roster.written([rows[0], *([
        "sha256:" + sha256(cell.encode())[:16] if i in at and cell else cell
        for i, cell in enumerate(row)] for row in rows[1:])], form)


def _table(columns: Iterable[str], rows: list[dict[str, str]]) -> bytes:
    return roster.written([columns, *([row[column] for column in columns] for row in rows)])


def _rows(path: Path) -> list[dict[str, str]]:
    text = path.read_text("utf-8") if path.is_file() else ""
    return list(csv.DictReader(io.StringIO(text, newline="")))
