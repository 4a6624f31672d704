"""Writes the assignment that a student starts from:  python -m grader.starter DIR [--stage N]

Every solution region of every problem file is replaced by a `raise` that names its step; all else
is copied as it is.  Existing work is never overwritten.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from grader.submission import steps

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("README.md", "autograder.py", "autograder_optional.py", "reference.py", "pyproject.toml",
          ".gitignore")
COPIED_IF_PRESENT = ("Makefile", "constraints.txt")


def blank(source: str) -> str:
    """The source with the inside of every solution region replaced.

    Raises:
        ValueError: a region is nested, unclosed, unmatched, repeated, or the result is not Python.
    """
    rows = source.splitlines(keepends=True)
    for step in reversed(steps(source)):  # from the end, so that line numbers stay right
        marker = rows[step.first_line - 1]
        indent = marker[:len(marker) - len(marker.lstrip())]
        rows[step.first_line:step.last_line - 1] = [
            f'{indent}raise NotImplementedError("step {step.id}")  # TODO: your code here\n'
        ]
    text = "".join(rows)
    try:
        compile(text, "starter", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} of the starter is not Python: {error.msg}") from None
    return text


def problem_files(root: Path) -> dict[int, Path]:
    """Stage number -> problem file, in order."""
    found = {}
    for path in root.glob("problem_*.py"):
        if match := re.fullmatch(r"problem_(\d+)\.py", path.name):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def build(root: Path, stage: int | None = None) -> dict[str, bytes]:
    """Relative path -> contents of the assignment, or of one stage's file alone.

    Raises:
        ValueError: the repository lacks a file, or a problem file is malformed.
    """
    problems = problem_files(root)
    if stage is not None and stage not in problems:
        raise ValueError(f"want a stage of {list(problems)}; got {stage}")
    files = {}
    for number, path in problems.items():
        if stage in (None, number):
            try:
                files[path.name] = blank(path.read_text(encoding="utf-8")).encode()
            except ValueError as error:
                raise ValueError(f"{path.name}: {error}") from None
    if stage is not None:
        return files
    if not problems:
        raise ValueError(f"no problem files in {root}")
    for name in COPIED + COPIED_IF_PRESENT:
        path = root / name
        if path.exists():
            files[name] = path.read_bytes()
        elif name in COPIED:
            raise ValueError(f"{path} is missing")
    for path in sorted((root / "grader").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(root).as_posix()] = path.read_bytes()
    return files


def write(files: dict[str, bytes], directory: Path) -> None:
    """Write all of the files, or none.

    Raises:
        FileExistsError: with the list of what is there already as its argument.
    """
    tops = sorted({name.split("/")[0] for name in files})
    existing = [str(directory / top) for top in tops if os.path.lexists(directory / top)]
    if existing:
        raise FileExistsError(existing)
    directory.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".starter-", dir=directory))
    moved = []
    try:
        for name, contents in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        for top in tops:
            os.rename(staging / top, directory / top)
            moved.append(directory / top)
    except BaseException:
        for path in moved:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """0: written; 2: something is in the way or wrong, and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m grader.starter", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="where to write")
    parser.add_argument("--stage", type=int, metavar="N", help="only this stage's problem file")
    options = parser.parse_args(arguments)
    try:
        files = build(root, options.stage)
        write(files, options.directory)
    except FileExistsError as error:
        print("these exist already, and nothing was written:", *error.args[0], sep="\n  ",
              file=sys.stderr)
        print("move them away, or choose another directory", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 2
    print(f"wrote {len(files)} files to {options.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
