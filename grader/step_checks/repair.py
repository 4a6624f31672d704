"""Where in a red step the mistake is: the one change of the student's own text that makes it right.

Nothing here knows a solution.  The step's text is changed as edits.py says, and asked on the step's
examples again.  What is said is the place and the kind of the change, never the change: that is the
student's to find.
"""

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from grader.step_checks.edits import Text
from grader.step_checks.examples import Example, Observed, Pointer, StepSpec
from grader.step_checks.sites import Source

MOST = 500  # changes that are tried
SECONDS = 0.3  # of CPU time for one of them on one example
WORDS = {  # the id of a mistake -> what is said of the place
    "wrong-comparison": "the comparison",
    "wrong-flag": "True stands for False, or False for True",
    "wrong-operator": "the operator",
    "sides-exchanged": "its two sides stand the wrong way round",
    "wrong-assignment": "= or +=",
    "wrong-number": "another number belongs in the place of {0}",
    "wrong-function": "another function belongs there",
    "wrong-axes": "its axes",
    "wrong-name": "another name belongs in the place of {0}",
    "arguments-exchanged": "two arguments stand the wrong way round",
    "wrong-argument": "its {0}",
    "wrong-dtype": "its dtype",
    "one-missing": "which lacks {0}",
    "bound-missing": "which lacks {0}",
    "one-too-many": "{0} is one too many",
    "wrong-grouping": "its parentheses: another part belongs together",
    "names-exchanged": "two names stand in each other's place",
    "wrong-order": "it stands in the wrong place among the lines",
    "line-too-many": "it is one line too many",
}

@dataclass(frozen=True)
class Change:
    """quoted: the code in line `line` of the file, part: the piece of it that is changed;
    text: the step's with the change made, makes: what of it is right then."""

    id: str
    line: int
    quoted: str
    part: str
    text: str
    makes: str = "it"

    def words(self) -> str:
        """What is said of it."""
        words = WORDS[self.id].format(self.part or "what stands there")
        return (f"one change makes {self.makes} right: line {self.line}, `{self.quoted}`, "
                f"{words}.")


def changes(text: str, kinds: dict[str, str], leaves: tuple[str, ...], wrong: str = ""
            ) -> Iterator[Change]:
    """What is tried of a step's text, the likeliest first.

    kinds: of the names that may stand in it, as kind() has them; leaves: names that it is to make;
    wrong: the first of them that is.
    """
    whole, seen = Text(text, kinds, leaves, wrong), {text}
    for edits in whole.all():
        if (changed := whole.changed(edits)) in seen:
            continue
        seen.add(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(changed, "step", "exec", dont_inherit=True)
        except SyntaxError:
            continue
        yield Change(edits[0].id, edits[0].line, whole.quoted(edits[0]),
                     edits[0].part, changed)
        if len(seen) > MOST:
            return


def remedies(text: str, given: dict) -> Iterator[tuple[str, str, str]]:
    """Of a kernel's step: id of a mistake, the text without it, and what is said of it.

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
            for begin, end in between]), (
            f"the mistake: line {first.lineno}, `{source.of(first)}` is a fraction, and a whole "
            "number is wanted. Write // in the place of /.")
    loads = [node for node in source.nodes if isinstance(node, ast.Call)
             and source.of(node.func).endswith(".load")
             and [word.arg for word in node.keywords].count("mask")
             and not [word.arg for word in node.keywords].count("other")]
    if loads:
        yield "load-without-other", source.replaced([
            (*[source.span(node)[1] - 1] * 2, ", other=0.0") for node in loads]), (
            f"the mistake: line {min(node.lineno for node in loads)}: tl.load has mask= and no "
            "other=: what the masked elements read is not said, and it counts here. Write "
            "other=0.0.")


def printed(text: str) -> Iterator[str]:
    """What is said of the first print() in a kernel's step, if there is one."""
    for node in Source(text, {}, (), "").nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) \
                and node.func.id == "print":
            titled = node.args and isinstance(getattr(node.args[0], "value", None), str)
            where = "in every program" if titled else (  # Triton's own print begins with a text
                "which works in the interpreter and compiles for no GPU")
            yield f"right, but line {node.lineno} prints, {where}: take it out before you hand in."
            return


def kind(value) -> str:
    """What may stand in the place of what."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"{value.ndim} {value.dtype.kind}"
    if isinstance(value, Pointer):
        return "pointer" if np.size(value.at) == 1 else "pointers"
    return {tuple: "tuple", str: "other"}.get(type(value), "number")


def _makes(text: str, line: int, names: frozenset[str]) -> bool:
    """Whether what a line of a step makes goes into one of these names."""
    source = Source(text, {}, (), "")
    into = source.slice(set(names))
    return any(node.lineno <= line <= node.end_lineno and id(node) in into
               for node in source.body)


def find(text: str, asked: StepSpec, numbers: list[str], wrong: tuple[int, Observed, str],
         was: list[frozenset[str]],
         ask: Callable[[str, list[Example]], list[frozenset[str]] | None]) -> Change | None:
    """The change that makes a step right, to the letter; else one that makes right some of the
    names that it leaves, and the others no worse; None where there is neither.

    text: of the step; numbers: names of the file that hold some; wrong: the number of an example
    that is, what the step leaves there, and the first name that is wrong; was: the names that are
    wrong in each example; ask(text, examples) -> the same of the changed step, None where it ended
    its worker.
    """
    (worst, left, name), examples = wrong, asked.examples()
    kinds = {given: kind(value) for given, value in examples[worst].given.items()}
    kinds |= dict.fromkeys(numbers, "number")
    for names in left.programs[:1]:
        kinds |= {made: kind(value) for made, value in names.items()}
    ends, partly = 0, None
    for change in changes(text, kinds, asked.leaves, name):
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
            return change
        if len(was) < len(examples):  # it crashed, and of later examples nothing is known
            continue
        fixed = frozenset.union(*was) - frozenset.union(*everywhere)
        if fixed and all(map(str.isidentifier, fixed)) and _makes(
                text, change.line, fixed) and all(
                now <= old for now, old in zip(everywhere, was, strict=True)):
            partly = replace(change, makes=" and ".join(sorted(fixed)))
    return partly
