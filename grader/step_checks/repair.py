"""Finds a red step's mistake: the one change of the student's own text that makes it right.

Nothing here knows a solution.  The text is changed as edits.py says and run on the step's examples
again.  The student is told the place, and what is wrong or missing there.
"""

import ast
import itertools
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from grader.step_checks.edits import OPERATORS, Text
from grader.step_checks.examples import Example, Observed, Pointer, StepSpec
from grader.step_checks.sites import Source

MOST = 500  # changes to try, of one step
OTHERS = 100  # more to try after one that works, to see whether it is the only one
SECONDS = 0.3  # CPU time for one change on one example
TOGETHER = 8  # changes in one request
WORDS = {  # the id of a mistake -> what to say about the place
    "wrong-comparison": "The comparison operator is wrong.",
    "wrong-flag": "{0} has the wrong value.",
    "wrong-operator": "{0} is the wrong operator.",
    "sides-exchanged": "The two sides are swapped.",
    "wrong-assignment": "Should this be = or +=?",
    "wrong-number": "{0} is the wrong value here.",
    "wrong-function": "{0} is the wrong function.",
    "wrong-axes": "The axes are wrong.",
    "wrong-name": "{0} is the wrong variable here.",
    "arguments-exchanged": "Two arguments are swapped.",
    "wrong-argument": "The argument {0} is missing.",
    "wrong-dtype": "A dtype is wrong here.",
    "one-missing": "{0} is missing.",
    "bound-missing": "This value {0}.",
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
        axes = all(other.id == "wrong-axes" for other in (self, *others))
        what = WORDS["wrong-axes"] if axes else self.said
        alike = not self.part and (axes or all(other.said == what for other in others))
        said = f"{what[:-1]} in" if alike else "The mistake is in"
        return replace(self, id=PLACE, quoted="", said=f"{said} this line{either}.",
                       is_elsewhere_too=bool(lines))


def changes(text: str, kinds: dict[str, str], leaves: tuple[str, ...], wrong: str = "",
            file: str = "", calls: tuple[str, ...] = (), error: dict | None = None
            ) -> Iterator[Change]:
    """The changes to try on a step's text, the likeliest first.

    kinds: name -> kind(), for all names it may use.  leaves: the names it has to make.  wrong: the
    first of these that is wrong, "" where a loop visits wrong tiles; calls: what it calls for each.
    error: of an example that crashed.
    """
    whole, seen, error = Text(text, kinds, leaves, wrong, calls), {text}, error or {}
    shapes = error.get("id") == "shapes-do-not-broadcast"
    for edits in sorted(whole.all(error.get("line"), shapes), key=lambda edits: not (
            shapes and edits[0].id == "wrong-axes")):
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
        row, piece = text.split("\n")[first.line - 1], first.part.strip("`")
        if first.id == "one-too-many" and piece[:1] in "+-*/" and row.count(piece) > 1:
            said = f"{first.part} is there once too often."
        if alike := sorted({one.line for one in others} - {first.line}):
            said = said.removesuffix(".").removesuffix(" here")
            said += f", here and in line {' and '.join(map(str, alike))}."
        yield Change(first.id, file, first.line, whole.quoted(first), first.part, said, (
            first.begin, first.end), first.tier, changed)


def remedies(text: str, given: dict, leaves: tuple[str, ...], functions: dict[str, list[str]]
             ) -> Iterator[tuple[str, str, int, str]]:
    """Of a step: id of a mistake, the text without it, its line, and what is said of it.

    given: of an example.  functions: the arguments of the file's functions.  The remedy is no
    secret here: it is Python's or Triton's, and not the lesson's.
    """
    source = Source(text, {}, leaves, "")
    for make in (_of_a_kernel,) if source.kernel else (_of_pytorch, _of_sizes):
        yield from make(source, given)
    yield from _of_names(source, given)
    yield from _dropped(source, given)
    yield from _of_ranges(source)
    yield from _of_calls(source, given, functions)
    yield from _of_launches(source, given, functions)
    yield from _joined(source)
    yield from _of_blocks(source)


def _joined(source: Source) -> Iterator[tuple[str, str, int, str]]:
    """Comparisons without parentheses, joined by & or |, which come before them."""
    for node in source.nodes:
        sides = (node.left, *node.comparators) if isinstance(node, ast.Compare) else ()
        for side in sides if len(sides) == 2 else ():
            if isinstance(side, ast.BinOp) and isinstance(side.op, ast.BitAnd | ast.BitOr):
                left, right = map(source.of, sides)
                compared, sign = source.of(node)[len(left):-len(right)], OPERATORS[type(side.op)]
                near, far = (side.right, side.left) if side is node.left else (
                    side.left, side.right)
                meant = f"{source.of(near)}{compared}{right}" if side is node.left else \
                    f"{left}{compared}{source.of(near)}"
                yield "wrong-grouping", source.replaced([
                    (*source.span(node), f"(({source.of(far)}) {sign} ({meant}))")]), node.lineno, (
                    f"`{sign}` is computed before `{compared.strip()}`: put parentheses around "
                    f"`{meant}`.")


def _of_ranges(source: Source) -> Iterator[tuple[str, str, int, str]]:
    """An arange whose last argument is taken to be a length."""
    nodes = [node for node in source.nodes if isinstance(node, ast.Call) and len(node.args) == 2
             and source.of(node.func).endswith(".arange")
             and source.of(node.args[0]) != "0" and source.of(node.args[0]) not in source.of(
                 node.args[1])]
    if nodes:
        start, length = map(source.of, nodes[0].args)
        meant = source.of(nodes[0]).replace(f"{start}, ", "0, " * source.kernel, 1)
        yield "range-of-a-length", source.replaced([
            part for node in nodes for part in (
                (*[source.span(node)[0]] * 2, f"({source.of(node.args[0])} + "),
                (*source.span(node.args[0]), "0"), (*[source.span(node)[1]] * 2, ")"))
            ]), nodes[0].lineno, (
            f"`{_short(source.of(nodes[0]))}` ends before {length}: the second argument is an end, "
            f"not a length. Write {start} + {meant}")


def _of_calls(source: Source, given: dict, functions: dict[str, list[str]]
              ) -> Iterator[tuple[str, str, int, str]]:
    """An argument that calls of a function of the file lack, or have too many."""
    known = {*given, *source.bound}
    for name, arguments in functions.items():
        calls = [node for node in source.nodes if isinstance(node, ast.Call)
                 and source.of(getattr(node.func, "value", node.func)) == name]
        if not calls:
            continue
        for at, missing in enumerate(arguments):
            lacking = [node for node in calls if at <= len(node.args) and not any(
                getattr(one, "id", getattr(one, "arg", "")) == missing for one in ast.walk(node))]
            tensor = missing.removesuffix("_ptr")  # in a launch: x for x_ptr and for stride_xm
            strided = missing[len("stride_"):-1] if missing.startswith("stride_") else ""
            for value in [one for one in {missing: 0, tensor: 0} if one in known] + [
                    f"{strided}.stride({axis})" for axis in (0, 1) if strided in known]:
                if not lacking:
                    continue
                after = lacking[0].args[at:at + 1]
                yield "argument-missing", source.replaced([
                    (*[source.span(node.args[at])[0]] * 2, f"{value}, ") if at < len(node.args)
                    else (*[source.span(node.args[-1])[1]] * 2, f", {value}")
                    for node in lacking if node.args]), lacking[0].lineno, (
                    f"{missing} is missing in this call of {name}"
                    + _and_in([node.lineno for node in lacking])
                    + (f". It comes before `{source.of(after[0])}`." if after else "."))
        first = calls[0]
        for at, more in enumerate(first.args if len(first.args) > 1 else ()):
            if all(at + 1 < len(node.args) and source.of(node.args[at]) == source.of(more)
                   for node in calls):
                yield "argument-too-many", source.replaced([
                    (source.span(node.args[at])[0], source.span(node.args[at + 1])[0], "")
                    for node in calls]), first.lineno, (
                    f"`{source.of(more)}` is one argument too many in this call of {name}"
                    + _and_in([node.lineno for node in calls]) + ".")


def _of_launches(source: Source, given: dict, functions: dict[str, list[str]]
                 ) -> Iterator[tuple[str, str, int, str]]:
    """What a launch returns, kept as if it were the tensor; a tensor that is not allocated."""
    for node in source.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Subscript) \
                or source.of(node.func.value) not in functions:
            continue
        statement, begin = source.parents.get(node), source.span(node)[0]
        for name in dict.fromkeys(source.of(one) for one in node.args if isinstance(one, ast.Name)):
            if isinstance(statement, ast.Assign):
                target = source.of(statement.targets[0])
                yield "launch-kept", source.replaced([
                    (*source.span(statement), f"{source.of(node)}; {target} = {name}")
                    ]), statement.lineno, (
                    f"`{target} =` must not stand before a launch, which returns nothing: the "
                    f"result is in the tensor that the kernel is handed, {name}.")
            for other in given if name in source.leaves and name not in source.bound else ():
                yield "not-allocated", source.replaced([
                    (begin, begin, f"{name} = torch.empty_like({other}); ")]), node.lineno, (
                    f"{name} is still None here: allocate it before this launch.")


def _and_in(lines: list[int]) -> str:
    others = sorted({*lines[1:]} - {lines[0]})
    return f", and in line {' and '.join(map(str, others))}" if others else ""


def _of_blocks(source: Source) -> Iterator[tuple[str, str, int, str]]:
    """Lines that are indented too far, or not far enough."""
    rows = source.raw.decode().splitlines(keepends=True)

    def moved(nodes: list[ast.stmt], by: int) -> str:
        new = list(rows)
        for at in range(nodes[0].lineno - 1, nodes[-1].end_lineno):
            new[at] = " " * by + new[at] if by > 0 else new[at].removeprefix(" " * -by)
        return "".join(new)

    def said(nodes: list[ast.stmt], verb: str, block: ast.stmt) -> str:
        kind = {ast.For: "the loop", ast.While: "the loop"}.get(type(block), "the block")
        row = rows[nodes[0].lineno - 1].strip()
        more = f", with what follows up to line {nodes[-1].end_lineno}," * (
            nodes[-1].end_lineno > nodes[0].end_lineno)
        return (f"`{row if len(row) <= 60 else row[:57] + '...'}`{more} {verb} {kind} of line "
                f"{block.lineno}: it is indented {'too far' if 'not' in verb else 'too little'}.")

    bodies = [source.body, *(body for node in source.nodes for field in ("body", "orelse")
                             if isinstance(body := getattr(node, field, None), list))]
    for body in bodies:
        for number, block in enumerate(body):
            if not isinstance(block, ast.For | ast.While | ast.If) or getattr(block, "orelse", ()):
                continue
            by = block.body[0].col_offset - block.col_offset
            for at in range(1, len(block.body)):
                some = block.body[at:]
                yield "wrong-indentation", moved(some, -by), some[0].lineno, said(
                    some, "must not stand in", block)
            after = body[number + 1:]
            for end in range(1, len(after) + 1):
                yield "wrong-indentation", moved(after[:end], by), after[0].lineno, said(
                    after[:end], "belongs in", block)


def _dropped(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """What calls return, and nobody keeps."""
    alike: dict[str, list[ast.Expr]] = {}
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            alike.setdefault(source.of(node.value.func), []).append(node)
    for nodes in alike.values():
        known = [name for name in dict.fromkeys((*source.leaves, *given))
                 if re.search(rf"\b{name}\b", source.of(nodes[0]))]
        for target in ([", ".join(source.leaves)] * (len(source.leaves) > 1) + known)[:4]:
            yield "result-dropped", source.replaced([
                (*source.span(node), f"{target} = {source.of(node)}") for node in nodes
                ]), nodes[0].lineno, (
                f"`{_short(source.of(nodes[0]))}` changes nothing by itself. Keep what it "
                f"returns: {target} = ...")


def _short(text: str) -> str:
    return text if len(text) < 60 and "\n" not in text else text.partition("(")[0] + "(...)"


def _of_names(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """A given name that is overwritten although its old value is still needed."""
    for leaf, own in itertools.product([leaf for leaf in source.leaves if leaf not in source.bound],
                                       sorted(source.bound - {*source.leaves, *given})):
        nodes = [node for node in source.nodes if isinstance(node, ast.Name) and node.id == own]
        yield "wrong-name", source.replaced([(*source.span(node), leaf) for node in nodes]), min(
            node.lineno for node in nodes), (
            f"`{own}` must be called {leaf}: other code reads that name.")
    for statement in source.nodes:
        if not isinstance(statement, ast.Assign):
            continue
        made = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store)} & given.keys()
        for name in sorted(made):
            later = [node for node in source.nodes if isinstance(node, ast.Name)
                     and node.id == name and isinstance(node.ctx, ast.Load)
                     and node.lineno > statement.end_lineno]
            begin = source.span(statement)[0]
            for some in [later] * (len(later) > 1) + [[node] for node in later]:
                line = some[0].lineno
                yield "overwritten-early", source.replaced([
                    (begin, begin, f"_old = {name}; "),
                    *((*source.span(node), "_old") for node in some)]), statement.lineno, (
                    f"`{name}` is overwritten too early: line {line} still needs its old value.")


def _of_pytorch(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """Whole tensors in place of this tile's parts of them, read or added to."""
    slices = {value.stop: name for name, value in given.items() if isinstance(value, slice)}
    parts = {name: f"{name}_tile" if f"{name}_tile" in given else
             f"{name}[:, :, {slices[value.shape[2]]}]" for name, value in given.items()
             if f"{name}_tile" in given or name[-5:] != "_tile"
             and np.ndim(value) > 2 and value.shape[2] in slices}
    whole = [node for node in source.nodes if isinstance(node, ast.Name) and node.id in parts
             and (node.id in source.leaves or isinstance(node.ctx, ast.Load))
             and not source.of(source.parents[node]).startswith(f"{node.id}[:")]
    if whole:
        names = dict.fromkeys(node.id for node in whole)
        yield "whole-tensor", source.replaced([
            (*source.span(node), parts[node.id]) for node in whole]), whole[0].lineno, (
            " and ".join(f"`{name}`" for name in names)
            + (" is the whole tensor: " if len(names) < 2 else " are whole tensors: ")
            + "this tile's part is " + " and ".join(parts[name] for name in names) + ".")


def _of_sizes(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """The sizes of a whole tile, in place of those of this one."""
    sizes = {size: f"{x}.shape[-2]" for size, x in (("BLOCK_M", "q"), ("BLOCK_N", "k"))
             if x in given and size not in given}
    nodes = [node for node in source.nodes if isinstance(node, ast.Name) and node.id in sizes]
    if nodes:
        used = dict.fromkeys(node.id for node in nodes)
        own = [f"{sizes[size]} is {given[sizes[size][0]].shape[-2]}" for size in used]
        yield "whole-tensor", source.replaced([
            (*source.span(node), sizes[node.id]) for node in nodes]), nodes[0].lineno, (
            f"{' and '.join(used)} {'is' if len(used) < 2 else 'are'} the size of a whole tile, and"
            f" the last tile is smaller: here {', '.join(own)}.")


def _of_a_kernel(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """A fraction; a loop variable that is needed later; a load without other=."""
    fractions = {name for name, value in given.items() if kind(value)[-1:] == "f"
                 or isinstance(value, float)}
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
    yield from _without_pointer(source, given)
    yield from _of_axes(source, given)
    yield from _of_masks(source)
    yield from _of_vectors(source)
    yield from _of_widths(source, given)
    loads = [node for node in source.nodes if isinstance(node, ast.Call)
             and source.of(node.func).endswith(".load")
             and [word.arg for word in node.keywords].count("mask")
             and not [word.arg for word in node.keywords].count("other")]
    if loads:
        yield "load-without-other", source.replaced([
            (*[source.span(node)[1] - 1] * 2, ", other=0.0") for node in loads]), min(
            node.lineno for node in loads), (
            "tl.load has mask= but no other=, so the masked elements are undefined. Write "
            "other=0.0. A GPU may read anything there, so this check reads NaN; the interpreter "
            "alone reads 0, so this may cost no points.")


def _of_masks(source: Source) -> Iterator[tuple[str, str, int, str]]:
    """Loads and stores without the mask that others of the step have; masks with one axis, of
    addresses with two."""
    calls = [node for node in source.nodes if isinstance(node, ast.Call) and node.args
             and re.fullmatch(r"tl\.(load|store)", source.of(node.func))]
    masks = {node: word.value for node in calls for word in node.keywords if word.arg == "mask"}
    chosen = any(isinstance(node, ast.If | ast.IfExp) for node in source.nodes)  # with or without
    for node, other in itertools.product(calls, masks):
        if node not in masks and not chosen:
            given = {word.arg: source.of(word) for word in other.keywords}
            words = [given["mask"]] + [given.get("other", "other=0.0")] * source.of(
                node.func).endswith("load")
            yield "wrong-argument", source.replaced([
                (*[source.span(node.args[-1])[1]] * 2, ", " + ", ".join(words))]), node.lineno, (
                f"`{_short(source.of(node))}`. The argument mask= is missing.")
    made = {node.targets[0].id: node.value for node in source.nodes if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)}

    def parts(node: ast.expr) -> list[ast.AST]:
        return [*ast.walk(made.get(getattr(node, "id", None), node))]

    changes = []  # of each call: the names in its mask, and their forms in its address
    for node, mask in masks.items():
        forms = {one.value.id: source.of(one) for one in parts(node.args[0])
                 if isinstance(one, ast.Subscript) and isinstance(one.value, ast.Name)}
        changes.append({one: forms[one.id] for one in parts(mask) if isinstance(one, ast.Name)
                        and one.id in forms
                        and not isinstance(source.parents[one], ast.Subscript)})
    if some := [change for change in changes if change]:
        first = min(some[0], key=source.span)
        yield "wrong-axes", source.replaced([*{
            (*source.span(one), form) for change in some for one, form in change.items()
            }]), first.lineno, (
            f"`{source.of(source.parents[first])}`. The tile has two axes, and its mask needs them,"
            f" too: write {' and '.join(some[0].values())}"
            + _and_in([next(iter(change)).lineno for change in some]) + ".")


def _of_vectors(source: Source) -> Iterator[tuple[str, str, int, str]]:
    """A matrix product of two vectors, in place of their outer product."""
    for node in source.nodes:
        sides = node.args[:2] if isinstance(node, ast.Call) and source.of(node.func) == "tl.dot" \
            else (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(
                node.op, ast.MatMult) else ()
        if len(sides) == 2:
            left, right = map(source.inner, sides)
            sign = "@" if isinstance(node, ast.BinOp) else "tl.dot"
            yield "wrong-operator", source.replaced([
                (*source.span(node), f"({left}[:, None] * {right}[None, :])")]), node.lineno, (
                f"`{_short(source.of(node))}`. {left} and {right} are vectors, and {sign} "
                "multiplies matrices. An outer product is a column times a row, with *.")


def _of_widths(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """A tile that is taken to have D columns, which need be no power of two, or BLOCK_D where that
    is no argument; start, added to an address that is at that row already."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and re.fullmatch(
                r"tl\.arange\(0, (BLOCK_)?D\)", source.of(node)):
            size = source.of(node.args[1])
            width = "tile.shape[1]" if "tile" in given else "BLOCK_D"
            yield "wrong-width", source.replaced([
                (*source.span(node.args[1]), width)]), node.lineno, (
                f"`{source.of(node)}`. The tile has {width} columns, not {size}.")
    if {"ptr", "start", "stride_n"} <= given.keys():
        nodes = [node for node in source.nodes if isinstance(node, ast.Name) and node.id == "ptr"]
        yield "start-twice", source.replaced([
            (*source.span(node), "(ptr - start * stride_n)") for node in nodes]), min(
                (node.lineno for node in nodes), default=0), (
            "start is counted twice: ptr is already the address of row start.")


def _of_axes(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """A second number of the program, where the grid has one axis."""
    first, second = ([node for node in source.nodes if isinstance(node, ast.Call)
                      and re.fullmatch(rf"tl\.program_id\((axis=)?{axis}\)", source.of(node))]
                     for axis in (0, 1))
    sizes = [name for name in given if name.startswith("BLOCK")] if second else ()
    for size, *signs in itertools.product(sizes, *[("", "//", "%")] * 2):
        yield "second-axis", source.replaced([
            (*source.span(node), f"(tl.program_id(0) {sign} tl.cdiv(N, {size}))" if sign else
             "tl.program_id(0)")
            for nodes, sign in zip((first, second), signs, strict=True) for node in nodes]
            ), second[0].lineno, (f"`{source.of(second[0])}` is always 0, because the grid has one "
                                  "axis: tl.program_id(0) alone counts the programs.")


def _without_pointer(source: Source, given: dict) -> Iterator[tuple[str, str, int, str]]:
    """Offsets in place of addresses."""
    pointers = [name for name, value in given.items() if isinstance(value, Pointer)]
    made = {node.targets[0].id: node.value for node in source.nodes if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)}

    def has_pointer(node, depth: int = 4) -> bool:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        return any(isinstance(given.get(name), Pointer | tuple) for name in names) or bool(
            depth and any(has_pointer(made[name], depth - 1) for name in names & made.keys()))

    for node in source.nodes:
        if isinstance(node, ast.Call) and node.args and re.fullmatch(
                r"tl\.(load|store)", source.of(node.func)) and not has_pointer(node.args[0]):
            at = made.get(getattr(node.args[0], "id", None), node.args[0])
            for pointer in pointers:
                yield "offsets-only", source.replaced([
                    (*source.span(at), f"{pointer} + {source.inner(at)}")]), at.lineno, (
                    f"`{_short(source.of(at))}` is an offset, not an address: {pointer} + is "
                    "missing.")


def unassigned(text: str, name: str) -> tuple[int, str] | None:
    """The line of the only `if` or loop of a step in which it assigns this name, and a sentence on
    it, for a run in which the name had no value."""
    source = Source(text, {}, (), "")
    under = [node for node in source.body if any(
        isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)
        for one in ast.walk(node))]
    if len(under) != 1 or not isinstance(under[0], ast.If | ast.For | ast.While):
        return None
    line = under[0].lineno
    under, where = ("this `if`", "that does not hold") if isinstance(under[0], ast.If) else (
        "this loop", "it does not run")
    return line, f"{name} is assigned only under {under}, so it has no value where {where}."


def uncalled(text: str, asked: StepSpec, functions: Collection[str]) -> tuple[int, str] | None:
    """The line of a function that is not called, though its result is needed, and a sentence on it.

    functions: of the file.
    """
    source = Source(text, {}, asked.leaves, "")
    own = [node for node in source.nodes if isinstance(node, ast.FunctionDef)]
    if own and source.kernel:
        return own[0].lineno, ("Triton compiles no function inside of a kernel: write the lines "
                               f"of `{own[0].name}` without `def`.")
    names = {*functions, *(node.name for node in own)}
    called = {source.of(node.func) for node in source.nodes if isinstance(node, ast.Call)}
    for node in source.nodes:
        parent = source.parents.get(node)
        if isinstance(parent, ast.Call):
            needed = node is not parent.func and re.match(r"(tl|torch)\.|_|min|max", source.of(
                parent.func)) and not source.of(parent.func).endswith(("reduce", "scan"))
        else:
            needed = isinstance(parent, ast.BinOp | ast.Compare | ast.UnaryOp) or isinstance(
                parent, ast.Assign) and source.of(parent.targets[0]) not in called
        if needed and _is_function(source, node, names):
            return node.lineno, (f"`{source.of(node)}` is not called: the parentheses with its "
                                 "arguments are missing.")
    return next(((node.lineno, f"`{node.name}` is defined here, but never called.")
                 for node in own if node.name not in called
                 and not isinstance(source.parents.get(node), ast.ClassDef)), None)


def _is_function(source: Source, node: ast.AST, names: set[str]) -> bool:
    """Whether it is a function's name and no call.  names: of the file's and the step's own."""
    if not isinstance(node, ast.Attribute):
        return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
    home = source.of(node.value)
    if re.match(r"(tl|triton)\b", home):
        return not re.search(r"\d|[A-Z]|constexpr|dtype|void", node.attr)
    if home in ("torch", "math"):
        return callable(getattr({"torch": torch, "math": math}[home], node.attr, None))
    return "info(" not in home and node.attr not in ("values", "indices", "type") and callable(
        getattr(torch.Tensor, node.attr, None))


def returned(text: str, asked: StepSpec) -> tuple[int, str]:
    """The line of a step's return, and what to say about it."""
    source, leaves = Source(text, {}, asked.leaves, ""), asked.leaves
    node = next(node for node in source.nodes if isinstance(node, ast.Return))
    if leaves:
        return node.lineno, (f"`{_short(source.of(node))}`: a step does not return. Assign to "
                             f"{', '.join(leaves)}; the code below goes on with that.")
    return node.lineno, f"`{_short(source.of(node))}`: a kernel returns nothing. " + (
        "This line should not be there." if "store(" in text else
        f"The result must be stored: {'_store' if '_store' in asked.fakes else 'tl.store'} is "
        "missing.")


def remarks(text: str, file: str) -> Iterator[str]:
    """Advice on a right step: what its text does that works here, and not on a GPU."""
    source = Source(text, {}, (), "")
    if source.kernel:
        yield from _printed(source, file)
    elif "torch.device" not in text:
        yield from _on_the_cpu(source, file)


def _on_the_cpu(source: Source, file: str) -> Iterator[str]:
    """What to say about the first tensor that is made without device=, if there is one."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and re.fullmatch(
                r"torch\.(empty|zeros|ones|full|arange)", source.of(node.func)):
            given = {word.arg for word in node.keywords}
            if "device" not in given and not isinstance(source.parents.get(node), ast.Attribute):
                floats = "dtype" not in given and source.of(node.func) != "torch.arange"
                yield (f"This is right on a CPU, but {file}:{node.lineno}: "
                       f"`{_short(source.of(node))}` makes a tensor on the CPU"
                       + ", in float32" * floats + ", whatever the inputs are: pass device="
                       + " and dtype=" * floats + ".")
                return


def _printed(source: Source, file: str) -> Iterator[str]:
    """What to say about the first print() in a kernel's step, if there is one."""
    for node in source.nodes:
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
    found = [node.lineno if not reads else next((
        one.lineno for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == reads), 0)
        for node in source.body if id(node) in source.makes - source.makes_right]
    found = [*filter(None, found)]
    return found[0] if wrong and len(found) == 1 else 0


def find(text: str, asked: StepSpec, file: str, numbers: list[str],
         wrong: tuple[int, Observed, str], was: list[frozenset[str]],
         ask: Callable[[list[str], list[Example]], list[list[frozenset[str]] | None]],
         enough: Callable[[int], bool]) -> tuple[Change | None, bool]:
    """The change that makes a step exactly right; else one that makes some of its names right and
    the others no worse; else None.  If several of the same tier work, only what they have in common
    is said.  -> it; whether the search ended before it had tried every change.

    text: the step's.  file: its name.  numbers: the file's global names that hold numbers.  wrong:
    the number of a wrong example, what the step left there, and the first wrong name.  was: the
    wrong names in each example.  ask(texts, examples) -> the same for each changed step; None if
    it ended its worker.  enough(n): whether n changes are enough.
    """
    (worst, left, name), examples = wrong, asked.examples()
    kinds = {given: kind(value) for given, value in examples[worst].given.items()}
    kinds |= dict.fromkeys(numbers, "number")
    for names in left.programs[:1]:
        kinds |= {made: kind(value) for made, value in names.items()}
    ends, partly, right, others, ended_early = 0, None, [], OTHERS, False

    def tried() -> Iterator[tuple[Change, list[frozenset[str]] | None]]:
        """Each change, and what is wrong with it in the worst example."""
        nonlocal others, ended_early
        waiting, number = changes(
            text, kinds, asked.leaves, name, file, tuple(asked.fakes), left.error), 0
        while some := list(itertools.islice(waiting, TOGETHER)):
            if (ended_early := ends > 2 or enough(number)) or others < 1:
                return
            number += len(some)
            if right:
                some = [change for change in some if change.tier == right[0].tier][:others]
                others -= len(some)
            if some:
                yield from zip(some, ask([change.text for change in some], [examples[worst]]),
                               strict=True)

    for change, found in tried():
        ends += found is None
        if right and change.tier != right[0].tier:
            continue
        if found is None or not found[0] < was[worst] or partly and found[0]:
            continue
        everywhere = ask([change.text], examples)[0] or []
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
    return right[0].among(right[1:]) if right else partly, ended_early
