"""Finds a red step's mistake: the one change of the student's own text that makes it right.

Nothing here knows a solution.  The text is changed as edits.py says and run on the step's examples
again.  The student is told the place and the kind of the change, never the change itself.
"""

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from grader.step_checks.edits import Text
from grader.step_checks.examples import Example, Observed, Pointer, StepSpec
from grader.step_checks.sites import Source

MOST = 500  # changes to try
OTHERS = 100  # more to try after one that works, to see whether it is the only one
SECONDS = 0.3  # CPU time for one change on one example
WORDS = {  # the id of a mistake -> what to say about the place
    "wrong-comparison": "The comparison operator is wrong.",
    "wrong-flag": "The flag has the wrong value.",
    "wrong-operator": "{0} is the wrong operator.",
    "sides-exchanged": "The two sides are swapped.",
    "wrong-assignment": "Should this be = or +=?",
    "wrong-number": "{0} is the wrong value here.",
    "wrong-function": "{0} is the wrong function.",
    "wrong-axes": "The axes are wrong.",
    "wrong-name": "{0} is the wrong variable here.",
    "arguments-exchanged": "Two arguments are swapped.",
    "wrong-argument": "{0} is missing or wrong.",
    "wrong-dtype": "The dtype is wrong.",
    "one-missing": "{0} is missing.",
    "bound-missing": "This {0}.",
    "one-too-many": "{0} should not be there.",
    "wrong-grouping": "{0}.",
    "names-exchanged": "Two names are swapped.",
    "wrong-order": "This line is in the wrong place.",
    "line-too-many": "This line should not be there.",
    "wrong-condition": "The condition is too {0}.",
}
PLACE = "wrong-place"  # the id if changes of several kinds work there: only the place is known


@dataclass(frozen=True)
class Change:
    """A change that works.  quoted: the code in line `line` of file; part: the piece that is
    changed; said: what to say about it; span: its bytes; tier: as in Edit.

    text: the step with the change made; makes: the names that are right then, if not all are.
    is_elsewhere_too: a change of another line works, too.
    """

    id: str
    file: str
    line: int
    quoted: str
    part: str
    said: str
    span: tuple[int, int]
    tier: float
    text: str
    makes: str = ""
    is_elsewhere_too: bool = False

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def words(self) -> str:
        """What is wrong in that place."""
        makes = f" Fixing that makes {self.makes} right." if self.makes else ""
        return f"`{self.quoted}`. " * bool(self.quoted) + self.said + makes

    def among(self, others: list["Change"]) -> "Change":
        """What this change has in common with others that also make the step right."""
        if all((other.line, other.said) == (self.line, self.said) for other in others):
            same = all(other.quoted == self.quoted for other in others)
            return replace(self, quoted=self.quoted if same else "")
        if all((other.id, other.line) == ("one-missing", self.line) for other in (self, *others)):
            return self  # one change in several forms
        if self.part and all((other.span, other.part) == (self.span, self.part)
                             for other in others):
            return replace(self, id=PLACE, said=f"{self.part} is wrong here.")
        lines = sorted({other.line for other in others} - {self.line})
        either = f", or in line {' or '.join(map(str, lines))}" if lines else ""
        alike = not self.part and all(other.said == self.said for other in others)
        said = f"{self.said[:-1]} in" if alike else "The mistake is in"
        return replace(self, id=PLACE, quoted="", said=f"{said} this line{either}.",
                       is_elsewhere_too=bool(lines))


def changes(text: str, kinds: dict[str, str], leaves: tuple[str, ...], wrong: str = "",
            file: str = "", calls: tuple[str, ...] = (), likely: str = "") -> Iterator[Change]:
    """The changes to try on a step's text, the likeliest first.

    kinds: name -> kind(), for all names it may use.  leaves: the names it has to make.  wrong: the
    first of these that is wrong, "" where a loop visits wrong tiles; calls: what it calls for each.
    likely: the id of the changes to begin with.
    """
    whole, seen = Text(text, kinds, leaves, wrong, calls), {text}
    for edits in sorted(whole.all(), key=lambda edits: edits[0].id != likely):
        if (changed := whole.changed(edits)) in seen:
            continue
        seen.add(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(changed, "step", "exec", dont_inherit=True)
        except SyntaxError:
            continue
        first, *others = edits
        said = first.said or WORDS[first.id].format(first.part or "This")
        if alike := sorted({one.line for one in others} - {first.line}):
            said = f"{said[:-1]}, here and in line {' and '.join(map(str, alike))}{said[-1]}"
        yield Change(first.id, file, first.line, whole.quoted(first), first.part, said, (
            first.begin, first.end), first.tier, changed)
        if len(seen) > MOST:
            return


def remedies(text: str, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """Of a kernel's step: id of a mistake, the text without it, its line, and what is said of it.

    given: of an example.  The remedy is no secret here: it is Triton's, and not the lesson's.
    """
    fractions = {name for name, value in given.items() if kind(value)[-1:] == "f"
                 or isinstance(value, float)}
    source = Source(text, {}, (), "")
    nodes = [node for node in source.nodes if isinstance(node, ast.BinOp)
             and isinstance(node.op, ast.Div) and not fractions & {
                 one.id for one in ast.walk(node) if isinstance(one, ast.Name)}]
    if nodes:
        first = min(nodes, key=lambda node: node.lineno)
        between = [(source.span(node.left)[1], source.span(node.right)[0]) for node in nodes]
        yield "python-in-a-kernel", source.replaced([
            (begin, end, source.raw[begin:end].decode().replace("/", "//"))
            for begin, end in between]), first.lineno, (
            f"`{source.of(first)}` is a fraction, but a whole number is needed. Write // instead "
            "of /.")
    for loop in source.nodes:
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) \
                and loop.target.id in given:
            name, own = loop.target.id, [loop.target, *(node for part in loop.body
                                                        for node in ast.walk(part))]
            yield "loop-variable-taken", source.replaced([
                (*source.span(node), f"{name}_") for node in own
                if isinstance(node, ast.Name) and node.id == name]), loop.lineno, (
                f"The loop variable {name} overwrites the {name} that is needed later. Give it "
                "another name.")
    loads = [node for node in source.nodes if isinstance(node, ast.Call)
             and source.of(node.func).endswith(".load")
             and [word.arg for word in node.keywords].count("mask")
             and not [word.arg for word in node.keywords].count("other")]
    if loads:
        yield "load-without-other", source.replaced([
            (*[source.span(node)[1] - 1] * 2, ", other=0.0") for node in loads]), min(
            node.lineno for node in loads), (
            "tl.load has mask= but no other=, so the masked elements are undefined. Write "
            "other=0.0. The interpreter reads 0 there, so this may cost no points; a GPU may read "
            "anything.")


def printed(text: str, file: str) -> Iterator[str]:
    """What to say about the first print() in a kernel's step, if there is one."""
    for node in Source(text, {}, (), "").nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) \
                and node.func.id == "print":
            titled = node.args and isinstance(getattr(node.args[0], "value", None), str)
            where = "in every program" if titled else (  # Triton's own print needs a text first
                "which works in the interpreter and compiles for no GPU")
            yield (f"This is right, but {file}:{node.lineno} prints, {where}: remove that before "
                   "you submit.")
            return


def kind(value) -> str:
    """The kind of a value: only names of the same kind can replace each other."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"{value.ndim} {value.dtype.kind}"
    if isinstance(value, Pointer):
        return "pointer" if np.size(value.at) == 1 else "pointers"
    return {tuple: "tuple", str: "other", slice: "slice"}.get(type(value), "number")


def _makes(text: str, line: int, names: frozenset[str]) -> bool:
    """Whether one of these names is computed from what this line makes."""
    source = Source(text, {}, (), "")
    into = source.slice(set(names))
    return any(node.lineno <= line <= node.end_lineno and id(node) in into
               for node in source.body)


def line(text: str, leaves: tuple[str, ...], wrong: str, reads: str = "") -> int:
    """The line of the only statement that the wrong name depends on, and no right one before it; 0
    if there are several.  reads: it reads this name."""
    source = Source(text, {}, leaves, wrong)
    found = [node.lineno for node in source.body
             if id(node) in source.makes - source.makes_right and (not reads or reads in {
                 one.id for one in ast.walk(node) if isinstance(one, ast.Name)})]
    return found[0] if wrong and len(found) == 1 else 0


def find(text: str, asked: StepSpec, file: str, numbers: list[str],
         wrong: tuple[int, Observed, str], was: list[frozenset[str]],
         ask: Callable[[str, list[Example]], list[frozenset[str]] | None]) -> Change | None:
    """The change that makes a step exactly right; else one that makes some of its names right and
    the others no worse; else None.  If several of the same tier work, only what they have in common
    is said.

    text: the step's.  file: its name.  numbers: the file's global names that hold numbers.  wrong:
    the number of a wrong example, what the step left there, and the first wrong name.  was: the
    wrong names in each example.  ask(text, examples) -> the same for a changed step; None if that
    ended its worker.
    """
    (worst, left, name), examples = wrong, asked.examples()
    kinds = {given: kind(value) for given, value in examples[worst].given.items()}
    kinds |= dict.fromkeys(numbers, "number")
    for names in left.programs[:1]:
        kinds |= {made: kind(value) for made, value in names.items()}
    ends, partly, right, left_to_try = 0, None, [], OTHERS
    likely = {"shapes-do-not-broadcast": "wrong-axes"}.get((left.error or {}).get("id"), "")
    for change in changes(text, kinds, asked.leaves, name, file, tuple(asked.fakes), likely):
        if right:
            if change.tier != right[0].tier:
                continue
            left_to_try -= 1
            if not left_to_try:
                break
        found = ask(change.text, [examples[worst]])
        ends += found is None
        if ends > 2:
            break
        if found is None or not found[0] < was[worst] or partly and found[0]:
            continue
        everywhere = ask(change.text, examples) or []
        if len(everywhere) < len(examples):
            continue
        if not any(everywhere):
            right.append(change)
        if right or len(was) < len(examples):  # it crashed, so later examples are not known
            continue
        fixed = frozenset.union(*was) - frozenset.union(*everywhere)
        if fixed and all(map(str.isidentifier, fixed)) and _makes(
                text, change.line, fixed) and all(
                now <= old for now, old in zip(everywhere, was, strict=True)):
            partly = replace(change, makes=" and ".join(sorted(fixed)))
    # If a single name is wrong, exchanging two may work as well.
    right = [one for one in right if one.id != "names-exchanged"] or right
    return right[0].among(right[1:]) if right else partly
