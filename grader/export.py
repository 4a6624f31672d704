"""What a program reads: the JSON file, whole at every moment, rewritten after every stage."""

import json
import math
import os
import tempfile
from pathlib import Path

from grader.results import Check, Run, StageResult

FORMAT = 1


def as_dict(run: Run) -> dict:
    """The run in the published format; numbers that JSON cannot say (NaN, inf) become null."""
    return {"format": FORMAT, "grader": run.grader, "device": run.device, "torch": run.torch,
            "triton": run.triton, "seed": run.seed,
            "stages": [_stage(result) for result in run.stages]}


def write(run: Run, path: Path) -> None:
    """Replace the file in one step, so that a reader or a Ctrl-C never meets half of it."""
    text = json.dumps(as_dict(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)  # mkstemp made it private; a gradebook must read it
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _stage(result: StageResult) -> dict:
    return {"stage": result.stage, "title": result.title, "outcome": result.outcome,
            "points": result.points, "max_points": result.max_points, "sha256": result.sha256,
            "seconds": round(result.seconds, 3), "message": result.sentence,
            "detail": result.detail, "confined": list(result.confined),
            "checks": [_check(check) for check in result.checks],
            "benchmark": _finite(result.benchmark)}


def _check(check: Check) -> dict:
    return {"name": check.name, "group": check.group, "outcome": check.outcome,
            "errors": _finite(check.errors), "where": check.where, "diagnosis": check.diagnosis,
            "message": check.message}


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
