"""Copies steps solved in earlier stages into a later one:  python -m grader.carry STAGE

Step 4.3 is step 3.3 again, so its region is copied from the student's own problem_3.py.  The files
are parsed and never run.  A step that is still blank, or would not be Python in its new place, is
left out, and the reason is printed.
"""

import argparse
import difflib
import os
import re
import sys
from pathlib import Path

from grader.assignment import submission
from grader.assignment.regions import Outcome, carry
from grader.assignment.submission import blank_steps, steps
from grader.host.files import keep, replace
from grader.report.overview import program
from grader.text import coding, escape

GIVEN = re.compile(submission.BLANK_RAISE.pattern + r"(  # TODO: your code here)?")  # in a blank


def read(path: Path, whose: str = "") -> str:
    """Read the text, byte-order mark and line ends included.

    Raises:
        ValueError: the file cannot be read; `whose` begins the message.
    """
    try:
        data = submission.read_regular(path)
        if len(data) > submission.MAX_BYTES:
            raise ValueError(f"{whose}has more than {submission.MAX_BYTES} bytes")
        if coding(data).startswith("utf-8"):
            return data.decode("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{whose}is missing") from None
    except OSError as error:
        raise ValueError(f"{whose}cannot be read: {error.strerror}") from None
    except (SyntaxError, UnicodeDecodeError):  # the grader will say where
        pass
    raise ValueError(f"{whose}is not UTF-8: save it so")


def _where(stage: int, directory: Path) -> Path:
    """The stage's file in directory, or the student's own if there is none."""
    name = f"problem_{stage}.py"
    return directory / name if os.path.lexists(directory / name) else Path(name)


def _source(path: Path) -> str | ValueError:
    try:
        return read(path, f"{path} ")
    except ValueError as error:
        return error


def _agrees(outcome: Outcome) -> bool:
    """Show how a written step differs from its origin, and ask; no answer means no."""
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
    rest = f"still to write: {', '.join(blank)}" if blank else "no other step is blank"
    print(f"problem_{stage}.py: {count} of {len(carried)} copied steps are filled in; {rest}.")
    if unfilled := [outcome.step.id for outcome in outcomes if outcome.state == "not filled"]:
        print(f"Next: fix what is said above and run this again, or write {', '.join(unfilled)} "
              "yourself; --from FOLDER takes steps from another folder.")
    else:
        print(f"Next: {program(stage)} --watch")


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every step was copied, 1 if one was not or was kept, 2 if nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m grader.carry",
        description="Fill in the copied steps of a stage from your earlier problem files.  "
                    "What you have written stays.",
        epilog="exit code: 0 every copied step is filled in, 1 one is not or you declined it, "
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
        text = read(path)
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
        if read(path) != text:  # saved in an editor meanwhile
            raise ValueError("was changed meanwhile")
        if any(row.strip() and not GIVEN.fullmatch(row.strip())  # even a comment counts
               for outcome in outcomes if outcome.state == "filled" for row in outcome.old):
            print(f"{path} as it was is kept as {keep(path, Path('.autograder', path.name))}")
        if new != text:
            replace(path, new.encode())
    except ValueError as error:
        return refuse(f"a {path} with copied steps", f"one that {error}")
    except OSError as error:
        return refuse(f"to write {path}", error.strerror)
    except KeyboardInterrupt:
        print("\nNothing was written.", file=sys.stderr)
        return 130
    _report(stage, outcomes, new)
    return 0 if {outcome.state for outcome in outcomes} <= {"filled", "same", "written"} else 1


if __name__ == "__main__":
    sys.exit(main())
