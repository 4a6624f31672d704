"""Writes the assignment that a student starts from:  python -m grader.starter DIR

Every solution region of every problem file is replaced by a `raise` that names its step.  A
student's work is never overwritten.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from grader import assignment
from grader.assignment import ROOT, Assignment, sha256
from grader.submission import blank_steps, steps
from grader.text import ranges

GRADERS = {"autograder.py": range(1, 8), "autograder_optional.py": range(8, 10)}
PROBLEM = re.compile(r"problem_(\d+)\.py")
NOT_GIVEN = re.compile(r"^Faster .*\n", re.MULTILINE)  # of a docstring: fast/ is not given
IGNORED = ".venv/\n__pycache__/\n.autograder/\n/results*.json\n"
REPLACED = Path(".autograder", "replaced")  # where --update leaves what it found changed


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
        if match := PROBLEM.fullmatch(path.name):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def build(root: Path, stages: list[int] | None = None) -> dict[str, bytes]:
    """Relative path -> contents of an assignment with these stages, or all of them.

    Raises:
        ValueError: want other stages, the repository lacks a file, or a problem file is malformed.
    """
    if assignment.read(root):
        raise ValueError(f"want the course's repository to write from; got an assignment, {root}")
    problems = problem_files(root)
    stages = sorted(set(stages or problems))
    if not stages or not set(stages) <= set(problems):
        raise ValueError(f"want stages of {list(problems)}; got {stages}")
    files = {}
    for number in stages:
        path = problems[number]
        try:
            files[path.name] = NOT_GIVEN.sub("", blank(path.read_text("utf-8"))).encode()
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None
    for name, graded in GRADERS.items():
        if set(graded) & set(stages):
            files[name] = _contents(root / name)
    files |= assignment.engine(root)
    files["README.md"] = _readme(_contents(root / "grader/assignment.md").decode(), stages)
    needs = tomllib.loads(_contents(root / "pyproject.toml").decode())["project"]["dependencies"]
    files["requirements.txt"] = "".join(f"{need}\n" for need in needs).encode()
    files[".gitignore"] = IGNORED.encode()
    given = {name: sha256(contents) for name, contents in files.items()}
    record = Assignment(assignment.version(root), tuple(stages), given)
    return files | {assignment.RECORD: record.encoded()}


def _contents(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    return path.read_bytes()


def _readme(text: str, stages: list[int]) -> bytes:
    """The README without the lines that name a file of stages that are not given."""
    absent = {f"problem_{number}.py" for number in range(1, 10)} - {
        f"problem_{number}.py" for number in stages}
    absent |= {name for name, graded in GRADERS.items() if not set(graded) & set(stages)}
    return "".join(row for row in text.splitlines(keepends=True)
                   if not any(name in row for name in absent)).encode()


def write(files: dict[str, bytes], directory: Path) -> None:
    """Write all of the files, or none.

    Raises:
        FileExistsError: with the list of what is there already as its argument.
    """
    existing = [str(directory / top) for top in _tops(files) if os.path.lexists(directory / top)]
    if existing:
        raise FileExistsError(existing)
    directory.mkdir(parents=True, exist_ok=True)
    _exchange(files, directory)


def update(files: dict[str, bytes], directory: Path, old: Assignment) -> list[str]:
    """Bring the engine in directory up to files; -> sentences on what else there is to know.

    Problem files that are there stay as they are.  Of the rest, what is not as it was given is
    kept in .autograder/replaced.
    """
    files, said, given = dict(files), [], assignment.decoded(files[assignment.RECORD])
    for name in [name for name in files if PROBLEM.fullmatch(name)]:
        path = directory / name
        if not os.path.lexists(path):
            said.append(f"{name} was not there: written, blank.")
            continue
        del files[name]
        if (was := old.files.get(name)) and was != given.files[name]:
            untouched = sha256(path.read_bytes()) == was
            said.append(f"{name} has a newer text; yours is left as it is." + untouched * (
                " Nothing is in it yet: delete it and update again for the new one."))
            given.files[name] = was
    files[assignment.RECORD] = given.encoded()
    changed = {name: contents for name, contents in _found(directory, files).items()
               if sha256(contents) != old.files.get(name) and contents != files.get(name)}
    for name, contents in changed.items():
        path = directory / REPLACED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
        said.append(f"{name} was not as given: what you had is in {REPLACED / name}.")
    _exchange(files, directory)
    return said


def _found(directory: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """What stands where files are to go, the record aside."""
    paths = [path for top in _tops(files) for path in
             ((directory / top).rglob("*") if (directory / top).is_dir() else [directory / top])]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths
            if path.is_file() and "__pycache__" not in path.parts
            and path != directory / assignment.RECORD}


def _exchange(files: dict[str, bytes], directory: Path) -> None:
    """Put files in the place of what stands there, top by top; all of them, or none."""
    staging = Path(tempfile.mkdtemp(prefix=".starter-", dir=directory))
    new, old, done = staging / "new", staging / "old", []
    old.mkdir()
    try:
        for name, contents in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        for top in _tops(files):
            done.append(top)
            if os.path.lexists(directory / top):
                os.rename(directory / top, old / top)
            os.rename(new / top, directory / top)
    except BaseException:
        for top in done:
            if not os.path.lexists(new / top):
                os.rename(directory / top, new / top)
            if os.path.lexists(old / top):
                os.rename(old / top, directory / top)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check(directory: Path, given: Assignment) -> tuple[list[str], bool]:
    """-> a line a problem file, a line for all else that is not as it was given; is there such."""
    lines, changed = [f"Grader {given.version}, {len(given.stages)} problems."], False
    for name, digest in sorted(given.files.items()):
        path = directory / name
        contents = path.read_bytes() if path.is_file() else None
        if not PROBLEM.fullmatch(name):
            if contents is None or sha256(contents) != digest:
                changed = True
                lines.append(f"{name:<16} {'missing' if contents is None else 'changed'}")
        elif contents is None:
            lines.insert(1, f"{name:<16} missing")
        else:
            lines.insert(1, f"{name:<16} {_state(contents, digest)}")
    return [lines[0], *sorted(lines[1:])], changed


def _state(contents: bytes, digest: str) -> str:
    """How a problem file differs from the blank one of this digest."""
    if sha256(contents) == digest:
        return "as it was given"
    try:
        text = contents.decode("utf-8")
        regions = steps(text)
        filled = len(regions) - len(set(blank_steps(text)) & {step.id for step in regions})
        outside = sha256(blank(text).encode()) != digest
    except ValueError as error:
        return f"yours; its markers or its text are damaged: {error}"
    return (f"yours: {filled} of {len(regions)} steps filled"
            + ", and changed outside of its steps" * outside)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """0: done, or nothing but problem files differs; 1: other files do; 2: nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m grader.starter", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the assignment is to be")
    parser.add_argument("--stages", type=_stages, metavar="1-7",
                        help="these only, such as 1-7 or 3,4 (default: all)")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--update", action="store_true",
                        help="a newer grader into an assignment; its problem files stay")
    either.add_argument("--check", action="store_true",
                        help="say which files of an assignment are not as they were given")
    options = parser.parse_args(arguments)
    directory = options.directory
    try:
        old = assignment.read(directory)
        if (options.update or options.check) and old is None:
            raise ValueError(f"want an assignment that this command has made; got {directory}")
        if options.check:
            lines, changed = check(directory, old)
            print(*lines, sep="\n")
            return int(changed)
        if options.update:
            files = build(root, sorted({*old.stages, *(options.stages or ())}))
            said = update(files, directory, old)
            print(f"{old.version} -> {assignment.read(directory).version}", *said, sep="\n")
            return 0
        files = build(root, options.stages)
        write(files, directory)
    except FileExistsError as error:
        print("these exist already, and nothing was written:", *error.args[0], sep="\n  ",
              file=sys.stderr)
        print("move them away, choose another directory, or --update an assignment",
              file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 2
    numbers = [int(match[1]) for name in files if (match := PROBLEM.fullmatch(name))]
    print(f"Problems {ranges(sorted(numbers))} are in {directory}. Start with its README.md.")
    return 0


def _tops(files: dict[str, bytes]) -> list[str]:
    return sorted({name.split("/")[0] for name in files})


def _stages(text: str) -> list[int]:
    """ "1-3,7" -> [1, 2, 3, 7]."""
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d)(?:-(\d))?", part.strip())
        if not match:
            raise argparse.ArgumentTypeError(f"want stages such as 1-7 or 3,4; got {text}")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


if __name__ == "__main__":
    sys.exit(main())
