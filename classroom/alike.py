"""Whose files are alike: lists to look at, not verdicts.

    equal         files that are the same, byte by byte
    pairs         students whose own statements are alike in runs of RUN, names, spacing, comments
                  and statements without effect aside; left out is every run that the published
                  solutions have as well, or more than MOST_STUDENTS students
    published     of a student's own statements, how many stand so in a published solution
    incomparable  files of which only the bytes can be compared

A student's own is what stands in the solution regions that are not carried over.
"""

import ast
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from classroom.gather import Submitted
from grader.assignment import submission
from grader.assignment.record import ROOT, sha256
from grader.course.stages import STAGES
from grader.text import syntax_tree

RUN = 4  # statements that have to be alike one after the other
LEAST_LINES = 15  # alike, over all stages, to be listed
MOST_STUDENTS = 3
TOKEN = re.compile(r"""(?P<name>(?<![\w.])[^\W\d]\w*)|\w[\w.]*|"[^"]*"|'[^']*'|[^\s\w]+""")
PARTS = ("body", "orelse", "finalbody", "handlers", "cases")  # of a statement: other statements


@dataclass(frozen=True)
class Alike:
    """equal: {"students": names, "stages"}; pairs: {"students": two names, "lines": how many are
    alike, "stages"}, most first; published: name -> (statements, of how many); incomparable:
    {"student", "stages", "why"}."""

    equal: list[dict]
    pairs: list[dict]
    published: dict[str, tuple[int, int]]
    incomparable: list[dict]


def alike(students: list[Submitted], stages: list[int]) -> Alike:
    """What the files of these stages have in common."""
    shipped = {run for number in STAGES
               for run in _runs(_own((ROOT / f"problem_{number}.py").read_bytes())[0])}
    plain = {student.name: {n: submission.plain(data) for n, data in student.files.items()
                            if n in stages} for student in students}
    read = {data: _own(data) for files in plain.values() for data in files.values()}
    same, why = defaultdict(set), defaultdict(list)
    owners, shared = defaultdict(set), defaultdict(lambda: defaultdict(set))
    for name, files in plain.items():
        for number, data in files.items():
            lines, reason = read[data]
            if lines or reason and data.strip():
                same[number, sha256(data)].add(name)
            if reason:
                why[name, reason].append(number)
            for run in set(_runs(lines)) - shipped:
                owners[number, run].add(name)
    equal = defaultdict(list)
    for (number, _), names in sorted(same.items()):
        if len(names) > 1:
            equal[tuple(sorted(names))].append(number)
    for (number, run), names in owners.items():
        if len(names) <= MOST_STUDENTS:
            for one, other in combinations(sorted(names), 2):
                if plain[one][number] != plain[other][number]:
                    shared[one, other][number].add(run)
    pairs = []
    for pair, by_stage in shared.items():
        lines = Counter({number: min(_covered(read[plain[name][number]][0], runs)
                                     for name in pair) for number, runs in by_stage.items()})
        if lines.total() >= LEAST_LINES:
            pairs.append({"students": pair, "lines": lines.total(), "stages": sorted(lines)})
    every = {name: [read[data][0] for data in files.values()] for name, files in plain.items()}
    return Alike(
        [{"students": names, "stages": numbers} for names, numbers in sorted(
            equal.items(), key=lambda item: (-len(item[1]), item[0]))],
        sorted(pairs, key=lambda pair: (-pair["lines"], pair["students"])),
        {name: (sum(_covered(lines, shipped) for lines in files), sum(map(len, files)))
         for name, files in every.items() if any(files)},
        [{"student": name, "stages": numbers, "why": reason}
         for (name, reason), numbers in sorted(why.items())])


def _own(data: bytes) -> tuple[list[str], str]:
    """-> a file's own statements, made plain, in order; why there are none that can be compared."""
    try:
        text = submission.decode(submission.plain(data))
        regions = submission.steps(text)
        tree = syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], "no Python, or damaged markers"
    if not regions:
        return [], "no markers"
    own = {line for step in regions if not step.origin
           for line in range(step.first_line, step.last_line)}
    try:
        found = [node for node in _statements(tree) if node.lineno in own]
        found.sort(key=lambda node: (node.lineno, node.col_offset))
        return [line for line in map(_plain, found) if line], ""
    except (ValueError, RecursionError):
        return [], "no Python, or damaged markers"


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All that are in it, at any depth."""
    for part in PARTS:
        for inner in getattr(node, part, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from _statements(inner)


def _plain(node: ast.stmt) -> str:
    """A statement without those in it, its own names all the same; "" if it has no effect."""
    for part in PARTS:
        if isinstance(getattr(node, part, None), list):
            setattr(node, part, [])
    match node:
        case ast.Pass() | ast.Expr(ast.Constant() | ast.Name()) | ast.AnnAssign(value=None) \
                | ast.Assert(ast.Constant()):
            return ""
        case ast.Assign([ast.Name(one)], ast.Name(other)) if one == other:
            return ""
    text = ast.unparse(node)
    if text.startswith("raise NotImplementedError"):
        return ""
    return " ".join("n" if match["name"] and not keyword.iskeyword(match[0]) else match[0]
                    for match in TOKEN.finditer(text))


def _runs(lines: list[str]) -> list[str]:
    return ["\n".join(lines[i:i + RUN]) for i in range(len(lines) - RUN + 1)]


def _covered(lines: list[str], shared: set[str]) -> int:
    """How many lines stand in a shared run."""
    return len({i + k for i, run in enumerate(_runs(lines)) if run in shared for k in range(RUN)})
