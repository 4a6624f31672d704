"""python -m classroom.platforms.gradescope /autograder: grades /autograder/submission, and writes
results/results.json as Gradescope's "Autograder Specifications" have it."""

import json
import sys
from pathlib import Path

from classroom.platforms import one
from classroom.verdicts import verdicts
from grader.host import files


def results(report: dict) -> dict:
    """results.json: one test per stage, with the mistake first in its output."""
    tests = []
    for each in verdicts(report):
        test = {"name": f"{each.name.upper()} {each.title}", "number": each.name[1:],
                "score": each.points, "max_score": each.max_points, "output": each.output,
                "output_format": "text", "name_format": "text"}
        if each.passed is not None:
            test["status"] = "passed" if each.passed else "failed"
        tests.append(test)
    return {"tests": tests, "output": "\n".join(one.summary(report)), "output_format": "text",
            "stdout_visibility": "hidden", "execution_time": round(report["seconds"]),
            "extra_data": {"grader": report["grader"], "stages": [
                {name: stage.get(name) for name in ("stage", "outcome", "sha256", "seed")}
                for stage in report["stages"]]}}


def main(place: Path) -> int:
    one.ends_tidily()
    written = place / "results" / "results.json"

    def write(report: dict) -> None:
        files.replace(written, (json.dumps(results(report), indent=1) + "\n").encode(), 0o644)

    one.grade(place / "submission", one.packed(), write,
              [place / "submission", place / "results"])
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
