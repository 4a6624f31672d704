"""Packs the grader for the platforms where students hand in: `python -m classroom kit`."""

import json
import tomllib
from pathlib import Path

from classroom import grades
from classroom.pages import zipped
from grader.assignment import record
from grader.assignment.record import ROOT
from grader.course import own_cases

PLATFORMS = ROOT / "classroom" / "platforms"
SPARE_MINUTES = 1.0  # from our deadline to the platform's


def course(stages: list[int], minutes: float, given: Path | None, cases: Path | None = None
           ) -> dict[str, bytes]:
    """The folder course/: relative path -> contents.  minutes: the platform's limit; given: a
    policy.toml; cases: the instructor's own.  Raises ValueError: the policy or the cases are
    invalid, or there are too few minutes."""
    if not 2 <= minutes < float("inf"):
        raise ValueError(f"--minutes: want 2 or more; got {minutes:g}")
    grades.read(given)
    if cases:
        own_cases.read(cases)
    files = record.engine() | {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in sorted((ROOT / "classroom").rglob("*.py"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needs = project["dependencies"] + project["optional-dependencies"]["course"]
    files["requirements.txt"] = "".join(f"{need}\n" for need in needs).encode()
    for name in ("constraints.txt", "LICENSE"):
        files[name] = (ROOT / name).read_bytes()
    for name, path in (("policy.toml", given), ("cases.toml", cases)):
        if path:
            files[name] = path.read_bytes()
    decided = {"stages": stages, "seconds": 60 * (minutes - SPARE_MINUTES)}
    files["kit.json"] = (json.dumps(decided) + "\n").encode()
    return {f"course/{name}": contents for name, contents in files.items()}


def classroom50(inside: dict[str, bytes]) -> dict[str, bytes]:
    """The folder to copy from: relative path -> contents.  inside: course()."""
    folder = PLATFORMS / "classroom50"
    found = {path.relative_to(folder).as_posix(): path.read_bytes()
             for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    return found | {f"autograder/{name}": contents for name, contents in inside.items()}


def gradescope(inside: dict[str, bytes]) -> bytes:
    """The zip to upload.  inside: course()."""
    scripts = {path.name: path.read_bytes() for path in (PLATFORMS / "gradescope").iterdir()}
    return zipped(scripts | inside, scripts)
