"""Pairs of students whose own lines are alike: a list to look at, not a verdict.

Compared is what stands in the solution regions that a student wrote anew, names, spacing and
comments aside, in runs of RUN lines.  Left out is every run that the shipped solutions have as
well, or more than MOST_STUDENTS students: the course, or what the course suggests.
"""

import keyword
import re
from collections import Counter, defaultdict
from itertools import combinations

from classroom.gather import Submitted
from grader import submission
from grader.assignment import ROOT
from grader.stages import STAGES

RUN = 4  # lines that have to be alike one after the other
LEAST_LINES = 15  # alike, over all stages, to be listed
MOST_STUDENTS = 3
TOKEN = re.compile(r"""#.*|(?P<name>(?<![\w.])[^\W\d]\w*)|\w[\w.]*|"[^"]*"|'[^']*'|[^\s\w]+""")


def alike(students: list[Submitted], stages: list[int]) -> list[dict]:
    """-> {"students": their two names, "lines": how many are alike, "stages": in which}, most
    first."""
    shipped = {run for number in STAGES
               for run in _runs((ROOT / f"problem_{number}.py").read_bytes())}
    found: dict[str, dict[int, list[str]]] = {}  # student -> stage -> runs by their first line
    for student in students:
        found[student.name] = {n: _runs(data) for n, data in student.files.items() if n in stages}
    owners = defaultdict(set)
    for name, by_stage in found.items():
        for number, runs in by_stage.items():
            for run in set(runs) - shipped:
                owners[number, run].add(name)
    shared = defaultdict(lambda: defaultdict(set))
    for (number, run), names in owners.items():
        if len(names) <= MOST_STUDENTS:
            for pair in combinations(sorted(names), 2):
                shared[pair][number].add(run)
    pairs = []
    for pair, by_stage in shared.items():
        lines = Counter({number: min(_covered(found[name][number], runs) for name in pair)
                         for number, runs in by_stage.items()})
        if lines.total() >= LEAST_LINES:
            pairs.append({"students": pair, "lines": lines.total(), "stages": sorted(lines)})
    return sorted(pairs, key=lambda pair: (-pair["lines"], pair["students"]))


def _runs(data: bytes) -> list[str]:
    """Of a file's own lines, made plain, every RUN that follow each other; none where nothing can
    be compared: the markers are gone, or it is no Python."""
    try:
        text = submission.decode(submission.plain(data))
        regions = submission.steps(text)
    except (SyntaxError, ValueError):
        return []
    rows = submission.lines(text)
    plain = [line for step in regions if not step.origin
             for line in map(_plain, rows[step.first_line:step.last_line - 1]) if line]
    return ["\n".join(plain[i:i + RUN]) for i in range(len(plain) - RUN + 1)]


def _plain(row: str) -> str:
    """A line without spacing and comments, its own names all the same."""
    return " ".join(
        "n" if match["name"] and not keyword.iskeyword(match[0]) else match[0]
        for match in TOKEN.finditer(row) if not match[0].startswith("#"))


def _covered(runs: list[str], shared: set[str]) -> int:
    """How many lines stand in a shared run."""
    return len({i + k for i, run in enumerate(runs) if run in shared for k in range(RUN)})
