"""Finds files that have runs of a student's own statements in common: lists, not verdicts."""

import ast
import functools
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from classroom.gather import Submitted
from grader.assignment import submission
from grader.assignment.record import ROOT, sha256
from grader.course.stages import STAGES
from grader.text import escape, syntax_tree

RUN = 4  # consecutive statements that have to be alike
LEAST_LINES = 15  # lines alike, over all stages, to be listed, unless a whole file is alike
BY_CHANCE = 8  # the most lines alike that independent files of one stage have
TOKEN = re.compile(r"""(?P<name>(?<![\w.])[^\W\d]\w*)|\w[\w.]*|"[^"]*"|'[^']*'|[^\s\w]+""")
PARTS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields that hold statements


@dataclass(frozen=True)
class Alike:
    """What was found.

    equal: {"students": names, "stages"}.  groups, of two or more who have lines in common that no
    published solution has, largest first: {"students": names, "lines": the fewest and the most of
    a student that no one outside of the group has, "text": name -> these lines, "stages"}.
    published: name -> (statements in a published solution, of how many).  incomparable, of which
    only the bytes can be compared: {"student", "stages", "why"}.
    """

    equal: list[dict]
    groups: list[dict]
    published: dict[str, tuple[int, int]]
    incomparable: list[dict]


class Own:
    """A student's own statements in one file.  covers: run -> its lines, one bit each; published:
    the lines in runs of a published solution, one bit each."""

    def __init__(self, data: bytes, shipped: frozenset[str]):
        self.sha256 = sha256(data)
        self.lines, self.shown, self.why = _own(data)
        covers = defaultdict(int)
        for i, run in enumerate(_runs(self.lines)):
            covers[run] |= (2**RUN - 1) << i
        self.published = _covered(covers, shipped)
        self.covers = {run: bits & ~self.published for run, bits in covers.items()
                       if run not in shipped}


def alike(students: list[Submitted], stages: list[int]) -> Alike:
    """What the files of these stages have in common."""
    shipped = _published()
    read: dict[bytes, Own] = {}
    files: dict[str, dict[int, Own]] = {}
    same, why, owners = defaultdict(set), defaultdict(list), defaultdict(set)
    for student in students:
        theirs = files[student.name] = {}
        for number, data in student.files.items():
            if number not in stages:
                continue
            data = submission.plain(data)
            own = theirs[number] = read.get(data) or read.setdefault(data, Own(data, shipped))
            if own.lines or own.why and data.strip():
                same[number, own.sha256].add(student.name)
            if own.why:
                why[student.name, own.why].append(number)
            for run in own.covers:
                owners[number, run].add(student.name)
    equal = defaultdict(list)
    for (number, _), names in sorted(same.items()):
        if len(names) > 1:
            equal[tuple(sorted(names))].append(number)
    found = [_described(names, files, owners) for names in _groups(files, owners)]
    counts = {name: (sum(own.published.bit_count() for own in theirs.values()),
                     sum(len(own.lines) for own in theirs.values()))
              for name, theirs in files.items()}
    return Alike(
        [{"students": names, "stages": numbers} for names, numbers in sorted(
            equal.items(), key=lambda item: (-len(item[1]), item[0]))],
        sorted((group for group in found if group["lines"][1] > BY_CHANCE),
               key=lambda group: (-group["lines"][1], group["students"])),
        {name: both for name, both in counts.items() if both[1]},
        [{"student": name, "stages": numbers, "why": reason}
         for (name, reason), numbers in sorted(why.items())])


def _groups(files: dict[str, dict[int, Own]], owners: dict[tuple[int, str], set[str]]
            ) -> Iterator[list[str]]:
    """Students connected by pairs with LEAST_LINES alike.  If that is most of the class, perhaps
    because of an example in the lecture, only runs that at most half of them have count.  owners:
    run -> the students who have it."""
    runs = defaultdict(lambda: defaultdict(set))
    for (number, run), names in owners.items():
        for name in names if len(names) > 1 else ():
            runs[name][number].add(run)
    group = {name: [name] for name in runs}
    for one, other in combinations(sorted(runs), 2):
        if group[one] is not group[other] and _lines(one, other, runs, files) >= LEAST_LINES:
            group[one] += group[other]
            group |= dict.fromkeys(group[one], group[one])
    for names in {id(names): sorted(names) for names in group.values() if len(names) > 1}.values():
        yield names
        if 2 * len(names) <= len(files):
            continue
        within = {key: common for key, some in owners.items()
                  if 2 <= len(common := some & set(names)) <= len(names) / 2}
        yield from _groups({name: files[name] for name in names}, within)


def _lines(one: str, other: str, runs: dict[str, dict[int, set[str]]],
           files: dict[str, dict[int, Own]]) -> int:
    """How many lines two students have in common, in files that are not equal."""
    total = 0
    for number in runs[one].keys() & runs[other].keys():
        common = runs[one][number] & runs[other][number]
        pair = files[one][number], files[other][number]
        if common and pair[0].sha256 != pair[1].sha256:
            lines = min(_covered(own.covers, common).bit_count() for own in pair)
            is_whole = pair[0].lines == pair[1].lines and lines > BY_CHANCE
            total += LEAST_LINES if is_whole else lines
    return total


def _described(names: list[str], files: dict[str, dict[int, Own]],
               owners: dict[tuple[int, str], set[str]]) -> dict:
    """A group, as Alike has it."""
    theirs = set(names)
    only = defaultdict(set)
    for (number, run), some in owners.items():
        if len(some) > 1 and some <= theirs:
            only[number].add(run)
    covered = {name: {number: _covered(own.covers, only[number])
                      for number, own in files[name].items()} for name in names}
    counts = [sum(map(int.bit_count, each.values())) for each in covered.values()]
    return {"students": tuple(names), "lines": (min(counts), max(counts)),
            "stages": sorted(number for number in only if only[number]),
            "text": {name: [f"P{number}, {line}" for number, bits in sorted(covered[name].items())
                            for i, line in enumerate(files[name][number].shown) if bits >> i & 1]
                     for name in names}}


@functools.cache
def _published() -> frozenset[str]:
    """The runs of all published solutions."""
    return frozenset(run for number in STAGES
                     for run in _runs(_own((ROOT / f"problem_{number}.py").read_bytes())[0]))


def _own(data: bytes) -> tuple[list[str], list[str], str]:
    """-> a file's own statements, normalised, in order; their first lines, with numbers; why
    nothing can be compared, or ""."""
    try:
        text = submission.decode(submission.plain(data))
        regions = submission.steps(text)
        own = {line for step in regions if not step.origin
               for line in range(step.first_line, step.last_line)}
        rows = text.splitlines()
        found = [syntax_tree(text)]
        for node in found:  # which grows by all statements in it, at any depth
            found += (inner for part in PARTS for inner in getattr(node, part, ()))
        found = [node for node in found if isinstance(node, ast.stmt) and node.lineno in own]
        found.sort(key=lambda node: (node.lineno, node.col_offset))
        plain = [(line, f"{node.lineno}: {escape(rows[node.lineno - 1].strip())}")
                 for node in found if (line := _plain(node))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], [], "no Python, or damaged markers"
    if not regions:
        return [], [], "no markers"
    return [line for line, _ in plain], [shown for _, shown in plain], ""


def _plain(node: ast.stmt) -> str:
    """A statement without nested ones, with all its own names replaced by the same; "" if it has no
    effect."""
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


def _covered(covers: dict[str, int], shared: set[str]) -> int:
    """The lines in a shared run, one bit each."""
    bits = 0
    for run in covers.keys() & shared:
        bits |= covers[run]
    return bits
