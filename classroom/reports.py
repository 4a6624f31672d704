"""Makes each student's report, which is their JSON, and of all reports grades.csv and junit.xml.
What is undecided has no points, and neither has a sum with it."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

from classroom import roster
from classroom.gather import Submitted
from classroom.store import Store, Unit
from grader.assignment.record import sha256
from grader.course.stages import STAGES
from grader.report.results import told
from grader.text import escape

FORMAT = 2  # version of a student's JSON
WORDS = {"pass": "passed", "wrong": "wrong", "crashed": "crashed", "unfinished": "unfinished",
         "timeout": "timed out", "rejected": "rejected", "not_started": "not started",
         "missing": "missing", "refused": "refused", "skipped": "skipped",
         "grader_fault": "blocked", "pending": "pending"}
UNSETTLED = {"pending", "grader_fault", "skipped", "refused"}
GRADED, PENDING, UNREAD, NOTHING = "graded", "pending", "could not be read", "handed in nothing"
OPEN = "open"  # nothing was handed in yet, and it still may be
EMPTY = {NOTHING, OPEN}
FORMULA = ("=", "+", "-", "@", "\t")  # a spreadsheet would take such a cell for a formula
UNCONFIRMED = "it timed out beside other files, and counts once it has been run on its own: the " \
    "same command goes on"
DETAIL_LINES = 12  # of a traceback, or of a file's output
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def student_report(student: Submitted, stages: list[int], store: Store) -> dict:
    """A student's results, before grades.apply() gives points; its stages are those of the
    autograder's JSON, with more keys."""
    others = sorted({*student.files, *student.refused} - {*stages})  # of stages left out
    if not student.trouble and others and not {*student.files, *student.refused} & {*stages}:
        student = replace(student, trouble="no file of a problem that is graded is in it, but "
                          + ", ".join(STAGES[number].filename for number in others))
    records = {number: store.known.get(Unit(number, sha256(data)))
               for number, data in student.files.items()}
    found = [stage_report(student, number, records.get(number)) for number in stages]
    return {
        "format": FORMAT, "student": student.name, "key": student.key,
        "state": _state(student, found),
        **{name: escape(getattr(student.person, name)) for name in (
            "id", "login", "email", "system", "team")},
        "also": [[kind, escape(value)] for kind, value in student.person.also],  # more numbers
        "returns": student.returns,
        **asdict(store.settings),
        **dict.fromkeys(("points", "max_points", "unsettled", "held", "late_days", "free_days",
                         "late", "late_penalty", "step_credit")),
        "passed": sum(stage["outcome"] == "pass" for stage in found),
        "refused": student.trouble or None, "refused_sha256": student.refusal or None,
        "notes": [*student.notes, *unchecked(found)],
        "aside": list(student.aside), "ungraded": [] if student.trouble else others,
        "others": [],  # hand-ins that do not count
        "handed_in": student.time.isoformat() if student.time else None,
        "marked_late": student.marked_late, "status": escape(student.person.status),
        "extension": student.extension.isoformat() if student.extension else None,
        "as_published": None,  # own statements found in a published solution, of how many
        "differs": differences(student.report, found), "stages": found}


def not_settled(stages: list[dict]) -> list[int]:
    """The numbers of the undecided stages."""
    return [stage["stage"] for stage in stages if stage["outcome"] in UNSETTLED]


def _state(student: Submitted, found: list[dict]) -> str:
    outcomes = {stage["outcome"] for stage in found} - {"missing"}
    if student.is_nothing:
        return NOTHING
    if student.trouble or outcomes == {"refused"}:
        return UNREAD
    return PENDING if "pending" in outcomes else GRADED


def is_graded(report: dict) -> bool:
    """Whether a student handed something in and all of it is decided, perhaps by a person."""
    return report["points"] is not None and report["state"] not in EMPTY


def for_a_person(report: dict) -> list[dict]:
    """The undecided stages, and rejected ones without an override."""
    return [stage for stage in report["stages"] if stage["stage"] in report["unsettled"]
            or stage["outcome"] == "rejected" and "override" not in stage]


def undecided(report: dict) -> set[str]:
    """Why a student has no grade until a person, or another run, decides."""
    return {*(WORDS[stage["outcome"]] for stage in for_a_person(report)),
            *(re.split("[,:]", why)[0] for why in report["held"])}


def to_look_at(report: dict) -> bool:
    """Whether a person has to look at something before this student's grade counts."""
    return bool(for_a_person(report) or report["notes"])


def differences(report: bytes, found: list[dict]) -> list[str]:
    """Where the report that a student handed in differs from what was found."""
    if not report:
        return []
    try:
        said = {stage["stage"]: (stage["sha256"], str(stage["outcome"]), float(stage["points"]))
                for each in json.loads(report)["reports"].values() for stage in each["stages"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ["the report that was handed in cannot be read"]
    lines = []
    for stage in found:
        now = "crashed" if stage["outcome"] == "unfinished" else stage["outcome"]
        digest, outcome, points = said.get(stage["stage"], (None, "", 0.0))
        if not outcome or stage["outcome"] in UNSETTLED:
            continue
        if digest != stage["sha256"]:
            lines.append(f"P{stage['stage']}: their report is of another file")
        elif (outcome, points) != (now, stage["points"]):
            lines.append(f"P{stage['stage']}: {now}, {stage['points']:g} points; "
                         f"their report said {escape(outcome[:40])}, {points:g}")
    return lines


def stage_report(student: Submitted, number: int, record: dict | None) -> dict:
    """One stage of a student.  record: the file's, if it was graded."""
    refusal = student.trouble or student.refused.get(number)
    data = student.files.get(number)
    if refusal:
        return without_checks(
            number, "refused", f"{STAGES[number].filename} was not taken: {refusal}")
    if data is None:
        return without_checks(number, "missing", f"no {STAGES[number].filename} was handed in")
    if record is None:
        return without_checks(number, "pending", "", sha256(data))
    if unconfirmed(record):
        return without_checks(number, "pending", UNCONFIRMED, record["stage"]["sha256"])
    stage = record["stage"]
    if stage["outcome"] == "crashed" and all(
            check["outcome"] == "pass" or (check["diagnosis"] or {}).get("id") == "blank-step"
            for check in stage["checks"] or [{"outcome": "crashed", "diagnosis": None}]):
        stage = stage | {"outcome": "unfinished"}
    return {**stage, **{name: record.get(name) for name in (
        "device", "torch", "triton", "seed", "account", "alone", "timing")},
        "line": _crashed_line(stage, data)}


def unconfirmed(record: dict) -> bool:
    """Whether what ran beside it may have caused a timeout, or left too little CPU time."""
    late = [record["stage"], *(check for check in record["stage"]["checks"]
                               if check["group"] != "beyond")]
    return not record["alone"] and any(
        each["outcome"] == "timeout" or each.get("not_checked") for each in late)


def unchecked(found: list[dict]) -> list[str]:
    """Sentences on cases that a busy machine did not let the autograder check, even alone."""
    counts = {stage["stage"]: sum(check.get("not_checked", False) for check in stage["checks"])
              for stage in found}
    return [f"P{number}: {count} of its cases could not be checked on a busy machine, which costs "
            "no points" for number, count in counts.items() if count]


def without_checks(number: int, outcome: str, message: str, digest: str | None = None) -> dict:
    """A stage without results.  digest: its file's, if it was to be graded."""
    stage = STAGES[number]
    return {"stage": number, "title": stage.title, "outcome": outcome, "points": 0.0,
            "max_points": stage.points, "earned": [], "sha256": digest, "seconds": 0.0,
            "message": message, "detail": "", "confined": [], "checks": [], "benchmark": None}


def _crashed_line(stage: dict, data: bytes) -> str:
    """The student's line in which a case crashed, "195: M, N = x.shapes", or "" """
    check = first_failure(stage) or {"outcome": "", "where": ""}
    match = re.fullmatch(r"problem_\d\.py:(\d+)", check["where"])
    if check["outcome"] != "crashed" or not match:
        return ""
    rows = data.decode(errors="replace").splitlines()
    return f"{match[1]}: {escape(rows[int(match[1]) - 1].strip())}" \
        if int(match[1]) <= len(rows) else ""


def read_reports(results: Path) -> list[dict]:
    """The students' JSON files.  Raises ValueError: there are none, or another version wrote
    them."""
    found = []
    for path in sorted((results / "students").glob("*.json")) or [results]:
        try:
            found.append(dict.fromkeys(("held", "aside", "ungraded", "others", "also"), ()) | {
                "free_days": None, "system": "", "team": "", "refused_sha256": None, "status": "",
                "extension": None, "late_penalty": 0.0} | json.loads(path.read_bytes()))
            if found[-1]["format"] != FORMAT:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError("RESULTS: want the folder that `grade` wrote, of this version; got "
                             f"{path}") from None
    return found


def person_of(report: dict) -> roster.Person:
    return roster.Person(*(report[name] for name in ("student", "id", "login", "email")),
                         system=report["system"], team=report["team"], status=report["status"],
                         extension=report["extension"] or "",
                         also=tuple(map(tuple, report["also"])))


def as_json(report: dict) -> bytes:
    return (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode()


def first_failure(stage: dict) -> dict | None:
    """The first deciding check that did not pass."""
    return next((check for check in stage["checks"]
                 if check["outcome"] != "pass" and check["group"] != "beyond"), None)


def named(stage: dict) -> dict[str, str]:
    """The mistakes in a stage that did not pass: id -> words.  They come from the red steps or, if
    there are none, from the first failing case."""
    red = {step["mistake"] or f"step {step['id']}": f"step {step['id']}: {told(step)}"
           for step in stage.get("steps", ()) if step["light"] == "wrong"}
    check = first_failure(stage)
    if not red and check and check["diagnosis"]:
        return {check["diagnosis"]["id"]: check["diagnosis"]["text"]}
    return red


def explanation(stage: dict) -> str:
    """What the autograder said about a stage that did not pass: the mistake, the case that shows
    it, the student's line if it crashed, and each red step with its rule."""
    check = first_failure(stage)
    red = [f"step {step['id']}, run on its own: {step['text']}" for step in stage.get("steps", ())
           if step["light"] == "wrong"]
    crash = "\n".join(stage["detail"].splitlines()[-DETAIL_LINES:])
    line = stage.get("line") and f"line {stage['line']}"
    return "\n".join(filter(None, (
        *([*named(stage).values()][:1] if red else ()), stage["message"], crash,
        check and check["message"], line, *red)))


def grades_csv(reports: list[dict]) -> bytes:
    """grades.csv: one row per student, with empty cells for what is undecided."""
    numbers = [stage["stage"] for stage in reports[0]["stages"]]
    table = [["student", "id", "login", "email", "state", "points", "max_points", "passed",
              "step_credit", "handed_in", "late_days", "free_days", "unsettled", "refused",
              "notes", "as_published", *(f"p{n}" for n in numbers),
              *(f"p{n}_outcome" for n in numbers)]]
    for report in reports:
        stages, is_open = report["stages"], for_a_person(report)
        kept = report["points"] is None and report["state"] in EMPTY
        table.append([
            *(plain(report[name]) for name in ("student", "id", "login", "email")), report["state"],
            *(report[name] for name in ("points", "max_points", "passed", "step_credit",
                                        "handed_in", "late_days", "free_days")),
            " ".join(f"p{n}" for n in report["unsettled"]),
            plain(report["refused"] or "; ".join(
                stage["message"] for stage in stages if stage["outcome"] == "refused")),
            plain("; ".join(report["notes"])),
            "{} of {}".format(*report["as_published"]) if report["as_published"] else "",
            *(None if stage in is_open or report["held"] or kept else stage["points"]
              for stage in stages),
            *(stage["outcome"] for stage in stages)])
    return roster.written(table)


def plain(text: str) -> str:
    """Text for a cell that no spreadsheet takes for a formula."""
    return "'" + text if text.lstrip("'").startswith(FORMULA) else text


def junit(reports: list[dict]) -> bytes:
    """junit.xml: one suite per student, one case per stage.  What is undecided does not fail."""
    root = ElementTree.Element("testsuites", name="class")
    for report in reports:
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(report["student"]))
        counts = {"failure": 0, "error": 0, "skipped": 0}
        for stage in report["stages"]:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(report["student"]),
                name=f"P{stage['stage']} {stage['title']}", time=f"{stage['seconds']:.3f}")
            outcome = stage["outcome"]
            if outcome == "pass":
                continue
            kind = {"grader_fault": "error", "skipped": "skipped", "pending": "skipped",
                    "refused": "error"}.get(outcome, "failure")
            counts[kind] += 1
            said = _xml(explanation(stage))
            element = ElementTree.SubElement(case, kind, type=outcome, message=said.partition(
                "\n")[0] or outcome)
            element.text = said
        suite.attrib |= {"tests": str(len(report["stages"])), "failures": str(counts["failure"]),
                         "errors": str(counts["error"]), "skipped": str(counts["skipped"])}
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _xml(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
