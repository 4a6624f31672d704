"""Keeps the settings of a class in RESULTS/class.toml, for what the options of later runs leave
out."""

import hashlib
import json
import os
import re
import tomllib
from contextlib import suppress
from pathlib import Path

from grader.course.stages import STAGES

FILE = "class.toml"
TABLES = "audit/tables.json"  # option -> the sha256 that its table had in the last run
REFUSED = ".refused.json"  # the settings of the last run, if it was refused for want of a --yes
DEFAULTS = {"stages": f"1-{max(STAGES)}", "roster": None, "moodle": None, "canvas": None,
            "column": None, "scale": None, "policy": None, "overrides": None, "cases": None,
            "seed": None, "device": "auto", "timeout": 60.0, "stage_timeout": 600.0,
            "benchmark": True, "partial": False}
DEVICES = ("auto", "cuda", "cpu")
PATHS = ("roster", "moodle", "canvas", "policy", "overrides", "cases")
EMPTY = """\
# The settings of this class.  Every `grade` goes by them; its options change them, and so may you.
# Paths begin in this folder.  A line with # in front sets nothing.
""" + "".join(f"# {name} =\n" for name in DEFAULTS)


def read(results: Path) -> dict:
    """The settings in this folder's class.toml, with defaults for the rest.  Raises ValueError: it
    is no such file."""
    path = results / FILE
    usual = {name: value for name, value in DEFAULTS.items() if value is not None}
    if not path.is_file():
        return usual
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"want TOML; got {error} in {path}") from None
    for name, value in given.items():
        kinds = (int,) if name == "seed" else (str,) if name in (*PATHS, "column") else \
            (float, int) if name in ("timeout", "stage_timeout", "scale") else \
            (type(usual.get(name)),)
        if name not in DEFAULTS or type(value) not in kinds \
                or name == "device" and value not in DEVICES:
            raise ValueError(f"want {', '.join(DEFAULTS)}, as `grade` writes them; got {name} = "
                             f"{value!r} in {path}")
    return usual | given


def complete(arguments) -> dict:
    """Fill in the options of `grade` that were left out, from class.toml.  -> all settings, for the
    new class.toml.  Of --canvas and --moodle the one that is given replaces the other there, with
    its column."""
    out, wanted, kept = arguments.out, {}, read(arguments.out)
    for name, other in (("canvas", "moodle"), ("moodle", "canvas")):
        if getattr(arguments, name) and kept.pop(other, None):
            kept.pop("column", None)
    for name, value in (DEFAULTS | kept).items():
        given = getattr(arguments, name)
        if given is None:
            given = out / value if value and name in PATHS else value
            setattr(arguments, name, given)
        if given is not None:
            wanted[name] = os.path.relpath(given.resolve(), out.resolve()) if name in PATHS \
                else given
    return wanted


def replaced(results: Path, wanted: dict) -> list[str]:
    """A line on what is in class.toml now and not in these settings."""
    gone = [f"{name} = {value}" for name, value in read(results).items() if name not in wanted]
    return [f"{FILE}: without {' and '.join(gone)} now, as another gradebook is given"] \
        if gone else []


def refuse(results: Path, wanted: dict) -> ValueError:
    """Note these settings, which do not count.  -> the error that says so."""
    want = "want --yes to change existing grades; none was changed"
    if DEFAULTS | read(results) != DEFAULTS | wanted:
        (results / REFUSED).write_text(json.dumps(wanted), "utf-8")
        want += f", nor was {FILE}: give the same options again, with --yes"
    return ValueError(want)


def not_applied(results: Path, wanted: dict) -> list[str]:
    """A line, if the run before was refused and its options are not in these settings, either."""
    path, now = results / REFUSED, read(results)
    before = json.loads(path.read_bytes()) if path.is_file() else {}
    lost = [f"{name} = {value}" for name, value in before.items()
            if value != wanted.get(name) == now.get(name)]
    return [f"not applied: {', '.join(lost)}, because the run with it was refused: give that "
            "option again"] if lost else []


def text(results: Path, wanted: dict) -> str:
    """class.toml with these settings: the present text, comments included, with changed lines
    replaced."""
    path = results / FILE
    text = path.read_text("utf-8") if path.is_file() else EMPTY
    known = tomllib.loads(text)
    for name in wanted | known:
        if known.get(name) != (value := wanted.get(name)):
            line = f"# {name} =\n" if value is None else \
                f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
            text, found = re.subn(rf"^(# *)?{name} *=.*\n?", lambda _, line=line: line, text,
                                  count=1, flags=re.MULTILINE)
            text += line * (not found)
    return text


def tables(results: Path, wanted: dict) -> dict[str, str]:
    """Option -> the sha256 of its table, or of one that is not here any more as it was; so for the
    tables that the policy names, "spent ../hw1/results/grades.csv"."""
    path = results / TABLES
    kept = json.loads(path.read_bytes()) if path.is_file() else {}
    named = {name: results / wanted[name] for name in PATHS if name in wanted}
    if policy := named.get("policy"):
        with suppress(ValueError, LookupError, TypeError):  # it names none, or is no policy now
            spent = tomllib.loads(policy.read_text("utf-8"))["late"]["spent"] \
                if policy.is_file() else [name[6:] for name in kept if name.startswith("spent ")]
            named |= {f"spent {name}": policy.parent / name for name in spent}
    return {name: hashlib.sha256(table.read_bytes()).hexdigest() if table.is_file() else
            kept.get(name, "") for name, table in named.items()}


def digest(results: Path, wanted: dict) -> str:
    """A hash of these settings and of the tables that they name."""
    said = sorted((name, value) for name, value in wanted.items() if name not in PATHS)
    return hashlib.sha256(repr((said, tables(results, wanted))).encode()).hexdigest()[:12]


def check(results: Path, reports: list[dict]) -> None:
    """Raises ValueError: settings have changed since some of these reports were written."""
    now = digest(results, read(results))
    if old := [report["student"] for report in reports if report.get("class", now) != now]:
        raise ValueError(f"RESULTS: want grades by {results / FILE} and its tables as they are now;"
                         f" got older ones of {old[0]}, one of {len(old)}: run `grade` again")
