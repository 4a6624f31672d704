"""Makes the page beside the editor, as HTML, from the template page.html.

Whatever comes from a submission (names, messages, source, output) stays text: the template escapes
everything that is not Markup, and only this folder makes Markup.
"""

import base64
import hashlib
import itertools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import FileSystemLoader
from markupsafe import Markup, escape

from grader.assignment import hints
from grader.assignment.submission import Submission, decode
from grader.course.stages import Stage
from grader.drawings import svg
from grader.page import pictures
from grader.report.results import Check, StageResult, told
from grader.text import lines as lines_of

LAST = f"hint {len(hints.RUNGS)} of {len(hints.RUNGS)}"  # as next_hint() says it
HERE = Path(__file__).parent
AROUND = 3  # lines of source above and below an error's line
MOST = 26  # lines shown of a step


@dataclass
class Shown:
    """One stage.  file: as it was graded; next: what to do next; is_whole: whether the tests have
    run; hints: those asked for on this page, by step; served: whether a button asks for them."""

    stage: Stage
    result: StageResult
    file: Submission
    next: str = ""
    is_whole: bool = True
    hints: dict[str, list[str]] = field(default_factory=dict)
    served: bool = False

    @property
    def red(self) -> list[dict]:
        return [step for step in self.result.steps if step["light"] == "wrong"]

    @property
    def failure(self) -> Check | None:
        """The first test that fails, if no step is red."""
        failed = (check for check in self.result.checks if check.group != "beyond"
                  and check.outcome not in ("pass", "skipped")
                  and (check.diagnosis or {}).get("id") != "blank-step")
        return None if self.red else next(failed, None)

    @property
    def to_write(self) -> tuple[str, str] | None:
        """-> the next blank step; its comment."""
        step = self.step(next(iter(self.file.to_write), ""))
        if step is None or self.red:
            return None
        rows = lines_of(decode(self.file.source))[step.first_line - 2::-1]
        comment = [*itertools.takewhile(lambda row: row.lstrip().startswith("#"), rows)][::-1]
        return step.id, "".join(re.sub(r"^\s*# ?", "", row) for row in comment
                                if "====" not in row).strip()

    def step(self, id: str):
        return next((step for step in self.file.steps if step.id == id), None)

    def lines(self, id: str, place: str, change: str) -> list[tuple[int, str, str, str]]:
        """The student's lines, of a step or around a place: number, and the text before, in and
        after the piece to mark, with which change begins, in backticks."""
        if self.file.source is None:
            return []
        rows = [row.rstrip("\r\n") for row in lines_of(decode(self.file.source))]
        found = re.search(rf"(?:{re.escape(self.stage.filename)}:|\bline )(\d+)", place)
        line = int(found[1]) if found and 0 < int(found[1]) <= len(rows) else None
        step = self.step(id) or self.file.step_at(line)
        first, last = (step.first_line + 1, step.last_line - 1) if step else (1, 0)
        if line and (not first <= line <= last or last - first >= MOST):
            first, last = max(1, line - AROUND), min(len(rows), line + AROUND)
        piece, shown = change.split("`")[1] if change.startswith("`") else "", []
        text = textwrap.dedent("\n".join(rows[first - 1:min(last, first + MOST - 1)]))
        for number, row in enumerate(text.split("\n") if last >= first else (), first):
            marked = (piece * (piece in row) or row.strip()) * (number == line)
            before, _, after = row.partition(marked) if marked else (row, "", "")
            shown.append((number, before, marked, after))
        return shown


environment = svg.environment.overlay(loader=FileSystemLoader(HERE))
environment.filters["code"] = lambda text: Markup(  # the parts in backticks
    re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
environment.globals |= {"last": LAST, "pictures": pictures, "draw": svg.draw, "told": told}


def document(shown: Sequence[Shown], progress: tuple[int, int] = (0, 0), live: bool = False) -> str:
    """The whole page.  progress: steps of the course that are written, and all; live: the page is
    served and renews itself."""
    script = (HERE / "page.js").read_text("utf-8")
    return environment.get_template("page.html").render(
        shown=shown, done=progress[0], of=progress[1], live=live, script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(svg.STYLE + svg.PANELS + (HERE / "page.css").read_text("utf-8")))
