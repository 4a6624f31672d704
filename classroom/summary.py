"""Makes summary.html: the class on one page that needs no server and no network."""

import re
import shlex
import statistics
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path

from classroom.alike import Alike
from classroom.pages import rendered
from classroom.reports import UNSETTLED, WORDS, explanation, is_graded, named, to_look_at
from grader.host.doctor import CLOSED
from grader.report.screen import HELD

MOST_SHOWN = 12  # mistakes
QUIET = UNSETTLED | {"missing", "not_started", "unfinished"}  # they show no mistakes


def page(reports: list[dict], alike: Alike, now: datetime, results: Path,
         notes: dict[tuple, str]) -> bytes:
    """The page.  alike: from alike.py.  results: the folder, as commands should name it.  notes: on
    overrides, by a student's key and stage (None for all, or "late"); in no other file."""
    return rendered(
        "summary.html", reports=reports,
        stages=[_column(reports, i) for i in range(len(reports[0]["stages"]))],
        mistakes=mistakes(reports), steps=steps(reports), words=WORDS, alike=alike,
        explanation=explanation, quiet=QUIET,
        said=lambda report, stage: with_folder(
            explanation(stage), results / "submissions" / report["key"]),
        credited=reports[0]["step_credit"] is not None, facts=_facts(reports), now=now, notes=notes,
        look=[report for report in reports if to_look_at(report) or report["differs"]
              or report["aside"]
              or "set by a person" in report["late"] or any(
            "override" in stage for stage in report["stages"])])


def with_folder(text: str, folder: Path) -> str:
    """The text with a student's commands as an instructor would type them."""
    return re.sub(r"^(again: python \S+ --p\d)", lambda match: f"{match[1]} --submission "
                  + shlex.quote(str(folder)), text, flags=re.MULTILINE)


def mistakes(reports: list[dict]) -> list[dict]:
    """The most common mistakes; each counts once per student and stage."""
    texts = defaultdict(list)  # of one mistake, they differ only in numbers
    for stage in (stage for report in reports for stage in report["stages"]):
        if stage["outcome"] not in QUIET | {"pass"}:
            known = named(stage) or {stage["outcome"]: explanation(stage).partition("\n")[0]}
            for id, text in known.items():
                texts[stage["stage"], id].append(text)

    def said(id: str, found: list[str]) -> str:
        reasons = f"{WORDS[id]}, for several reasons; " if id in WORDS else ""
        return f"{reasons}one: {found[0]}" if len(set(found)) > 1 else found[0]

    return [{"stage": stage, "id": id, "count": len(found), "text": said(id, found),
             "share": len(found) / len(reports)} for (stage, id), found in sorted(
                 texts.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_SHOWN]]


def steps(reports: list[dict]) -> list[dict]:
    """Each step, with the names of the students who have it right, wrong or blank."""
    found: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        for step in (step for stage in report["stages"] for step in stage.get("steps", ())):
            found.setdefault(step["id"], {}).setdefault(step["light"], []).append(report["student"])
    return [{"id": id, **found[id]} for id in sorted(found, key=lambda id: [
        int(part) for part in id.split(".")])]


def _column(reports: list[dict], i: int) -> dict:
    """One stage over the class."""
    stages = [report["stages"][i] for report in reports]
    counts = Counter(stage["outcome"] for stage in stages)
    return {"stage": stages[0]["stage"], "title": stages[0]["title"], "total": len(stages),
            "counts": {name: counts[name] for name in WORDS if counts[name]}}


def _isolation(confined: list[str]) -> str:
    """What confined the files, and what was not closed on their machine."""
    held = [words for name, words in HELD.items() if name in confined and name != "user"]
    still = [words for name, words in CLOSED.items() if name not in confined]
    return (", ".join(held) or "without limits") + f"; open: {', '.join(still)}" * bool(still)


def _facts(reports: list[dict]) -> dict:
    graded = [stage for report in reports for stage in report["stages"] if "device" in stage]

    def distinct(name: str) -> str:
        return ", ".join(sorted({str(stage[name]) for stage in graded if stage[name]}))

    points = [report["points"] for report in filter(is_graded, reports)]
    held = Counter((stage["account"] or "an account that was not written down",
                    _isolation(stage["confined"]))
                   for stage in {stage["sha256"]: stage for stage in graded
                                 if stage["checks"]}.values())
    states = Counter(report["state"] for report in reports)
    return {"grader": reports[0]["grader"], "devices": distinct("device"),
            "torch": distinct("torch"), "triton": distinct("triton"), "held": held.most_common(),
            "median": statistics.median(points) if points else None, "settled": len(points),
            "max_points": reports[0]["max_points"], "states": sorted(states.items()),
            "everything": sum(report["passed"] == len(report["stages"]) for report in reports),
            "pending": sum(stage["outcome"] == "pending" for report in reports
                           for stage in report["stages"]),
            "seconds": sum({stage["sha256"]: stage["seconds"] for stage in graded}.values()),
            "files": len({(stage["stage"], stage["sha256"]) for stage in graded})}
