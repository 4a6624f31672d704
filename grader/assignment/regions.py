"""Copies solution regions of earlier files into a later one.

It takes and returns texts; nothing is run, read or written.
"""

import ast
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from grader.assignment import submission
from grader.assignment.submission import Step, blank_steps, steps
from grader.text import syntax_tree


@dataclass(frozen=True)
class Region:
    """A step and the rows between its markers."""

    step: Step
    rows: list[str]  # without their line ends
    indent: str  # of the first marker
    end: str
    is_blank: bool


@dataclass(frozen=True)
class Problem:
    """A problem file, parsed."""

    rows: list[str]  # with their line ends
    regions: dict[str, Region]
    unfinished: frozenset[str]  # ids of steps that are blank or still raise


@dataclass
class Outcome:
    """What became of a step to copy.  new is empty if there is nothing to copy."""

    step: Step
    state: str  # "filled", "same", "written", "kept", "not replaced" or "not filled"
    words: str
    old: list[str]
    new: list[str]


def carry(stage: int, target: str, sources: dict[int, str | ValueError],
          again: Collection[str] = (), paths: dict[int, Path] | None = None,
          ) -> tuple[str, list[Outcome]]:
    """Fill the blank steps of target that are copies, and replace those in `again`.

    sources: stage -> the text of its file, or an error that says why there is none.  paths: where
    these files are, for the messages.  -> the new text; the outcomes in the order of the file.

    Raises:
        ValueError: what is wrong with the target, such as "is not Python: line 3: …".
    """
    name, problem, outcomes, fills = f"problem_{stage}.py", _problem(target), [], {}
    for key, region in problem.regions.items():
        if not region.step.origin:
            continue
        number, new = int(region.step.origin.partition(".")[0]), []
        path, fault = (paths or {}).get(number, Path(f"problem_{number}.py")), None
        try:
            source = sources.get(number, ValueError(f"{path} is missing"))
            if isinstance(source, ValueError):
                raise source
            new = _taken(region, _problem(source, f"{path} "), path)
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
        outcomes.append(Outcome(region.step, state, words, region.rows, new))
    if not outcomes:
        raise ValueError("has no copied step")
    return _filled(problem, fills), outcomes


def _filled(problem: Problem, fills: dict[str, list[str]]) -> str:
    rows = list(problem.rows)
    for key, region in reversed(problem.regions.items()):  # so that line numbers stay right
        if key in fills:
            inside = slice(region.step.first_line, region.step.last_line - 1)
            rows[inside] = [row + region.end for row in fills[key]]
    return "".join(rows)


@lru_cache
def _problem(text: str, whose: str = "") -> Problem:
    """Parse a problem file.

    Raises:
        ValueError: what is wrong with it; `whose` begins the message.
    """
    _parsed(text, whose)
    rows, regions = submission.lines(text), {}
    try:
        found = steps(text)
    except ValueError as error:
        raise ValueError(f"{whose}has damaged markers: {error}") from None
    for step in found:
        marker = rows[step.first_line - 1]
        inside = [row.rstrip("\r\n") for row in rows[step.first_line:step.last_line - 1]]
        regions[step.id] = Region(
            step, inside, indent=marker[:len(marker) - len(marker.lstrip())],
            end=marker[len(marker.rstrip("\r\n")):],
            is_blank=submission.is_blank_text("\n".join(inside)))
    return Problem(rows, regions, frozenset(blank_steps(text)))


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
    """The origin's rows, indented for the region.

    Raises:
        ValueError: why nothing can be copied.
    """
    name = region.step.origin
    if name not in origin.regions:
        raise ValueError(f"{path} has no step {name}")
    if name in origin.unfinished:
        how = "is still blank" if origin.regions[name].is_blank else \
            "still has its raise NotImplementedError"
        raise ValueError(f"step {name} of {path} {how}")
    old, rows = origin.regions[name].indent, origin.regions[name].rows
    head = f"if _:\n{old}pass\n" if old else ""  # makes them one block of this indent
    try:
        tree = _parsed(head + "\n".join(rows) + "\n", compiled=False)
    except ValueError:
        tree = None
    if tree is None or old and len(tree.body) > 1:
        raise ValueError(f"step {name} of {path} is not a block of Python by itself")
    return [region.indent + row[len(old):] if row.startswith(old) and row.strip() else row
            for row in rows]
