"""Computes how late work was handed in, and what that costs: [late] in policy.toml."""

import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from classroom.roster import Person, differing, match
from grader.text import escape

EXTENDED = re.compile(r"extension\b.*?\buntil:? (.+?)( - .*)?$", re.IGNORECASE)  # in a worksheet
FORMATS = [f"%A, {day}, {time}" for day in ("%d %B %Y", "%B %d, %Y")  # Moodle's, in English
           for time in ("%I:%M %p", "%H:%M")]
DAY = timedelta(days=1)
UNKNOWN = "marked as late, but not how late: an override says the days or the points"
SPENT = "late by free days that may be spent already: a roster with numbers, logins or addresses " \
    "says by which namesake"
DOUBTED = "marked as late, but in time ({}): an override says the days or the points"


@dataclass(frozen=True)
class Late:
    """The rules."""

    deadline: datetime  # without a zone, in that of the times
    days: int = 0  # the most that a hand-in may be late and still count
    per_day: float = 0.0  # the share of the points that each day costs
    keep: str = "last"  # which hand-in counts: the last one in time or the "best"
    grace: float = 0  # minutes late that cost nothing
    budget: int = 0  # days of a term that cost nothing
    spent: tuple[tuple[Person, int], ...] = ()  # who used how many of them

    def spent_by(self, people: list[Person]
                 ) -> tuple[dict[Person, int], dict[Person, int], list[str]]:
        """-> the days of the budget that each has used; those that each may have used, as somebody
        of that name did; a line for everyone who matches no student, or several."""
        found, doubts, lines = Counter(), Counter(), []
        differ = differing([person for person, _ in self.spent], people)
        for person, days in self.spent:
            theirs = match(person, people, differ)
            if len(theirs) == 1:
                found[theirs[0]] += days
            elif days:
                lines.append(f"spent: {escape(person.shown)} used {days} of the budget's days, and "
                             f"matches {'several students' if theirs else 'no student'}")
                doubts.update(dict.fromkeys(
                    theirs or match(person.unnumbered, people, differ), days))
        return found, doubts, lines

    def days_of(self, time: datetime) -> int:
        """The days begun after the deadline; 0 before it and within the grace period."""
        time, deadline = self.compared(time)
        late = time - deadline
        return math.ceil(late / DAY) if late > timedelta(minutes=self.grace) else 0

    def until(self, extension: datetime | None) -> "Late":
        """The rules for a student who has an extension."""
        if extension is None:
            return self
        later, deadline = self.compared(extension)
        return replace(self, deadline=later) if later > deadline else self

    def is_over(self) -> bool:
        """Whether nothing that is handed in now would count."""
        return self.days_of(datetime.now().astimezone()) > self.days

    def compared(self, time: datetime) -> tuple[datetime, datetime]:
        """A time and the deadline, made comparable."""
        deadline = self.deadline
        if (time.tzinfo is None) != (deadline.tzinfo is None):  # take the other's, or this host's
            if time.tzinfo is None:
                time = time.replace(tzinfo=deadline.tzinfo)
            else:
                deadline = deadline.astimezone()
        return time, deadline


def read(text: str) -> datetime | None:
    """Read a time: 2026-11-30T23:59:00+01:00 and the like, or as Moodle, Gradescope and nbgrader
    write it; None if it is none of these, or a date alone, which would mean its first second."""
    text = " ".join(text.split())  # newer versions of Moodle put another kind of space before PM
    text = re.sub(r" (Z|[+-]\d\d:?\d\d)$", r"\1", text)  # Ruby puts a space before the zone
    with suppress(ValueError):
        return datetime.fromisoformat(text) if re.search("[T ]", text) else None
    for form in FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, form)
    time, _, zone = text.rpartition(" ")  # nbgrader's: 2026-11-30 23:59:00.1 Europe/Berlin
    with suppress(ValueError, ZoneInfoNotFoundError, OSError):
        return datetime.fromisoformat(time).replace(tzinfo=ZoneInfo(zone))
    return None


def extension(status: str) -> datetime | None:
    """The time in Moodle's "No submission - Extension granted until: Friday, 4 December ..."."""
    found = EXTENDED.search(status)
    return read(found[1]) if found else None


def said(time: datetime) -> str:
    """ "2026-11-30 23:59 UTC+01:00", or a note that the zone is not known."""
    return f"{time:%Y-%m-%d %H:%M} " + (
        f"UTC{time.isoformat()[-6:]}" if time.tzinfo else "without a zone")


def apply(report: dict, late: Late | None, word=None, spent: int = 0,
          doubtful: int = 0) -> float:
    """Note in a report how late it is, and in "held" if a person has to say so, which is always the
    case if the learning system calls it late and no deadline is known.  word: an override of the
    days.  spent: days of the budget used before; doubtful: perhaps used.  -> the share of the
    points that remains."""
    report["late_days"], report["late"], report["held"], report["free_days"] = None, "", [], None
    if late is not None:
        late = late.until(read(report.get("extension") or ""))
    if word is not None:
        days = word.days_late
        late = late or Late(datetime.max, days)  # without a policy they cost nothing
    elif late is not None and report["handed_in"] is not None:
        given = read(report["handed_in"])
        time, deadline = late.compared(given)
        days = late.days_of(time)
        report["held"] += [DOUBTED.format(said(given))] * (
            report["marked_late"] and time <= deadline)
    else:
        report["held"] += [UNKNOWN] * report["marked_late"]
        return 1.0
    free, least = (min(days, max(0, late.budget - used)) if days <= late.days else 0
                   for used in (spent, spent + doubtful))
    report["held"] += [SPENT] * (least < free)
    report["late_days"], report["free_days"] = days, free if late.budget else None
    share = max(0.0, 1 - late.per_day * (days - free)) if days <= late.days else 0.0
    if days:
        report["late"] = f"{days} day{'s' * (days > 1)} late: " + (
            f"{100 * (1 - share):g} % of the points are taken off" if days <= late.days else
            f"more than the {late.days} that count") + f", {free} from the budget" * bool(free)
        if word is None:
            report["late"] += f" ({said(given)}; the deadline was {said(deadline)})"
    elif word is not None:
        report["late"] = "on time"
    if word is not None:
        report["late"] += " (set by a person" + f": {word.reason}" * bool(word.reason) + ")"
    return share
