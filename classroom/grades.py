"""Computes grades when the tables are written: the points of results, by policy.toml and
overrides.csv.  Nothing in graded/ depends on them, but for `assignment`."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path

from classroom import late, roster
from classroom.gather import Submitted
from classroom.late import Late
from classroom.reports import EMPTY, OPEN, for_a_person, not_settled
from grader.course.stages import ASSIGNMENTS, STAGES
from grader.judge.points import SHARES
from grader.text import escape

COLUMNS = ("student", "stage", "points", "reason")  # and optionally note and days_late
ALL = "*"  # for all stages
DRAFT = "a draft, which was not submitted: an override says the days or the points"
DRAFTS = ("draft", "reopened")  # how such a status begins
NEWER = "newer than the {} that a person set for it: change them in the override, or the reason"
TOO_LATE = "again after the last day, which does not count"
MOST_POINTS = 1e6


@dataclass(frozen=True)
class Policy:
    """What results are worth."""

    points: dict[int, float] = field(default_factory=dict)  # of stages; else the assignment's
    shares: dict[str, float] = field(default_factory=lambda: SHARES)  # of a stage's points
    optional: frozenset[int] = frozenset()  # stages whose points are a bonus
    steps: float = 0.0  # a share for right steps if the standard cases fail, in its own column
    late: Late | None = None
    assignment: str = "original"  # for which files without step markers were written
    zero: bool = False  # whether those who handed in nothing have 0 points once it is too late
    adds_steps: bool = False  # whether what right steps bring is in the points, too
    ignore: tuple[str, ...] = ()  # patterns of names of files in which no one writes an answer

    def full(self, number: int) -> float:
        """The most points of a stage."""
        return self.points.get(number, STAGES[number].points)


@dataclass(frozen=True)
class Override:
    """A person's decision on points, or on the days, which are then those of all stages."""

    student: str
    stage: int | None  # None: all
    points: float | None
    reason: str  # shown to the student
    note: str = ""  # only on the instructors' page
    days_late: int | None = None


def read(path: Path | None) -> Policy:
    """Read policy.toml.  Raises ValueError: it is not a policy."""
    if path is None:
        return Policy()
    if not path.is_file():
        raise ValueError(f"--policy: want a policy.toml; got {path}")

    def wrong(want: str, got: object) -> ValueError:
        shown = ", ".join(f"{name} = {each}" for name, each in got.items()) or "nothing" \
            if isinstance(got, dict) else str(got) if isinstance(got, date) else \
            "none" if got is None else repr(got)
        return ValueError(f"--policy: want {want}; got {shown} in {path}")

    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise wrong("TOML", str(error)) from None
    if unknown := set(given) - {"points", "shares", "optional", "steps", "late", "assignment",
                                "missing", "step_credit", "ignore"}:
        raise wrong("points, shares, optional, steps, step_credit, missing, ignore, late and "
                    "assignment only", sorted(unknown)[0])
    points, shares = given.get("points", {}), given.get("shares", SHARES)
    stages = {str(number) for number in STAGES}
    if not isinstance(points, dict) or not set(points) <= stages \
            or not all(map(_is_amount, points.values())):
        raise wrong(f"points such as 4 = 150, of stages 1-{max(STAGES)}", points)
    if not isinstance(shares, dict) or set(shares) != set(SHARES) \
            or not all(map(_is_amount, shares.values())) or abs(sum(shares.values()) - 1) > 1e-6:
        raise wrong(f"shares of {', '.join(SHARES)} that make 1", shares)
    for name, words in (("assignment", ASSIGNMENTS), ("missing", ("keep", "zero")),
                        ("step_credit", ("apart", "points"))):
        if given.get(name, words[0]) not in words:
            raise wrong(f"{name} = " + " or ".join(f'"{word}"' for word in words), given[name])
    optional = given.get("optional", [])
    if not isinstance(optional, list) \
            or not all(type(number) is int and number in STAGES for number in optional):
        raise wrong("optional = [8, 9] or the like", optional)
    ignore = given.get("ignore", [])
    if not isinstance(ignore, list) or not all(isinstance(name, str) for name in ignore):
        raise wrong('ignore = ["report.pdf", "*.png"] or the like', ignore)
    steps = given.get("steps", 0.0)
    if not _is_amount(steps) or steps > shares["standard"]:
        raise wrong(f"steps of 0 to {shares['standard']:g}, the share of the standard cases", steps)
    return Policy({int(number): worth for number, worth in points.items()}, shares,
                  frozenset(optional), steps, _late(given.get("late"), wrong, path.parent),
                  given.get("assignment", "original"), given.get("missing") == "zero",
                  given.get("step_credit") == "points", tuple(ignore))


def _late(given: object, wrong: Callable[[str, object], ValueError], folder: Path
          ) -> Late | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not {"deadline"} <= set(given) <= {
            "deadline", "days", "per_day", "keep", "grace", "budget", "spent"}:
        raise wrong("[late] with a deadline, and perhaps grace, days, per_day, keep, budget and "
                    "spent", given)
    names = given.get("spent", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise wrong('spent = ["../hw1/results/grades.csv"] or the like', names)
    made = Late(**given | {"spent": tuple(row for name in names for row in _spent(folder / name))})
    for name, is_right, want in (
            ("deadline", type(made.deadline) is datetime,
             "deadline = 2026-11-30T23:59:00+01:00 or the like"),
            ("days", type(made.days) is int and made.days >= 0, "days of 0 or more"),
            ("budget", type(made.budget) is int and made.budget >= 0, "a budget of 0 days or more"),
            ("per_day", _is_amount(made.per_day) and made.per_day <= 1, "per_day of 0 to 1"),
            ("grace", _is_amount(made.grace), "grace of 0 or more minutes"),
            ("keep", made.keep in ("last", "best"), 'keep = "last" or "best"')):
        if not is_right:
            raise wrong(want, getattr(made, name))
    if "per_day" in given and "days" not in given:
        raise wrong("days beside per_day", None)
    return made


def _spent(path: Path) -> list[tuple[roster.Person, int]]:
    """Who has used how many days of the budget, by the grades.csv of another assignment."""
    _, rows = roster.table(path, "--policy: spent", ("student", "free_days"))
    found = []
    for row in rows:
        try:
            days = roster.whole(row["freedays"] or "0")
        except ValueError:
            raise ValueError("--policy: spent: want whole days in the column free_days; got "
                             f"{row['freedays']} of {row['student']} in {path}") from None
        found.append((roster.Person(row["student"], *(row.get(name, "") for name in (
            "id", "login", "email"))), days))
    return found


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_POINTS


def read_overrides(path: Path | None) -> list[Override]:
    """Read overrides.csv.  Raises ValueError: it is no such table."""
    if path is None:
        return []
    found, (_, rows) = [], roster.table(path, "--overrides", COLUMNS, ("note", "dayslate"))
    for line, row in enumerate(rows, start=2):
        if any(row.values()):
            try:
                found.append(_override(row))
            except ValueError:
                cells = ", ".join(row[name] or "-" for name in (*COLUMNS, "dayslate")
                                  if name in row)
                raise ValueError(
                    f"--overrides: want a student, a stage of 1-{max(STAGES)} or {ALL}, points or, "
                    f"for {ALL}, days_late, and a reason or a note; got {cells} in row {line} of "
                    f"{path}") from None
    return found


def _override(row: dict[str, str]) -> Override:
    """Read one row.  Raises ValueError: it is not an override."""
    stage = None if row["stage"] == ALL else int(row["stage"].lower().removeprefix("p"))
    points = roster.number(row["points"]) if row["points"] else None
    days = roster.whole(row["dayslate"]) if row.get("dayslate") else None
    given = Override(row["student"], stage, points, escape(row["reason"]),
                     escape(row.get("note", "")), days)
    if not given.student or stage is not None and stage not in STAGES \
            or not (given.reason or given.note) or (points is None) == (days is None) \
            or points is not None and not _is_amount(points) \
            or days is not None and (stage is not None or days < 0):
        raise ValueError
    return given


def one(word: str, students: list[Submitted], option: str) -> Submitted:
    """The student with this name (its words in any order), id, login or address.  Raises
    ValueError: there is none, or several."""
    may_be = roster.match(roster.Person(word, word), [student.person for student in students])
    namesakes = [student for student in students if student.person.name == word]
    found = [student for student in students if word in (student.name, student.key)] or [
        student for student in students if student.person in may_be]
    found = namesakes if len(namesakes) > 1 else found
    if len(found) != 1:
        raise ValueError(f"{option}: want the name, id, login or e-mail of one student; got "
                         f"{word}, which matches {len(found) or 'no student'}")
    return found[0]


def by_student(overrides: list[Override], students: list[Submitted], stages: list[int],
               policy: Policy) -> dict[str, list[Override]]:
    """A student's key -> their overrides.  Raises ValueError: one matches no student or several,
    names another stage or too many points, or repeats a stage of the same student."""
    found: dict[str, list[Override]] = {}
    for given in overrides:
        word = given.student
        theirs = found.setdefault(one(word, students, "--overrides").key, [])
        if given.stage not in (None, *stages):
            raise ValueError("--overrides: want stages that are graded (--stages); got "
                             f"P{given.stage} of {word}")
        most = min(policy.full(number) for number in stages if given.stage in (None, number))
        if (given.points or 0) > most:
            raise ValueError(f"--overrides: want points of 0 to {most:g}; got {given.points:g} for "
                             f"{word}, {f'P{given.stage}' if given.stage else ALL}")
        if policy.late and (given.days_late or 0) > policy.late.days:
            raise ValueError(
                f"--overrides: want days_late of 0 to {policy.late.days}, the days that count; got "
                f"{given.days_late} for {word}: write 0 if an extension covers them, or points, "
                "such as 0, if it does not count")
        if (given.stage, given.points is None) in {(o.stage, o.points is None) for o in theirs}:
            raise ValueError("--overrides: want one row for a stage; got two for "
                             f"{word}, {f'P{given.stage}' if given.stage else ALL}")
        theirs.append(given)
    return found


def that_count(student: Submitted, rules: Late | None, overrides: list[Override] = ()
               ) -> list[Submitted]:
    """The hand-ins of a student that are graded, by time."""
    given = list(student.hand_ins) or [student]
    if rules and len(given) > 1 and all(each.days_late is None for each in overrides):
        rules = rules.until(student.extension)
        in_time = [each for each in given if rules.days_of(each.time) <= rules.days]
        if in_time and in_time[-1] is not given[-1]:
            in_time = [replace(each, aside=tuple(dict.fromkeys((*each.aside, TOO_LATE))))
                       for each in in_time]
        given = in_time or given[-1:]
    return given if rules and rules.keep == "best" else given[-1:]


def apply(report: dict, policy: Policy, overrides: list[Override] = (), spent: int = 0,
          doubtful: int = 0) -> None:
    """Put the points into a student's report.  spent, doubtful: as in late.apply()."""
    stages = report["stages"]
    extended = next((each for each in overrides if each.days_late is not None), None)
    share = late.apply(report, policy.late, extended, spent, doubtful)
    words = {each.stage: each for each in overrides if each.points is not None}
    given = {stage["stage"]: words.get(stage["stage"], words.get(None)) for stage in stages
             if {stage["stage"], None} & set(words)}
    penalty = 0.0
    for stage in stages:
        _worth(stage, policy, 1.0)
        full = stage["points"]
        _worth(stage, policy, share)
        if extended and report.get("state") not in EMPTY:  # else for what will be handed in
            stage["days_set"] = {"days": extended.days_late, "reason": extended.reason}
        if word := given.get(stage["stage"]):
            stage["override"] = {
                "points": word.points, "reason": word.reason, "was": stage["points"]}
            stage["points"], stage["step_credit"] = word.points, 0.0
        else:
            penalty += full - stage["points"]
    report["late_penalty"] = round(penalty, 2)  # points
    report["unsettled"] = [number for number in not_settled(stages) if number not in given]
    is_kept = False
    if report.get("state") not in EMPTY and not extended:
        report["held"] += [DRAFT] * report.get("status", "").lower().startswith(DRAFTS)
    report["held"] = report["held"] if len(given) < len(stages) else []
    report["notes"] += report["held"]
    if report.get("state") in EMPTY:
        until = late.read(report["extension"] or "")
        rules = (policy.late or until and late.Late(until) or None)
        if extended or rules and not rules.until(until).is_over():
            report["state"] = OPEN
        is_kept = not given and not (policy.zero and report["state"] != OPEN)
    report["points"] = None if for_a_person(report) or report["held"] or is_kept else round(
        sum(stage["points"] for stage in stages), 2)
    report["max_points"] = sum(stage["max_points"] for stage in stages
                               if stage["stage"] not in policy.optional)
    report["step_credit"] = round(sum(stage["step_credit"] for stage in stages), 2) \
        if policy.steps else None
    report["steps_added"] = policy.adds_steps


def at_most(report: dict) -> tuple[float, bool]:
    """-> the most points a hand-in can have once all of it is graded; whether nothing is left to
    grade, which decides between equals.  Refused files are not left to grade; points that a person
    set for other files may change."""
    is_newer = NEWER.format("points") in report["held"]
    waits = [stage["stage"] in report["unsettled"] and stage["outcome"] != "refused"
             or is_newer and "override" in stage for stage in report["stages"]]
    return sum(stage["max_points" if waiting else "points"] for stage, waiting in zip(
        report["stages"], waits, strict=True)), not any(waits)


def _worth(stage: dict, policy: Policy, share: float) -> None:
    """Give a stage its points.  share: what lateness leaves of them."""
    earned = stage["earned"]
    lights = [step["light"] for step in stage.get("steps", ())]
    asked = {"right", "wrong"} & set(lights) and stage["outcome"] != "rejected"
    credit = policy.steps * lights.count("right") / len(lights) \
        if asked and "standard" not in earned else 0.0
    worth = stage["max_points"] = policy.full(stage["stage"])
    stage["step_credit"] = round(worth * share * credit, 2)
    stage["points"] = round(float(worth * share * sum(map(policy.shares.get, earned)))
                            + stage["step_credit"] * policy.adds_steps, 2)
