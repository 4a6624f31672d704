"""What the evidence is worth: policy.toml and overrides.csv.

Both are applied when the tables are written: a change of them grades nothing again, and graded/
knows nothing of them.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from classroom import late, roster
from classroom.book import not_settled
from classroom.gather import Submitted
from classroom.late import Late
from grader.course.stages import STAGES
from grader.judge.points import SHARES
from grader.text import escape

COLUMNS = ("student", "stage", "points", "reason")  # and, if there is one, note
MOST_POINTS = 1e6
GRADE_AGAIN = "graded by an older grader with other shares, and its record does not say what was " \
    "earned: grade again"


@dataclass(frozen=True)
class Policy:
    """points: of each stage; shares: of a stage's points; optional: stages whose points are added,
    but not expected; steps: the share of a stage's points that right steps may bring where its
    standard cases fail, in a column of its own; late: what it costs to be late."""

    points: dict[int, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=lambda: SHARES)
    optional: frozenset[int] = frozenset()
    steps: float = 0.0
    late: Late | None = None


@dataclass(frozen=True)
class Override:
    """A person's word on one stage of one student: it is settled, and has these points.  reason:
    what the student reads; note: what only the instructors' page shows."""

    student: str
    stage: int
    points: float
    reason: str
    note: str = ""


def read(path: Path | None) -> Policy:
    """Raises ValueError: it is no policy."""
    if path is None:
        return Policy()
    if not path.is_file():
        raise ValueError(f"--policy: want a policy.toml; got {path}")

    def wrong(want: str, got: object) -> ValueError:
        return ValueError(f"--policy: want {want}; got {got!r} in {path}")

    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # no TOML, or not UTF-8
        raise wrong("TOML", str(error)) from None
    if unknown := set(given) - {"points", "shares", "optional", "steps", "late"}:
        raise wrong("points, shares, optional, steps and late only", sorted(unknown)[0])
    points, shares = given.get("points", {}), given.get("shares", SHARES)
    stages = {str(number) for number in STAGES}
    if not isinstance(points, dict) or not set(points) <= stages \
            or not all(map(_is_amount, points.values())):
        raise wrong(f"points such as 4 = 150, of stages 1-{max(STAGES)}", points)
    if not isinstance(shares, dict) or set(shares) != set(SHARES) \
            or not all(map(_is_amount, shares.values())) or abs(sum(shares.values()) - 1) > 1e-6:
        raise wrong(f"shares of {', '.join(SHARES)} that make 1", shares)
    optional = given.get("optional", [])
    if not isinstance(optional, list) \
            or not all(type(number) is int and number in STAGES for number in optional):
        raise wrong("optional = [8, 9] or the like", optional)
    steps = given.get("steps", 0.0)
    if not _is_amount(steps) or steps > shares["standard"]:
        raise wrong(f"steps of 0 to {shares['standard']:g}, the share of the standard cases", steps)
    return Policy({int(number): worth for number, worth in points.items()}, shares,
                  frozenset(optional), steps, _late(given.get("late"), wrong))


def _late(given: object, wrong: Callable[[str, object], ValueError]) -> Late | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not {"deadline"} <= set(given) <= {
            "deadline", "days", "per_day", "keep"}:
        raise wrong("late with deadline, and perhaps days, per_day and keep", given)
    made = Late(**given)
    if type(made.deadline) is not datetime:
        raise wrong("deadline = 2026-11-30T23:59:00+01:00 or the like", made.deadline)
    if type(made.days) is not int or made.days < 0:
        raise wrong("days of 0 or more", made.days)
    if not _is_amount(made.per_day) or made.per_day > 1:
        raise wrong("per_day of 0 to 1", made.per_day)
    if made.keep not in ("last", "best"):
        raise wrong('keep = "last" or "best"', made.keep)
    return made


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_POINTS


def read_overrides(path: Path | None) -> list[Override]:
    """Raises ValueError: it is no such table."""
    if path is None:
        return []
    found, (_, rows) = [], roster.table(path, "--overrides", COLUMNS, ("note",))
    for line, row in enumerate(rows, start=2):
        if not any(row.values()):
            continue
        stage, points = row["stage"].lower().removeprefix("p"), row["points"].replace(",", ".")
        try:
            given = Override(row["student"], int(stage), float(points), escape(row["reason"]),
                             escape(row.get("note", "")))
        except ValueError:
            given = None
        if given is None or not given.student or given.stage not in STAGES \
                or not _is_amount(given.points) or not (given.reason or given.note):
            cells = ", ".join(row[name] or "-" for name in COLUMNS)
            raise ValueError(f"--overrides: want a student, a stage of 1-{max(STAGES)}, points and "
                             f"a reason or a note; got {cells} in row {line} of {path}")
        found.append(given)
    return found


def by_student(overrides: list[Override], students: list[Submitted], stages: list[int]
               ) -> dict[str, list[Override]]:
    """A student's key -> the overrides of theirs.

    Raises:
        ValueError: one is nobody's, may be that of several, is of no stage of these, or there are
            two for one stage of a student.
    """
    found: dict[str, list[Override]] = {}
    for given in overrides:
        keys = [student.key for student in students if given.student in (
            student.name, student.key, student.person.id, student.person.login,
            student.person.email)]
        if len(keys) != 1:
            raise ValueError("--overrides: want the name, id, login or e-mail of one student; got "
                             f"{given.student}, which is that of {len(keys) or 'nobody'}")
        theirs = found.setdefault(keys[0], [])
        if given.stage not in stages:
            raise ValueError("--overrides: want stages that are graded (--stages); got "
                             f"P{given.stage} of {given.student}")
        if given.stage in {other.stage for other in theirs}:
            raise ValueError("--overrides: want one row for a stage; got two for "
                             f"{given.student}, P{given.stage}")
        theirs.append(given)
    return found


def that_count(student: Submitted, rules: Late | None) -> list[Submitted]:
    """Which of a student's hand-ins are graded, in the order of their times."""
    given = list(student.hand_ins) or [student]
    if rules is None or len(given) == 1:
        return given[-1:]
    in_time = [each for each in given if rules.days_of(each.time) <= rules.days]
    if rules.keep == "best":
        return in_time or given[-1:]
    return (in_time or given)[-1:]


def apply(report: dict, policy: Policy, overrides: list[Override] = ()) -> None:
    """Put into a student's report what it is worth.  Only the evidence in it counts, so that it
    replaces whatever another policy said before."""
    stages, given = report["stages"], {each.stage: each for each in overrides}
    share = late.apply(report, policy.late)
    for stage in stages:
        _worth(stage, policy, share)
        stage.pop("override", None)
        if word := given.get(stage["stage"]):
            stage["override"] = {"reason": word.reason, "was": stage["points"]}
            stage["points"] = word.points
    report["unsettled"] = [number for number in not_settled(stages) if number not in given]
    report["points"] = None if report["unsettled"] else round(
        sum(stage["points"] for stage in stages), 2)
    report["max_points"] = sum(stage["max_points"] for stage in stages
                               if stage["stage"] not in policy.optional)
    report["step_credit"] = round(sum(stage["step_credit"] for stage in stages), 2) \
        if policy.steps else None


def _worth(stage: dict, policy: Policy, share: float) -> None:
    """share: what is left of the points for being late."""
    full = STAGES[stage["stage"]].points
    if "earned" not in stage:
        stage["earned"] = _earned(stage, full)
    if stage["earned"] is None:
        stage |= {"outcome": "pending", "message": GRADE_AGAIN}
    earned = stage["earned"] or []
    lights = [step["light"] for step in stage.get("steps", ())]
    asked = {"right", "wrong"} & set(lights) and stage["outcome"] != "rejected"
    credit = policy.steps * lights.count("right") / len(lights) \
        if asked and "standard" not in earned else 0.0
    worth = stage["max_points"] = policy.points.get(stage["stage"], full)
    stage["points"] = round(float(worth * share * sum(map(policy.shares.get, earned))), 2)
    stage["step_credit"] = round(worth * share * credit, 2)


def _earned(stage: dict, full: float) -> list[str] | None:
    """The groups that a record of an older grader must have earned: by its points, where they and
    its failed checks leave one possibility; else None."""
    failed = {check["group"] for check in stage["checks"] if check["outcome"] != "pass"}
    robust = ["robust"] if "walk" in failed else ["robust", "walk"]
    found = [groups for groups in ([], ["standard"], robust, ["standard", *robust])
             if not failed & set(groups)
             and abs(full * sum(map(SHARES.get, groups)) - stage["points"]) < 0.01]
    return found[0] if len(found) == 1 else None
