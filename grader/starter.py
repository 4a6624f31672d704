"""Writes the assignment that a student starts from:  python -m grader.starter DIR

Every solution region of every problem file is replaced by a `raise` that names its step.  A
student's work is never overwritten.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib
from pathlib import Path

from grader.assignment import record
from grader.assignment.record import GRADERS, ROOT, WARM_UPS, Assignment, sha256
from grader.assignment.submission import blank_steps, lines, plain, steps
from grader.blank import blank
from grader.course.stages import version
from grader.host.files import keep
from grader.text import ranges

PROBLEM = re.compile(r"problem_(\d+)\.py")
EXERCISES = ("guide/__init__.py", "guide/exercises.py", "guide/exercises.json")  # without answers
SITE = "guide/_build/html"  # what `make guide` builds; --guide copies it to DIR/site
# In place of the guide's address.
UNPUBLISHED = """\
Ask the person who gave you this folder for the guide. If you made
the folder yourself: in the course's checkout, `make guide` builds the guide, and
`python3 -m grader.starter DIR --guide` copies it into this folder, where it begins with
`site/index.html`."""
NOT_GIVEN = re.compile(r"^Faster .*\n", re.MULTILINE)  # students get no sink_attn/
IGNORED = (".venv/\n__pycache__/\n.autograder/\n.starter-*/\n/results*.json\n/submission.zip\n"
           "/site/\n")
REPLACED = Path(".autograder", "replaced")  # where --update keeps changed files


def problem_files(root: Path) -> dict[int, Path]:
    """Stage number -> problem file, in order."""
    return dict(sorted((int(match[1]), path) for path in root.glob("problem_*.py")
                       if (match := PROBLEM.fullmatch(path.name))))


def build(root: Path, stages: list[int] | None = None) -> dict[str, bytes]:
    """The files of an assignment with these stages, or all: relative path -> contents.

    Raises:
        ValueError: there is no such stage, a file is missing, or a problem file is malformed.
    """
    if record.read(root):
        raise ValueError(f"want the course's repository to write from; got an assignment, {root}")
    problems = problem_files(root)
    stages = sorted(set(problems if stages is None else stages))
    if not stages or not set(stages) <= set(problems):
        raise ValueError(f"want stages of {list(problems)}; got {stages}")
    files = {}
    to_write = {problems[number].name: problems[number] for number in stages}
    if 1 in stages:
        to_write[WARM_UPS] = root / WARM_UPS
    for name, path in to_write.items():
        try:
            files[name] = _blanked(_contents(path).decode())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for name, graded in GRADERS.items():
        if set(graded) & set(stages):
            files[name] = _contents(root / name)
    files |= record.engine(root) | {name: _contents(root / name) for name in EXERCISES}
    project = tomllib.loads(_contents(root / "pyproject.toml").decode())["project"]
    text = _contents(root / "grader/assignment/assignment.md").decode()
    if published := project.get("urls", {}).get("Guide"):
        text = text.replace(UNPUBLISHED, f"It is at {published}.")
    files["README.md"] = _readme(text, stages, files)
    agents = _contents(root / "grader/assignment/agents.md").decode()
    files["AGENTS.md"] = _readme(agents, stages, files)
    needs = project["dependencies"] + project["optional-dependencies"]["course"]
    files["requirements.txt"] = "".join(f"{need}\n" for need in needs).encode()
    files[".gitignore"] = IGNORED.encode()
    files["LICENSE"] = _contents(root / "LICENSE")
    given = {name: sha256(contents) for name, contents in files.items()}
    made = Assignment(record.version(root), tuple(stages), given)
    return files | {record.RECORD: made.encoded()}


def _contents(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    return path.read_bytes()


def _readme(text: str, stages: list[int], files: dict[str, bytes]) -> bytes:
    """Cut assignment.md, which is written for all stages, down to these.

    Lines between `<!-- 4-9 -->` and the next such mark are for assignments with one of these
    stages; a line that names a problem is for assignments with that problem.
    """
    def new_step(number: int) -> str:
        source = files[f"problem_{number}.py"].decode()
        return next((step.id for step in steps(source) if not step.origin), f"{number}.1")

    origins = {step.origin.partition(".")[0] for n in stages
               for step in steps(files[f"problem_{n}.py"].decode()) if step.origin}
    absent = sorted(origins - {*map(str, stages)})
    first = stages[0]
    carrying = [n for n in stages if b"-- Copied from step" in files[f"problem_{n}.py"]]
    examples = {"python autograder.py": f"python {record.grader_of(first)}",
                "--p1": f"--p{first}", "1.1": new_step(first),
                "problem_1.py": f"problem_{first}.py",
                "carry 4": f"carry {(carrying or stages)[0]}"}
    rows, wanted = [], True
    for row in text.splitlines(keepends=True):
        if match := re.fullmatch(r"<!-- ([\d-]+) -->\n", row):
            wanted = bool(set(parse_stages(match[1])) & set(stages))
            continue
        if row.startswith("python ") or "BEGIN SOLUTION" in row:
            for example, here in examples.items():
                row = row.replace(example, here)
        if wanted and ((named := PROBLEM.search(row)) is None or int(named[1]) in stages):
            rows.append(row)
            if absent and "grader.carry" in row and "--from" in row:
                rows.append(f"# steps from problem {', '.join(absent)}, which you were not given: "
                            "write them anew, or --from\n")
    return "".join(rows).encode()


def write(files: dict[str, bytes], directory: Path) -> None:
    """Write all of the files or, if an error comes up, none.

    Raises:
        ValueError: some exist already.
    """
    existing = [str(directory / top) for top in _tops(files) if os.path.lexists(directory / top)]
    if existing:
        raise ValueError("\n  ".join(["these exist already, and nothing was written:", *existing])
                         + "\nmove them away, choose another directory, or --update an assignment")
    directory.mkdir(parents=True, exist_ok=True)
    _exchange(files, directory)


def built(root: Path) -> None:
    """Raises ValueError if the guide is not built."""
    if not (root / SITE / "index.html").is_file():
        raise ValueError("want the guide, which `make guide` builds in the course's checkout; got "
                         f"no {SITE} in {root}")


def copy_guide(root: Path, directory: Path) -> str:
    """Copy the built guide into the directory.  -> a sentence that says where it is.

    Raises:
        ValueError: it is not built, or site/ there is something else.
    """
    built(root)
    if (directory / "site").exists() and not (directory / "site/index.html").is_file():
        raise ValueError(f"want {directory / 'site'} free for the guide; got something else there")
    _exchange({f"site/{path.relative_to(root / SITE).as_posix()}": path.read_bytes()
               for path in sorted((root / SITE).rglob("*")) if path.is_file()}, directory)
    return f"The guide is in {directory / 'site/index.html'}."


def update(files: dict[str, bytes], directory: Path, old: Assignment) -> list[str]:
    """Bring an assignment up to these files.  -> sentences on what else there is to know.

    A problem file that the student has written in stays as it is.  Other changed files are copied
    to .autograder/replaced first.
    """
    files, said, given = dict(files), [], record.decoded(files[record.RECORD])
    for name in [name for name in files if _is_students(name)]:
        path, was = directory / name, old.files.get(name)
        if not os.path.lexists(path):
            said.append(f"{name} was not there: written, blank.")
        elif name == WARM_UPS and was != given.files[name] and (
                filled := _filled(files[name], path.read_bytes(), was)):
            files[name] = filled
            said.append(f"{name} has a newer text: what you wrote is in it.")
        elif was == given.files[name] or sha256(plain(path.read_bytes())) != was:
            del files[name]
            if was and was != given.files[name]:
                said.append(f"{name} has a newer text; yours, which is begun, stays as it is.")
                given.files[name] = was
        else:
            said.append(f"{name} has a newer text; nothing was written in yours: replaced.")
    files[record.RECORD] = given.encoded()
    for name, path in _found(directory, files).items():
        contents = path.read_bytes()
        if sha256(contents) != old.files.get(name) and contents != files.get(name):
            copy = keep(path, directory / REPLACED / name).relative_to(directory)
            said.append(f"{name} was not as given: what you had is in {copy}.")
    _exchange(files, directory)
    return said


def _filled(new: bytes, yours: bytes, was: str | None) -> bytes | None:
    """A newer text with what is written in your steps; None if you wrote nowhere, or elsewhere, or
    in steps that it does not have."""
    try:
        text = plain(yours).decode("utf-8")
        if sha256(text.encode()) == was or sha256(_blanked(text)) != was:
            return None
        rows, old, mine = lines(new.decode()), lines(text), {one.id: one for one in steps(text)}
        regions = {one.id: one for one in steps(new.decode())}
    except ValueError:
        return None
    for one in reversed(regions.values()):  # from the end, so that line numbers stay right
        if one.id in mine:
            inside = slice(mine[one.id].first_line, mine[one.id].last_line - 1)
            rows[one.first_line:one.last_line - 1] = old[inside]
    return "".join(rows).encode() if mine.keys() <= regions.keys() else None


def _blanked(text: str) -> bytes:
    """A problem file as it is given to students."""
    return NOT_GIVEN.sub("", blank(text)).encode()


def _found(directory: Path, files: dict[str, bytes]) -> dict[str, Path]:
    """What exists where the files are to go, without the record and Python's caches."""
    paths = [path for top in _tops(files) for path in
             ((directory / top).rglob("*") if (directory / top).is_dir() else [directory / top])]
    return {path.relative_to(directory).as_posix(): path for path in paths
            if path.is_file() and "__pycache__" not in path.parts
            and path != directory / record.RECORD}


def _exchange(files: dict[str, bytes], directory: Path) -> None:
    """Replace what is there by these files, one top-level entry at a time; all, or none."""
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
    """-> one line per problem file and per other file that was changed; whether there are such
    other files."""
    problems, others = [], []
    for name, digest in sorted(given.files.items()):
        path = directory / name
        contents = path.read_bytes() if path.is_file() else None
        if _is_students(name):
            problems.append((name, "missing" if contents is None else _state(contents, digest)))
        elif contents is None or sha256(contents) != digest:
            others.append((name, "missing" if contents is None else "changed"))
    others += [(name, "added") for name in _found(directory, {"grader/": b""})
               if name not in given.files]
    return [f"{name:<16} {state}" for name, state in problems + others], bool(others)


def _state(contents: bytes, digest: str) -> str:
    """How a problem file differs from the blank one, whose digest this is."""
    contents = plain(contents)
    if sha256(contents) == digest:
        return "as it was given"
    try:
        text = contents.decode("utf-8")
        regions = steps(text)
        filled = len(regions) - len(set(blank_steps(text)) & {step.id for step in regions})
        outside = sha256(_blanked(text)) != digest
    except ValueError as error:
        return f"yours; its markers or its text are damaged: {error}"
    return (f"yours: {filled} of {len(regions)} steps filled"
            + ", and changed outside its steps" * outside)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Return 0 if done or only problem files differ, 1 if others do, 2 on an error, with nothing
    written."""
    parser = argparse.ArgumentParser(
        prog="python -m grader.starter", description=__doc__,
        epilog="exit code: 0 done, or nothing but problem files differs; 1 other files do; 2 an "
               "error, and nothing was written")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the assignment is to be")
    parser.add_argument("--stages", type=parse_stages, metavar="1-7",
                        help="these only, such as 1-7 or 3,4 (default: all); with --update, in "
                             "addition")
    parser.add_argument("--guide", action="store_true",
                        help="put the guide there, too, as DIR/site, once `make guide` has built "
                             "it; of an assignment that is there, nothing else changes")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--update", action="store_true",
                        help="a newer grader into an assignment; what is written there stays")
    either.add_argument("--check", action="store_true",
                        help="say which files of an assignment are not as they were given")
    options = parser.parse_args(arguments)

    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)  # undoes a half-done update
    try:
        lines, changed = _done(options, root)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, usual)
    print(*lines, sep="\n")
    return int(changed)


def _done(options: argparse.Namespace, root: Path) -> tuple[list[str], bool]:
    """Do what was asked.  -> what to say, and whether a check found other files changed."""
    directory = options.directory
    old = record.read(directory)
    if (options.update or options.check) and old is None:
        for left in directory.glob(".starter-*/old"):  # left by an update that was killed
            raise ValueError("want an assignment; got one whose update was cut off: move what lies "
                             f"in {left} back to {directory}")
        raise ValueError(f"want an assignment that this command has made; got {directory}")
    if options.check:
        if options.stages or options.guide:
            raise ValueError("want --check without --stages and --guide; got one of them with it")
        lines = [f"Given: grader {old.version}, problems {ranges(old.stages)}."]
        if record.read(root) is None:  # the repository itself
            if old.version == (here := record.version(root)):
                old = record.decoded(build(root, list(old.stages))[record.RECORD])
            else:
                lines.append(f"Here: grader {here}; --update brings it.")
        found, changed = check(directory, old)
        return lines + found, changed
    if options.update:
        if version(old.version, 3) > version(record.VERSION, 3):
            raise ValueError(f"want a grader no older than the assignment's, {old.version}; got "
                             f"{record.VERSION}")
        files = build(root, sorted({*old.stages, *(options.stages or ())}))
        said = update(files, directory, old)
        said += [copy_guide(root, directory)] if options.guide else []
        return [f"{old.version} -> {record.read(directory).version}", *said], False
    if options.guide and old is not None and not options.stages:
        return [copy_guide(root, directory)], False
    files = build(root, options.stages)
    if options.guide:
        built(root)
    write(files, directory)
    numbers = sorted(int(match[1]) for name in files if (match := PROBLEM.fullmatch(name)))
    words = f"Problems {ranges(numbers)} are" if len(numbers) > 1 else f"Problem {numbers[0]} is"
    return [f"{words} in {directory}. Start with its README.md.",
            *([copy_guide(root, directory)] if options.guide else ())], False


def _is_students(name: str) -> bool:
    """Whether students write in this file."""
    return name == WARM_UPS or PROBLEM.fullmatch(name) is not None


def _tops(files: dict[str, bytes]) -> list[str]:
    return sorted({name.split("/")[0] for name in files})


def parse_stages(text: str) -> list[int]:
    """ "1-3,7" -> [1, 2, 3, 7]."""
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d\d?)(?:-(\d\d?))?", part.strip())
        run = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not run:
            raise argparse.ArgumentTypeError(f"want stages such as 1-7 or 3,4; got {text}")
        numbers += run
    return numbers


if __name__ == "__main__":
    sys.exit(main())
