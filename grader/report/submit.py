"""Runs --submit: makes one zip to hand in, with the problem files and the grader's results.

Its submission.json names the versions of grader, Python, torch and triton and the sha256 of every
file, and holds the JSON of each program that was run with --submit on these very files.
"""

import hashlib
import io
import json
import platform
import zipfile
from pathlib import Path

from grader.assignment.record import GRADERS
from grader.assignment.submission import read_regular
from grader.host.files import replace
from grader.report.results import Run, as_dict

FORMAT = 1  # of submission.json
ARCHIVE, REPORT = "submission.zip", "submission.json"


def write(run: Run, program: str, directory: Path) -> list[str]:
    """Replace directory/submission.zip.  -> what to tell the student.

    Raises:
        ValueError: a file has changed since it was graded.
        OSError: a file cannot be read, or the archive not written.
    """
    files = {}
    for number in (n for stages in GRADERS.values() for n in stages):
        path = directory / f"problem_{number}.py"
        if path.exists():
            files[path.name] = read_regular(path)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    for result in run.stages:
        if result.sha256 != hashes.get(f"problem_{result.stage}.py"):
            raise ValueError(f"problem_{result.stage}.py changed while it was graded")
    reports = {program: as_dict(run)}
    reports |= {name: report for name, report in _earlier(directory / ARCHIVE).items()
                if name != program and _is_of(report, hashes)}
    record = {"format": FORMAT, "grader": run.grader, "python": platform.python_version(),
              "torch": run.torch, "triton": run.triton, "device": run.device, "files": hashes,
              "reports": reports}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(REPORT, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    replace(directory / ARCHIVE, buffer.getvalue(), 0o644)
    missing = [name for name in GRADERS if name not in reports and any(
        f"problem_{n}.py" in files for n in GRADERS[name])]
    lines = [f"{directory / ARCHIVE}: {len(files)} problem files and their report. Hand in this."]
    if missing:
        lines.append(f"It lacks the report of {missing[0]}: run that with --submit, too.")
    return lines


def _earlier(archive: Path) -> dict[str, dict]:
    """The reports in an earlier archive."""
    try:
        with zipfile.ZipFile(archive) as opened:
            reports = json.loads(opened.read(REPORT))["reports"]
        return {str(name): dict(report) for name, report in reports.items() if name in GRADERS}
    except (OSError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile):
        return {}


def _is_of(report: dict, hashes: dict[str, str]) -> bool:
    """Whether it is about these very files."""
    try:
        return all(stage["sha256"] == hashes.get(f"problem_{stage['stage']}.py")
                   for stage in report["stages"])
    except (KeyError, TypeError):
        return False
