"""Writes what goes back to each student, with nothing about others: feedback/NAME.md and .html, and
feedback.zip, in which they have the names that Moodle and Canvas expect."""

import re
import tomllib
from pathlib import Path

from markupsafe import Markup

from classroom.pages import rendered, zipped
from classroom.reports import EMPTY, UNSETTLED, explanation, for_a_person
from classroom.reports import WORDS as OUTCOMES
from grader.assignment.hints import HINTS_FILE, RUNGS
from grader.drawings import svg
from grader.page import pictures
from grader.report import overview

WORDS = {name: words for name, words in OUTCOMES.items() if name not in UNSETTLED} | {
    "rejected": "rejected: a person will look at it", "missing": "no file was handed in",
    "refused": "the file was not taken"}
LATER = "not settled yet; that is not because of your file"


def pages(report: dict) -> dict[str, bytes]:
    """A student's page as "md" and as "html"."""
    hints = tomllib.loads(HINTS_FILE.read_text("utf-8"))
    stages = []
    for stage in report["stages"]:
        number, steps = stage["stage"], stage.get("steps", [])
        failed = stage["outcome"] not in ("pass", "missing")
        red = [step["id"] for step in steps if step["light"] == "wrong"]
        stages.append(stage | {
            "word": (OUTCOMES if "override" in stage else WORDS).get(stage["outcome"], LATER),
            "settled": stage not in for_a_person(report),
            "lights": [f"{step['id']} {step['light']}" for step in steps
                       if step["light"] != "none"],
            "said": explanation(stage) if failed and stage["outcome"] in WORDS else "",
            "evidence": [(step["id"], pictures.evidence(found), found.get("tables", []))
                         for step in steps if (found := step.get("evidence"))] * failed,
            "hints": [(id, hints[id][RUNGS[0]].strip()) for id in red if id in hints] * failed,
            "commands": [f"{overview.alone(id, Path('.'))}" for id in red] * failed
            + [overview.program(number)] * (failed and stage["sha256"] is not None)})
    left = [] if report["refused"] else [
        f"P{stage['stage']} is {OUTCOMES[stage['outcome']]}" for stage in for_a_person(report)]
    left += [f"your submission is {why.rpartition(': ')[0]}" for why in report["held"]]
    points = None if report["points"] is None else \
        "{points:g} points of {max_points:g}".format_map(report)
    return {kind: rendered(f"feedback.{kind}", report=report, stages=stages, text=_text, left=left,
                           points=points, is_nothing=report["state"] in EMPTY,
                           draw=svg.draw, drawings=Markup(svg.STYLE + svg.PANELS))
            for kind in ("md", "html")}


def _text(words: str) -> str:
    """The words in one line, without any Markdown or tags."""
    return re.sub(r"([\\`\[<&])", r"\\\1", " ".join(words.split()))


def packed(reports: list[dict], made: dict[str, dict[str, bytes]]) -> bytes:
    """feedback.zip, with everyone who handed something in, and whose results are complete or whose
    files were refused.  made: key -> pages()."""
    has_names = any(report["returns"] for report in reports)  # of a system, which knows no others
    return zipped({(report["returns"] or f"{report['key']}/") + "feedback.html":
                   made[report["key"]]["html"] for report in reports if report["state"] not in EMPTY
                   and bool(report["returns"]) == has_names and not report["held"] and all(
                       stage["outcome"] == "refused" for stage in for_a_person(report))})
