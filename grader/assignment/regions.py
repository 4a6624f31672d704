"""Solution regions of earlier files, pasted into a later one: only what can run in its new place.

Texts in, texts out; nothing is run, read or written.
"""

import ast
import builtins
import itertools
import re
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from grader.assignment import submission
from grader.assignment.submission import Step, blank_steps, steps
from grader.text import syntax_tree

SCOPES = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda
BUILTINS = {*dir(builtins), "__file__"}


@dataclass(frozen=True)
class Region:
    """A step and its text.  around: the nodes of the function that it is in, one list for all of
    its regions; where there is none, those of the module."""

    step: Step
    rows: list[str]  # without their line ends
    goal: str  # the comment above it
    indent: str  # of its first marker, as is end
    end: str
    is_blank: bool
    around: list[ast.AST]

    def owns(self, node: ast.AST) -> bool:
        return self.step.first_line < getattr(node, "lineno", 0) < self.step.last_line


@dataclass(frozen=True)
class Problem:
    """A problem file, parsed."""

    rows: list[str]  # with their line ends
    regions: dict[str, Region]
    top: list[ast.AST]  # what is outside of functions and classes
    unfinished: frozenset[str]  # ids of the blank steps, and of those that still raise

    def beside(self, region: Region) -> set[str]:
        """Ids of the other steps of its function."""
        return {name for name, other in self.regions.items()
                if other.around is region.around and other is not region}


@dataclass
class Outcome:
    """What became of a carried-over step.  new is empty where nothing can be taken."""

    step: Step
    state: str  # "filled", "same", "written", "kept", "not replaced" or "not filled"
    words: str
    old: list[str]
    new: list[str]


def carry(stage: int, target: str, sources: dict[int, str | ValueError],
          again: Collection[str] = (), paths: dict[int, Path] | None = None,
          ) -> tuple[str, list[Outcome]]:
    """The target with its blank carried-over steps filled, and those in again replaced.

    sources: stage -> the text of its file, or a sentence that says why there is none.  paths: where
    they lie, for the messages.  The outcomes are in the order of the file.

    Raises:
        ValueError: what is wrong with the target, such as "is not Python: line 3: …".
    """
    name, problem = f"problem_{stage}.py", _problem(target)
    outcomes, origins, fills = {}, {}, {}
    for key, region in problem.regions.items():
        if not region.step.origin:
            continue
        number, new = int(region.step.origin.partition(".")[0]), []
        path, fault = (paths or {}).get(number, Path(f"problem_{number}.py")), None
        try:
            source = sources.get(number, ValueError(f"{path} is missing"))
            if isinstance(source, ValueError):
                raise source
            origins[key] = _problem(source, f"{path} ")
            new = _taken(region, origins[key], path)
            _problem(_filled(problem, {key: new}), f"with step {region.step.origin} in it {name} ")
        except ValueError as error:
            fault = str(error)
        if not region.is_blank and key not in again:
            state = "same" if region.rows == new else "written"
            words = "the same already" if state == "same" else "is written already"
            if new and state == "written":
                words += (f", and differs from step {region.step.origin} of {path}: --again asks "
                          "whether to take that")
        elif fault:
            state, words = "not filled" if region.is_blank else "not replaced", fault
        else:
            lines = f"{len(new)} line{'s' if len(new) > 1 else ''}"
            state, words = "filled", f"from step {region.step.origin} of {path}, {lines}"
            fills[key] = new
        outcomes[key] = Outcome(region.step, state, words, region.rows, new)
    if not outcomes:
        raise ValueError("has no carried-over step")
    fills, refused = _settled(problem, fills, origins, name)
    for key, words in refused.items():
        outcomes[key].state = "not filled" if problem.regions[key].is_blank else "not replaced"
        outcomes[key].words = words
    return _filled(problem, fills), list(outcomes.values())


def _settled(problem: Problem, fills: dict[str, list[str]], origins: dict[str, Problem],
             name: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Take away what does not fit until the rest does.  -> the rest, why not the others."""
    refused = {}
    while True:
        after, found = _problem(_filled(problem, fills)), {}
        for key in fills:
            origin = problem.regions[key].step.origin
            if unknown := _unknown(after, after.regions[key], origins[key], origin):
                found[key] = f"step {origin} uses {', '.join(unknown)}, which {name} does not have"
        for key in () if found else fills:  # once a step is taken away it may yet make the name
            if missed := _missed(problem, after, key, fills):
                together = after.beside(after.regions[key]) | {key}
                makers = ", ".join(other for other in after.regions if other in together)
                none = f"none of steps {makers} makes" if len(together) > 1 else \
                    f"step {problem.regions[key].step.origin} does not make"
                line, missing = missed
                found[key] = f"{none} {missing}, which is read in: {problem.rows[line - 1].strip()}"
        if not found:
            break
        refused |= found
        fills = {key: rows for key, rows in fills.items() if key not in found}
    return fills, refused


def _filled(problem: Problem, fills: dict[str, list[str]]) -> str:
    rows = list(problem.rows)
    for key, region in reversed(problem.regions.items()):  # so that line numbers stay right
        if key in fills:
            inside = slice(region.step.first_line, region.step.last_line - 1)
            rows[inside] = [row + region.end for row in fills[key]]
    return "".join(rows)


@lru_cache
def _problem(text: str, whose: str = "") -> Problem:
    """Raises ValueError with what is wrong; whose: how the sentence begins."""
    tree, rows = _parsed(text, whose), submission.lines(text)
    try:
        found = steps(text)
    except ValueError as error:
        raise ValueError(f"{whose}has damaged markers: {error}") from None
    top: list[ast.AST] = [tree]
    for node in top:  # which grows
        if not isinstance(node, SCOPES):
            top.extend(ast.iter_child_nodes(node))
    regions, walked = {}, {}
    for step in found:
        marker = rows[step.first_line - 1]
        indent = marker[:len(marker) - len(marker.lstrip())]
        above = itertools.takewhile(lambda row: row.lstrip().startswith("#"),
                                    reversed(rows[:step.first_line - 1]))
        inside = [row.rstrip("\r\n") for row in rows[step.first_line:step.last_line - 1]]
        home = next((node for node in reversed(tree.body) if node.lineno <= step.first_line), tree)
        # An empty region at its end is in a function, too, but that ends before it.
        if isinstance(home, SCOPES) and (indent or step.first_line < home.end_lineno):
            around = walked.setdefault(home, list(ast.walk(home)))
        else:
            around = top
        end = marker[len(marker.rstrip("\r\n")):]
        regions[step.id] = Region(step, inside, "".join(above), indent, end,
                                  submission.is_blank_text("\n".join(inside)), around)
    return Problem(rows, regions, top, frozenset(blank_steps(text)))


def _parsed(text: str, whose: str = "", compiled: bool = True) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = syntax_tree(text.removeprefix("\ufeff"))
            if compiled:
                compile(tree, "problem", "exec", dont_inherit=True)
            return tree
    except SyntaxError as error:
        raise ValueError(f"{whose}is not Python: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, absurd nesting
        raise ValueError(f"{whose}is not Python: {error}") from None


def _taken(region: Region, origin: Problem, path: Path) -> list[str]:
    """The rows of the origin, as they are to stand in the region.

    Raises:
        ValueError: why there are none.
    """
    name = region.step.origin
    if name not in origin.regions:
        raise ValueError(f"{path} has no step {name}")
    if name in origin.unfinished:
        how = "is still blank" if origin.regions[name].is_blank else \
            "still has its raise NotImplementedError"
        raise ValueError(f"step {name} of {path} {how}")
    old, rows = origin.regions[name].indent, origin.regions[name].rows
    head = f"if _:\n{old}pass\n" if old else ""  # one block, of this indent
    try:
        tree = _parsed(head + "\n".join(rows) + "\n", compiled=False)
    except ValueError:
        tree = None
    if tree is None or old and len(tree.body) > 1:
        raise ValueError(f"step {name} of {path} is not a block of Python by itself")
    return [region.indent + row[len(old):] if row.startswith(old) and row.strip() else row
            for row in rows]


def _unknown(after: Problem, region: Region, source: Problem, origin: str) -> list[str]:
    """Names that the filled region reads, and that neither its new file nor a blank step has.

    A blank step may make what another step made in the source, beside the region's origin, and
    what the comment above it names: 5.2 makes a k_head that is given in stage 4.
    """
    _, read = _names(node for node in region.around if region.owns(node))
    unbound = _unbound(after, region, read)
    if blank := after.beside(region) & after.unfinished:
        unbound -= {word for key in blank for word in re.findall(r"\w+", after.regions[key].goal)}
        old = source.regions[origin]
        others = [source.regions[key] for key in source.beside(old)]
        made, _ = _names(node for node in old.around if any(other.owns(node) for other in others))
        unbound -= made
        if source.beside(old) & source.unfinished:  # or what nobody makes there yet
            unbound -= _unbound(source, old, unbound)
    return sorted(unbound)


def _missed(problem: Problem, after: Problem, key: str,
            fills: Collection[str]) -> tuple[int, str] | None:
    """The first line of problem, around the filled step, that reads a name nobody makes.

    None where a step of the function is still blank, which may make it.
    """
    if after.beside(after.regions[key]) & after.unfinished:
        return None
    filled = [problem.regions[other] for other in fills]
    _, read = _names(node for node in problem.regions[key].around
                     if not any(region.owns(node) for region in filled))
    unbound = _unbound(after, after.regions[key], read)
    return min(((read[name], name) for name in unbound), default=None)


def _unbound(problem: Problem, region: Region, read: Iterable[str]) -> set[str]:
    """Those that neither the function binds, nor the module, nor Python."""
    bound, _ = _names(itertools.chain(region.around, problem.top))
    return set() if "*" in bound else set(read) - bound - BUILTINS  # import * may bind anything


def _names(nodes: Iterable[ast.AST]) -> tuple[set[str], dict[str, int]]:
    """The names bound there, and name -> the first line that reads it."""
    nodes, bound, read = list(nodes), set(), {}
    changed = {node.target for node in nodes if isinstance(node, ast.AugAssign)}
    for node in nodes:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store) and node not in changed:
                bound.add(node.id)
            else:  # `x += 1` reads x, too, and makes none
                read[node.id] = min(node.lineno, read.get(node.id, node.lineno))
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        else:  # def, class, import, except, match
            name = getattr(node, "asname", None) or getattr(node, "name", None)
            bound.add(str(name).partition(".")[0])
    return bound, read
