"""Fills the steps that a stage carries over from earlier ones:  python -m grader.carry STAGE

Step 4.3 is step 3.3 again, so its region is copied from the student's own problem_3.py.  The files
are parsed and never run.  What would not work in its new place is left out, with the reason: a
region that is still blank, say, or one that uses a name which the new file does not have.
"""

import argparse
import ast
import builtins
import difflib
import itertools
import os
import re
import stat
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from grader import submission
from grader.overview import program
from grader.submission import Step, blank_steps, steps
from grader.text import escape

SCOPES = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda
GIVEN = re.compile(submission.BLANK_RAISE.pattern + r"(  # TODO: your code here)?")  # of a blank
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
    tree, rows = _parsed(text, whose), text.splitlines(keepends=True)
    if odd := re.search("[\r\v\f\x1c-\x1e\x85\u2028\u2029]", text.replace("\r\n", "\n")):
        raise ValueError(f"{whose}has a line end that Python does not count: {odd[0]!r}")
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
        end = "\r\n" if marker.endswith("\r\n") else "\n"
        regions[step.id] = Region(step, inside, "".join(above), indent, end,
                                  submission.is_blank_text(inside), around)
    return Problem(rows, regions, top, frozenset(blank_steps(text)))


def _parsed(text: str, whose: str = "", compiled: bool = True) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text.removeprefix("\ufeff"))
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
        raise ValueError(f"step {name} of {path} is still blank")
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


def _read(path: Path, whose: str = "") -> str:
    """The text, with its byte-order mark and line ends.

    Raises:
        ValueError: why there is none; whose: how the sentence begins.
    """
    try:
        data = submission.read_regular(path)
        if len(data) > submission.MAX_BYTES:
            raise ValueError(f"{whose}has more than {submission.MAX_BYTES} bytes")
        if submission.coding(data).startswith("utf-8"):
            return data.decode("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{whose}is missing") from None
    except OSError as error:
        raise ValueError(f"{whose}cannot be read: {error.strerror}") from None
    except (SyntaxError, UnicodeDecodeError):
        pass
    raise ValueError(f"{whose}is not UTF-8")


def _where(stage: int, directory: Path) -> Path:
    """The stage's file in directory; where that has none, the student's own."""
    name = f"problem_{stage}.py"
    return directory / name if os.path.lexists(directory / name) else Path(name)


def _source(path: Path) -> str | ValueError:
    try:
        return _read(path, f"{path} ")
    except ValueError as error:
        return error


def keep(path: Path, copy: Path) -> Path:
    """Copy path to copy, or to copy.2, copy.3 ... if that is taken; -> where it is now."""
    names = itertools.chain([copy.name], (f"{copy.name}.{i}" for i in itertools.count(2)))
    copy = next(copy.with_name(name) for name in names if not copy.with_name(name).exists())
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
    return copy


def _write(path: Path, data: bytes) -> None:
    """Replace the file in one step; its mode stays."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _agrees(outcome: Outcome) -> bool:
    """Show what a written step and its origin differ in, and ask; no answer means no."""
    step = outcome.step
    for row in difflib.unified_diff(outcome.old, outcome.new, f"step {step.id}",
                                    f"step {step.origin}", n=1, lineterm=""):
        print(escape(row))
    try:
        answer = input(f"Replace step {step.id} by step {step.origin}? [y/N] ")
    except EOFError:
        print()
        return False
    return answer.strip().lower() in ("y", "yes")


def _stage(text: str) -> int:
    """ "4", "p4" or "problem_4.py"."""
    match = re.fullmatch(r"(?:p|problem_)?(\d+)(?:\.py)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"want a stage such as 4; got {text}")
    return int(match[1])


def _report(stage: int, outcomes: list[Outcome], text: str) -> None:
    width = max(len(outcome.step.id) for outcome in outcomes)
    for outcome in outcomes:
        reason = f"{outcome.state}: " if outcome.state.startswith("not ") else ""
        print(escape(f"step {outcome.step.id:{width}}  {reason}{outcome.words}"))
    carried = {outcome.step.id for outcome in outcomes}
    count = sum(outcome.state != "not filled" for outcome in outcomes)
    blank = [step.id for step in steps(text)
             if step.id in blank_steps(text) and step.id not in carried]
    rest = f"yours to write: {', '.join(blank)}" if blank else "no other step is blank"
    print(f"problem_{stage}.py: {count} of {len(carried)} carried-over steps are in; {rest}.")
    if unfilled := [outcome.step.id for outcome in outcomes if outcome.state == "not filled"]:
        print(f"Next: mend what is said above and carry again, or write {', '.join(unfilled)} "
              "yourself; --from FOLDER takes steps from another folder.")
    else:
        print(f"Next: {program(stage)} --watch")


def main(arguments: list[str] | None = None) -> int:
    """0: every carried-over step is in; 1: one is not, or was kept; 2: nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m grader.carry",
        description="Copy the carried-over steps of a stage from your earlier problem files.  "
                    "What you have written stays.",
        epilog="exit code: 0 every carried-over step is in, 1 one is not or you declined it, "
               "2 usage, and nothing was written")
    parser.add_argument("stage", type=_stage, metavar="STAGE", help="4 fills problem_4.py")
    parser.add_argument("--from", dest="directory", metavar="DIR", type=Path, default=Path("."),
                        help="take earlier problem files from there, where it has them")
    parser.add_argument("--again", action="store_true",
                        help="ask about each step that is written and differs from its origin")
    options = parser.parse_args(arguments)
    stage, directory, path = options.stage, options.directory, Path(f"problem_{options.stage}.py")

    def refuse(want: str, got: str) -> int:
        print(escape(f"error: want {want}; got {got}"), file=sys.stderr)
        return 2

    if not directory.is_dir():
        return refuse("a folder after --from", str(directory))
    try:
        if path.is_symlink():
            raise ValueError("is a link")
        text = _read(path)
        stages = {int(origin.partition(".")[0]) for origin in submission.CARRIED.findall(text)}
        paths = {number: _where(number, directory) for number in stages}
        sources = {number: _source(place) for number, place in paths.items()}
        new, outcomes = carry(stage, text, sources, paths=paths)
        if options.again:
            asked = {outcome.step.id: _agrees(outcome) for outcome in outcomes
                     if outcome.state == "written" and outcome.new}
            again = {name for name, agreed in asked.items() if agreed}
            new, outcomes = carry(stage, text, sources, again, paths)
            for outcome in outcomes:
                if outcome.state == "written" and outcome.step.id in asked:
                    outcome.state, outcome.words = "kept", "is kept as it was"
        if _read(path) != text:  # an editor's
            raise ValueError("was changed meanwhile")
        if any(row.strip() and not GIVEN.fullmatch(row.strip())  # even a comment
               for outcome in outcomes if outcome.state == "filled" for row in outcome.old):
            print(f"{path} as it was is kept as {keep(path, Path('.autograder', path.name))}")
        if new != text:
            _write(path, new.encode())
    except ValueError as error:
        return refuse(f"a {path} with carried-over steps", f"one that {error}")
    except OSError as error:
        return refuse(f"to write {path}", error.strerror)
    except KeyboardInterrupt:
        print("\nNothing was written.", file=sys.stderr)
        return 130
    _report(stage, outcomes, new)
    return 0 if {outcome.state for outcome in outcomes} <= {"filled", "same", "written"} else 1


if __name__ == "__main__":
    sys.exit(main())
