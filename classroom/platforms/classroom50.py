"""python -m classroom.platforms.classroom50 CHECKOUT: grades CHECKOUT, and writes result.json there
(Classroom 50's wiki, Advanced-Autograding) and release-body.md, for people."""

import json
import os
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

from classroom.platforms import one
from classroom.verdicts import verdicts
from grader.host import files

SCHEMA = "classroom50/result/v1"
MOST_SAID = 4000  # characters per stage in the release; GitHub allows about 125,000 in all
OURS = {"pending", "grader_fault", "skipped"}  # outcomes that are not the student's fault


def result(report: dict, given: dict[str, str]) -> dict:
    """result.json, with whole points.  given: the runner's environment."""
    tests = [{"test-name": f"{each.name} {each.title}", "passed": each.passed is True,
              "score": round(each.points), "max-score": round(each.max_points),
              "mistake": each.mistake, "help": each.help} for each in verdicts(report)]
    return {"schema": SCHEMA, "classroom": given["CLASSROOM"], "assignment": given["ASSIGNMENT"],
            "submission": given["SUBMISSION_TAG"], "commit": given["COMMIT_URL"],
            "release": given["RELEASE_URL"],
            "review": given.get("REVIEW_URL") or given["COMMIT_URL"],
            "datetime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "score": sum(test["score"] for test in tests),
            "max-score": sum(test["max-score"] for test in tests), "tests": tests}


def body(report: dict) -> str:
    """release-body.md: a table, and what was said about each stage that did not pass."""
    rows = [f"| {each.name.upper()} {each.title} "
            f"| {'not settled' if each.passed is None else 'passed' if each.passed else 'failed'} "
            f"| {each.points:g} of {each.max_points:g} |" for each in verdicts(report)]
    said = [f"#### {each.name.upper()} {each.title}\n\n"
            + textwrap.indent(f"{each.mistake}\n\n{each.said[:MOST_SAID]}\n\n"
                              f"next, in your folder: {each.help}", "    ") + "\n"
            for each in verdicts(report) if each.said]
    first, *rest = one.summary(report)
    return "\n".join((f"### {first}", "", "| Stage | Result | Points |", "|---|---|---|", *rows, "",
                      *rest, "", *said))


def main(checkout: Path) -> int:
    """-> 0; 1 if something could not be graded, through no fault of the student."""
    one.ends_tidily()

    def write(report: dict) -> None:
        made = json.dumps(result(report, os.environ), indent=1) + "\n"
        files.replace(checkout / "result.json", made.encode(), 0o644)
        files.replace(checkout / "release-body.md", body(report).encode(), 0o644)

    report = one.grade(checkout, one.packed(), write, [], device="auto")
    return int(any(stage["outcome"] in OURS for stage in report["stages"]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
