"""Says which version of the grader this is, and which assignment it is part of, if any.

`python -m grader.starter` leaves grader/assignment.json in an assignment: the grader's version, the
stages that were given, and the sha256 of every file as it was given.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from grader.course.stages import STAGES

VERSION = "1.0.0"
GRADERS = {program: tuple(number for number, stage in STAGES.items() if stage.program == program)
           for program in ("autograder.py", "autograder_optional.py")}  # their stages
ROOT = Path(__file__).resolve().parents[2]
WARM_UPS = "warmups/warmups.py"  # given with problem 1
EXERCISES = ("W.1", "W.2", "W.3", "W.4", "W.5", "W.6", "W.7", "W.8")
RECORD = "grader/assignment.json"
HUNT = ".hunt"  # of python -m grader.hunt, in the folder of a hunt
NOT_THE_ENGINE = ("assignment.json", "assignment.md")  # part of what was given, not of the grader
# The grader's own files; an editor may leave others.
KINDS = (".py", ".toml", ".json", ".npz", ".tsv", ".css", ".html", ".js")


@dataclass(frozen=True)
class Assignment:
    """What students were given.  files: relative path -> sha256."""

    version: str
    stages: tuple[int, ...]
    files: dict[str, str]

    def encoded(self) -> bytes:
        """The contents of grader/assignment.json."""
        record = {"grader": self.version, "stages": list(self.stages), "files": self.files}
        return (json.dumps(record, indent=1) + "\n").encode()


def decoded(contents: bytes) -> Assignment:
    """The record that encoded() wrote.

    Raises:
        ValueError: contents are no such record.
    """
    try:
        record = json.loads(contents)
        stages = tuple(int(number) for number in record["stages"])
        files = {str(name): str(digest) for name, digest in record["files"].items()}
        return Assignment(str(record["grader"]), stages, files)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"want a record such as {RECORD}; got {error!r}") from None


def read(directory: Path) -> Assignment | None:
    """The record in directory, or None.

    Raises:
        ValueError: the record is damaged.
    """
    path = directory / RECORD
    return decoded(path.read_bytes()) if path.is_file() else None


def engine(root: Path = ROOT) -> dict[str, bytes]:
    """All files that decide a verdict, grader/ and reference.py: relative path -> contents."""
    paths = [path for path in (root / "grader").rglob("*")
             if path.is_file() and path.suffix in KINDS and not path.name.startswith(".")
             and path.name not in NOT_THE_ENGINE]
    return {path.relative_to(root).as_posix(): path.read_bytes()
            for path in [*sorted(paths), root / "reference.py"]}


def version(root: Path = ROOT) -> str:
    """ "1.0.0+1a2b3c4d"; results with the same version were judged by the same code."""
    whole = hashlib.sha256()
    for name, contents in engine(root).items():
        whole.update(f"{name}\0{len(contents)}\0".encode() + contents)
    return f"{VERSION}+{whole.hexdigest()[:8]}"


def grader_of(stage: int) -> str:
    """The program that grades this stage."""
    return next(name for name, stages in GRADERS.items() if stage in stages)


def sha256(contents: bytes) -> str:
    """The sha256 in hexadecimal."""
    return hashlib.sha256(contents).hexdigest()
