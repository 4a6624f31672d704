"""Compares a run with the grades given so far: who is still in the class, and what would change."""

import contextlib
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from classroom import late, roster, store
from classroom.gather import MOODLE, NOT_LISTED, SYSTEMS, Submitted, file_name, numbered
from classroom.grades import DRAFTS, NEWER, Policy, one, that_count
from classroom.reports import EMPTY, for_a_person, person_of
from grader.assignment.record import sha256
from grader.course.stages import STAGES
from grader.text import escape

EARLIER = "earlier and not late"
STALE = "newer than its time in the worksheet: download worksheet and submissions again"
REFUSED = "refused.zip"  # beside a student's files: what was handed in and in part refused
OTHERS = "others.zip"  # beside them: those of every hand-in, if there are several, by its time
ABSENT = "has a hand-in of theirs"  # in a worksheet
BY_MATE = "by another student of team "
FORMER = "by now another student's hand-in: an override says the points"


def everyone(students: list[Submitted], earlier: list[dict], results: Path, typed: bool,
             timed: bool) -> tuple[list[Submitted], dict[str, dict], dict[str, bool]]:
    """Everyone in SUBMISSIONS or on the roster, and everyone of earlier runs who is not, or not
    with any file.  typed: whether a person typed the times, and not only those of a roster; timed:
    whether times decide anything.  -> the students by name; key -> their last report; key of each
    student kept from earlier runs -> whether they are still on the roster."""
    people = {student.person: student for student in students}
    known = {student.key: student for student in students}
    stands, kept = {}, {}
    given = defaultdict(set)  # a hand-in -> the keys of whose it is
    for student in students:
        for each in student.hand_ins or (student,):
            given[each.time, frozenset(each.files.items())].add(student.key)
    before = {old["key"]: person_of(old) for old in earlier}
    differ = roster.differing(before.values(), people, *SYSTEMS)
    for old in sorted(earlier, key=lambda old: old["key"] not in known):
        now, was = known.get(old["key"]), before[old["key"]]
        if now is not None and differ(was, now.person):  # a namesake
            name = f"{now.name} ({now.person.known[0][1]})"
            other = people[now.person] = replace(known.pop(now.key), name=name, key=file_name(name))
            known[other.key], now = other, None
        if now is None:  # a roster may have given the same person another name
            may_be = roster.match(was, list(people), differ)
            now = people[may_be[0]] if len(may_be) == 1 else None
        moved = partial(_is_moved, now.key if now else "", given, earlier)
        is_theirs = FORMER not in old["notes"] and not moved(
            _as_it_was(old, results, Submitted("", "")))
        old = old | {"others": [each for each in old["others"] if not moved(_hand_in(
            Submitted("", ""), each, _packed(results, old, each["handed_in"]), {}))]}
        is_gone = now is None or now.key in stands
        if is_gone or now.is_nothing and old["state"] not in EMPTY and ABSENT not in (
                old["refused"] or ""):
            now = _as_it_was(old, results, Submitted(old["student"], old["key"], person=was)
                             if is_gone else replace(now, person=_extended(now, old)))
            kept[now.key] = _with_others(old, results, now) if is_theirs else _former(now)
        elif is_theirs and not (now.hand_ins or _is_by_mate(old["aside"])):
            is_typed = typed or now.person.typed
            known[now.key] = _with_others(
                old, results, _again(old, results, now, is_typed, timed), is_typed)
        stands[now.key] = old
    everybody = known | kept
    return (sorted(everybody.values(), key=lambda student: (student.name.casefold(), student.key)),
            stands, {key: key in known for key in kept})


def in_teams(students: list[Submitted], kept: dict[str, bool], rules: late.Late | None,
             stages: list[int]) -> list[Submitted]:
    """The students with what another one of their team handed in, if nothing counts that they
    handed in themselves, and with what the system says about it.  kept: as everyone() has it."""
    ranks = {student.key: _rank(student, rules, stages) for student in students
             if student.person.team}
    return [student if kept.get(student.key) is False else _in_team(student, [
        mate for mate in students if mate is not student and mate.key in ranks
        and mate.person.team == student.person.team], ranks) for student in students]


def _rank(student: Submitted, rules: late.Late | None, stages: list[int]) -> int:
    """What of a student counts first in a team: 3 what they handed in themselves, 2 what is not
    here, 1 what is blank or after the last day, 0 nothing."""
    if _is_by_mate(student.aside):
        return 0
    if student.is_nothing:
        return 2 * student.is_due
    theirs = rules and rules.until(student.extension)
    return 3 if any(not each.is_blank(stages) and not (
        theirs and each.time and theirs.days_of(each.time) > theirs.days)
        for each in that_count(student, rules)) else 1


def _in_team(student: Submitted, mates: list[Submitted], ranks: dict[str, int]) -> Submitted:
    most, mine = max((ranks[mate.key] for mate in mates), default=0), ranks.get(student.key)
    if not most:
        return _former(student) if _is_by_mate(student.aside) else student
    mates = [mate for mate in mates if ranks[mate.key] == most]
    said = f"team {escape(student.person.team)}: " + ", ".join(mate.name for mate in mates)
    if mine >= most:
        return replace(student, notes=(*student.notes, f"{said} handed in other files")) if any(
            mate.files != student.files for mate in mates if not mate.is_nothing) else student
    aside = f"{BY_MATE}{escape(student.person.team)}, for the whole team"
    if any(mate.files != mates[0].files for mate in mates):
        return Submitted(student.name, student.key, person=student.person, aside=(aside,),
                         trouble=f"{said} handed in files that differ", returns=student.returns)
    mate = min(mates, key=lambda mate: mate.person.status.lower().startswith(DRAFTS))
    person, theirs = student.person, mate.person
    status = f"{theirs.status.partition(' - ')[0]} - {person.status.partition(' - ')[2]}"
    person = replace(person, handed_in=theirs.handed_in, typed=theirs.typed,
                     status=status.strip(" -"))
    returns = student.returns or f"{person.name}_{person.id}_assignsubmission_file/" * (
        person.system == "moodle" and bool(MOODLE.match(mate.returns)))
    notes = (f"{said} handed in what counts: their own is blank or too late",) * (mine == 1)
    first, *made = (replace(
        each, name=student.name, key=student.key, person=person, returns=returns, mate=mate.name,
        notes=each.notes + notes, aside=(*each.aside, aside)) for each in (mate, *mate.hand_ins))
    return replace(first, hand_ins=numbered(made, student.key))


def _is_by_mate(aside: Iterable[str]) -> bool:
    return any(line.startswith(BY_MATE) for line in aside)


def _is_moved(key: str, given: dict[tuple, set[str]], earlier: list[dict], was: Submitted) -> bool:
    """Whether an earlier hand-in is not the student's of this key now, but that of somebody who did
    not have it before.  given: as in everyone()."""
    owners = given.get((was.time, frozenset(was.files.items())), set()) if was.files else set()
    hashes = {number: sha256(data) for number, data in was.files.items() if owners}
    return bool(owners) and key not in owners and not owners <= {
        old["key"] for old in earlier if all(
            stage["sha256"] == hashes.get(stage["stage"]) for stage in old["stages"])
        or was.time and was.time.isoformat() in [each["handed_in"] for each in old["others"]]}


def _former(student: Submitted) -> Submitted:
    """A student with what is not known to be theirs any more."""
    return replace(student, hand_ins=(), notes=tuple(dict.fromkeys((*student.notes, FORMER))))


def _as_it_was(old: dict, results: Path, student: Submitted) -> Submitted:
    """A student with the files of an earlier run."""
    folder = results / "submissions" / old["key"]
    files = {number: path.read_bytes() for number in STAGES
             if (path := folder / f"problem_{number}.py").is_file()}
    if any(stage["sha256"] != sha256(files[stage["stage"]]) for stage in old["stages"]
           if stage["sha256"] and stage["stage"] in files):  # a killed run wrote newer ones
        files = _packed(results, old, old["handed_in"]) or files
    refused = {stage["stage"]: stage["message"].partition(" was not taken: ")[2]
               for stage in old["stages"] if stage["outcome"] == "refused"
               and stage["stage"] not in files}  # there was a file, and something else was missing
    return _hand_in(Submitted(student.name, student.key, person=student.person,
                              returns=old["returns"]), old, files, refused)


def _hand_in(student: Submitted, old: dict, files: dict[int, bytes], refused: dict[int, str]
             ) -> Submitted:
    """A student with one hand-in.  old: what a report says about it."""
    return replace(
        student, files=files, refused=refused, trouble=old["refused"] or "", hand_ins=(),
        refusal=old["refused_sha256"] or "", marked_late=old["marked_late"],
        aside=tuple(old["aside"]),
        time=datetime.fromisoformat(old["handed_in"]) if old["handed_in"] else None)


def _again(old: dict, results: Path, now: Submitted, typed: bool, timed: bool) -> Submitted:
    """A student with what an earlier run had, too, if it is older: a download has the newest.  The
    same files with another time that was typed are one hand-in whose time was corrected.  Of
    what Canvas marks LATE the days are not known: then a person reads what the earlier one had.
    Other files with the same time of a worksheet wait for a newer worksheet, and so does an
    earlier time than before, unless no time decides anything and the files are the same."""
    if now.marked_late and now.time is None:
        had = [f"{EARLIER}, with {old['points']:g} points"] if old["points"] is not None \
            and not (old["marked_late"] or old["state"] in EMPTY) else [
                line for line in old["aside"] if line.startswith(EARLIER)]
        return replace(now, aside=(*now.aside, *had))
    was = replace(_as_it_was(old, results, now), returns=now.returns, notes=now.notes)
    if now.time is None and was.files == now.files and "".join(now.notes).startswith(NOT_LISTED):
        return replace(now, time=was.time, person=_extended(now, old))
    if was.is_nothing or not (was.time and now.time):
        return now
    back = was.time.timestamp() - now.time.timestamp()
    if not typed and now.time == late.read(now.person.handed_in) and (
            back > 0 and (timed or was.files != now.files)
            or back == 0 and timed and _is_changed(was, now)):
        return replace(was, notes=(*now.notes, STALE))
    return now if back >= 0 or typed and was.files == now.files else replace(
        now, hand_ins=numbered((was, now), now.key))


def _with_others(old: dict, results: Path, now: Submitted, typed: bool = False) -> Submitted:
    """A student with the hand-ins that did not count in an earlier run, too, because they may count
    by another policy.  typed: as in everyone(); then one that is later, or has the same files, is
    not theirs any more."""
    theirs = list(now.hand_ins or (now,))
    if not (old["others"] and now.time):
        return now
    for each in old["others"]:
        other = _hand_in(now, each, _packed(results, old, each["handed_in"]), {
            int(stage): why for stage, why in each["not_taken"].items()})
        if not (other.is_nothing or typed and (
                other.files == now.files or other.time.timestamp() >= now.time.timestamp())):
            theirs.append(other)
    by_time = {each.time.timestamp(): each for each in reversed(theirs)}
    return replace(now, hand_ins=numbered(map(by_time.get, sorted(by_time)), now.key))


def others(student: Submitted, chosen: Submitted) -> tuple[list[dict], dict[str, bytes]]:
    """-> what a report says about a student's hand-ins besides the one that counts; the files of
    all of them."""
    found = [each for each in student.hand_ins if each.time != chosen.time]
    return [{"handed_in": each.time.isoformat(), "not_taken": each.refused,
             "refused": each.trouble, "refused_sha256": each.refusal,
             "marked_late": each.marked_late, "aside": list(each.aside)} for each in found], {
        _in_others(each.time.isoformat(), stage): data for each in student.hand_ins
        for stage, data in each.files.items()}


def _in_others(time: str, stage: int) -> str:
    return f"{time.replace(':', '.')}/problem_{stage}.py"


def _packed(results: Path, old: dict, time: str) -> dict[int, bytes]:
    """The files of the hand-in of this time, if there were several."""
    path = results / "submissions" / old["key"] / OTHERS
    if not path.is_file():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {stage: archive.read(name) for stage in STAGES
                if (name := _in_others(time, stage)) in archive.namelist()}


def _extended(now: Submitted, old: dict) -> roster.Person:
    """The person, with what an earlier run's tables said if those of now say nothing."""
    return now.person if now.person.status or now.person.extension else replace(
        now.person, status=old["status"], extension=old["extension"] or "")


def _is_changed(was: Submitted, now: Submitted) -> bool:
    """Whether files are other ones, and not only refused now, or not any more."""
    return not (was.trouble or now.trouble) and any(
        was.files.get(stage) != now.files.get(stage)
        for stage in {*was.files, *now.files} - {*was.refused, *now.refused})


def hold(report: dict, old: dict | None) -> None:
    """Let no points and no days that a person set count for what was handed in after that, until
    they or their reason change, and no time that is not theirs.  old: the report of the run
    before."""
    held, notes = [why for why in (STALE, FORMER) if why in report["notes"] and not all(
        "override" in stage for stage in report["stages"])], []
    before = {stage["stage"]: stage for stage in old["stages"]} if old else {}
    for stage in report["stages"]:
        was, now = before.get(stage["stage"], {}), _handed_in(report, stage)
        for name, what in (("override", "points"), ("days_set", "days")):
            if word := stage.get(name):
                earlier = {"points": was.get("points")} | was.get(name, {"reason": None})
                is_same = all(earlier.get(key) == word[key] for key in (what, "reason"))
                word["of"] = earlier.get("of", _handed_in(old, was)) if is_same else now
                if word["of"] != now and (what == "points" or "override" not in stage):
                    held.append(NEWER.format(what))
                    notes.append(f"P{stage['stage']}: " * (what == "points") + held[-1])
    report["held"] += dict.fromkeys(held)
    report["notes"] += dict.fromkeys(notes)
    report["points"] = None if held else report["points"]


def _handed_in(report: dict, stage: dict) -> str | None:
    """A hash of what was handed in for a stage."""
    return report["refused_sha256"] if stage["outcome"] == "refused" else stage["sha256"]


def check_words(students: list[Submitted], listed: str, timed: bool) -> None:
    """Raises ValueError: the tables, listed, have a status or an extension that cannot be read, or,
    if it is timed, a time."""
    for student in students:
        person, status = student.person, student.person.status
        if not roster.STATUS.match(status):
            raise ValueError(
                "want a status that begins with Submitted, Draft or No submission; got "
                f"{status} of {person.shown} in {listed}: download the worksheet with Moodle in "
                "English, or add a column submission_status with these words, and a column "
                "extension with the time until which one runs")
        cells = {"handed_in": person.handed_in * timed, "extension": person.extension
                 or status * ("extension" in status.lower() and student.extension is None)}
        for column, cell in cells.items():
            if cell.strip("- ") and late.read(cell) is None:
                raise ValueError(
                    "want times such as 2026-11-30T23:59:00+01:00, or as Moodle writes them in "
                    f"English; got {cell} of {person.shown} in {listed}: add a column {column} "
                    "with such times")


def absent(students: list[Submitted], submissions: Path, listed: str, policy: Policy
           ) -> list[Submitted]:
    """The students, those refused of whom the tables, listed, have a hand-in that is not here.
    Raises ValueError: at least half of the class has no files although their time is over, as when
    SUBMISSIONS is packed in another way."""
    rules = policy.late and replace(policy.late, days=0)  # by then most have handed in
    gone = [student for student in students if student.is_nothing and (
        student.is_due or not rules or rules.until(student.extension).is_over())]
    others = [student.name for student in students
              if "".join(student.notes).startswith(NOT_LISTED)]
    here = sum(not student.is_nothing for student in students) - len(others)
    if len(gone) >= max(1, here):
        known = [name for name in ("name", "id", "login", "email") if any(
            getattr(student.person, name) for student in students if student.is_nothing)]
        raise ValueError(
            f"SUBMISSIONS: want files of most of the {len(gone) + here} students of {listed} "
            f"who should have handed in; {len(gone)} of them have none in {submissions}"
            + f", but {', '.join(others[:3])}, not known by {' or '.join(known)}" * bool(others)
            + ": give the whole download as it was made, or a table with more of the columns name, "
            "id, login and e-mail, or say --partial if the others are not to be here")
    return [replace(student, trouble=f"{listed} {ABSENT}" + " or of their team" * bool(student.mate)
                    + f", and {submissions.name} does not")
            if student.is_nothing and student.is_due else student
            for student in students]


def outputs(key: str) -> list[str]:
    """The files about a student in RESULTS."""
    return [f"students/{key}.json", f"feedback/{key}.md", f"feedback/{key}.html",
            *(f"submissions/{key}/problem_{number}.py" for number in STAGES),
            *(f"submissions/{key}/{name}" for name in (REFUSED, OTHERS))]


def forget(results: Path, key: str) -> None:
    """Remove all about a student, except the records in graded/, which name no one."""
    names = {*outputs(key), f"questions/{key}.html", f"answers-{key}.html", "answers.html"}
    for name in names:
        (results / name).unlink(missing_ok=True)
    store.forget(results, {*names, f"{key}.json"})
    with contextlib.suppress(OSError):
        (results / "submissions" / key).rmdir()  # other files in it are not ours


def grade_again(words: list[str], students: list[Submitted],
                counting: dict[str, list[Submitted]], results: Path) -> None:
    """Set aside the records that --again names, "anna", or "anna:4" for one stage: the first
    becomes NAME.json.1.  counting: a student's key -> the hand-ins that may count."""
    for word in words:
        name, _, stage = word.rpartition(":") if re.search(r":\d+$", word) else (word, "", "*")
        for each in counting[one(name, students, "--again").key]:
            for number, data in each.files.items():
                for path in results.glob(f"graded/{number}-{sha256(data)}-*.json"):
                    if stage in ("*", str(number)):
                        count = len([*path.parent.glob(f"{path.name}.*")])
                        path.rename(f"{path}.{count + 1}")


def changes(old: dict, new: dict) -> str:
    """How a grade changes: "P2 100 of 100 -> 0 of 100, all 100 of 100 -> ..."; "" if it does
    not."""
    return ", ".join(f"{what} {was} -> {now}" for what, was, now in moved(grades(old), grades(new))
                     if was)


def moved(before: dict[str, str], after: dict[str, str]) -> list[tuple[str, str, str]]:
    """The grades that changed: which, from what or "", to what."""
    every = ((what, before.get(what, ""), after.get(what, "not settled"))
             for what in after | before)
    return [each for each in every if each[1] != each[2]]


def grades(report: dict) -> dict[str, str]:
    """The grades that are decided."""
    if report["state"] in EMPTY and report["points"] is None:
        return {}
    found = {f"P{stage['stage']}": f"{stage['points']:g} of {stage['max_points']:g}"
             for stage in report["stages"]
             if not report["held"] and stage not in for_a_person(report)}
    if report["step_credit"]:
        found["right steps"] = f"{report['step_credit']:g}"
    if report["points"] is not None:
        found["all"] = f"{report['points']:g} of {report['max_points']:g}"
    return found


def agreed(lines: list[str], yes: bool) -> bool:
    """Whether these changes may be made; asks a person, unless the command said yes."""
    if not lines:
        return True
    print(*lines, sep="\n", flush=True)
    if yes:
        return True
    question = f"Change {len(lines)} grade{'s' * (len(lines) > 1)}? [y/N] "
    try:
        return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False
