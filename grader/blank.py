"""Puts one step of a problem file back to its blank:  python -m grader.blank 3.5

The file as it was is first copied into .autograder.
"""

import argparse
import sys
from pathlib import Path

from grader.assignment.submission import blank_steps, lines, steps
from grader.carry import read
from grader.host.files import keep, replace
from grader.text import escape


def blank(source: str, only: str = "") -> str:
    """Replace the inside of every solution region; with `only`, of that step alone.

    Raises:
        ValueError: a region is nested, unclosed, unmatched, repeated, or the result is not Python.
    """
    rows = lines(source)
    for step in reversed(steps(source)):  # from the end, so that line numbers stay right
        if only not in ("", step.id):
            continue
        marker = rows[step.first_line - 1]
        body = marker.rstrip("\r\n")
        indent, end = body[:len(body) - len(body.lstrip())], marker[len(body):]
        rows[step.first_line:step.last_line - 1] = [
            f'{indent}raise NotImplementedError("step {step.id}")  # TODO: your code here{end}'
        ]
    text = "".join(rows)
    try:
        compile(text, "starter", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} of the starter is not Python: {error.msg}") from None
    return text


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if the step is blank now, 2 if nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m grader.blank",
        description="Put one step back to its blank.  The file as it was is kept in .autograder.",
        epilog="exit code: 0 the step is blank, 2 usage, and nothing was written")
    parser.add_argument("step", metavar="STEP", help="3.5 is in problem_3.py, W.2 in the warm-ups")
    step = parser.parse_args(arguments).step
    stage = step.partition(".")[0]
    path = Path("warmups/warmups.py") if stage == "W" else Path(f"problem_{stage}.py")
    try:
        if not stage.isdigit() and stage != "W":
            raise ValueError(f"want a step such as 3.5; got {step}")
        if path.is_symlink():
            raise ValueError(f"want a file; got a link, {path}")
        text = read(path, f"{path} ")
        known = [one.id for one in steps(text)]
        if step not in known:
            raise ValueError(f"want a step of {path}, {known[0]} to {known[-1]}; got {step}"
                             if known else f"want a file with steps; {path} has none")
        if step in blank_steps(text):
            print(f"step {step} is blank already.")
            return 0
        new = blank(text, step)
        kept = keep(path, Path(".autograder", path.name))
        replace(path, new.encode())
    except ValueError as error:
        print(escape(f"error: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(escape(f"error: {path} cannot be written: {error.strerror}"), file=sys.stderr)
        return 2
    print(f"step {step} is blank; the file as it was is kept as {kept}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
