"""What the tests of the class tool share: a class's folders, and an autograder that obeys.

The autograder of these tests gives the outcomes that a submission's text asks for, at once; all
else (processes, JSON, signals) is as with the real one.
"""

import functools
import textwrap
from datetime import datetime
from itertools import combinations

from classroom import batch, child
from classroom.gather import gather
from classroom.machine import Machine
from classroom.store import Settings, Store
from grader.assignment import record

VERSION = functools.cache(record.version)
SETTINGS = Settings("0.3.0+test", "cpu", 60.0, 600.0)
OBEDIENT = textwrap.dedent('''
    import hashlib, json, os, re, sys, time
    words = sys.argv[1:]
    given = {words[i]: words[i + 1] for i in range(len(words) - 1)}
    stages = [int(word[3:]) for word in words if re.fullmatch(r"--p[1-9]", word)]
    cuda = given["--device"] == "cuda"
    report = {"grader": os.environ.get("GRADER", "0.3.0+test"),
              "device": "a GPU" if cuda else "cpu", "torch": "2", "triton": "3", "seed": 7,
              "stages": []}
    for stage in stages:
        data = open(f"{given['--submission']}/problem_{stage}.py", "rb").read()
        text = " ".join(data.decode().split())
        timed = cuda and "--no-benchmark" not in words
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        with open(os.environ["ASKED"], "a") as asked:
            asked.write(f"{stage} {text} {timed} {gpu}\\n")
        times = open(os.environ["ASKED"]).read().count(f"{stage} {text} ")
        outcomes = re.sub("# .*", "", text).split()
        outcome = outcomes[min(times, len(outcomes)) - 1]
        if outcome == "dies":
            print("something of ours broke"); os._exit(5)
        if outcome == "usage":
            print("error: want another account", file=sys.stderr); os._exit(2)
        if outcome == "hangs":
            time.sleep(600)
        check = {"name": "standard/one", "group": "standard", "outcome": outcome, "errors": {},
                 "where": "", "diagnosis": None, "message": f"it is {outcome}"}
        timing = {"name": "timing/one", "group": "robust", "outcome": outcome, "errors": {},
                  "where": "", "diagnosis": None, "message": "wrong while timed"}
        checks = [check] + [timing] * (timed and outcome in ("rejected", "wrong"))
        report["stages"].append({
            "stage": stage, "title": "A stage", "outcome": outcome, "detail": "",
            "seconds": 60.0 if outcome == "timeout" else 1.0,
            "points": 100.0 * (outcome == "pass"), "max_points": 100,
            "earned": ["standard", "robust", "walk"] * (outcome == "pass"), "checks": checks,
            "message": "", "confined": ["files", "network"],
            "sha256": hashlib.sha256(data).hexdigest(),
            "benchmark": {"ms": 0.5 if "--case" in words or "moves" not in text else 0.7,
                          "spread_ms": 0.01, "naive_ms": 5.0, "sdpa_ms": 0.4,
                          "peak_mib": 2.0, "naive_peak_mib": 9.0} if timed else None})
        with open(given["--json"] + ".new", "w") as file:
            json.dump(report, file)
        os.replace(given["--json"] + ".new", given["--json"])
''')


def make(folder, students: dict[str, dict[int, str]]):
    """folder/NAME/problem_K.py with these texts."""
    for name, files in students.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for stage, text in files.items():
            (folder / name / f"problem_{stage}.py").write_text(text, "utf-8")
    return folder


def obedient(monkeypatch, tmp_path):
    """Replace the autograder.  -> what it was asked so far: lines of stage, text, timed, GPU."""
    asked = tmp_path / "asked"
    asked.touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setattr(child, "PROGRAM", OBEDIENT)
    monkeypatch.setattr(batch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(batch, "OTHERS_SECONDS", 0.05)
    return lambda: asked.read_text().splitlines()


def program(monkeypatch, tmp_path):
    """The program with an autograder that obeys.  -> grade(*options): its exit code, for the class
    in tmp_path/"in" and stage 2, with the results in tmp_path/"out"."""
    from classroom.__main__ import main

    obedient(monkeypatch, tmp_path)
    monkeypatch.setattr(record, "version", VERSION)  # a hash of all files, at every run

    def grade(*options, submissions=tmp_path / "in") -> int:
        monkeypatch.setenv("GRADER", record.version())
        return main(["grade", str(submissions), "--out", str(tmp_path / "out"), "--stages", "2",
                     "--device", "cpu", *map(str, (*AS, *options))])
    return grade


def grade(submissions, results, gpus: tuple[str, ...] = (), jobs: int = 2, say=lambda text: None):
    """Grade all stages of a class.  -> student -> report."""
    from dataclasses import replace

    from classroom import grades
    from classroom.reports import student_report

    students = gather(submissions)
    machine = Machine(gpus, "a GPU", jobs, 2, 2.0)
    with Store(results, replace(SETTINGS, device=machine.device)) as store:
        for student in students:
            store.keep(results / "submissions" / student.key, student.files)
        batch.Batch(students, list(range(1, 10)), store, machine, hidden=[], benchmark=True,
                    worker_user="auto", account="nobody", say=say).run()
        reports = {student.name: student_report(student, list(range(1, 10)), store)
                   for student in students}
    for report in reports.values():
        grades.apply(report, grades.Policy())
    return reports


def earned(percent: float) -> list[str]:
    """The groups of cases that bring so much of a stage."""
    groups = {"standard": 70, "robust": 20, "walk": 10}
    return next(list(some) for count in range(4) for some in combinations(groups, count)
                if sum(map(groups.get, some)) == percent)


def outcomes(report: dict) -> dict[int, str]:
    """Of the files that were handed in."""
    return {stage["stage"]: stage["outcome"] for stage in report["stages"]
            if stage["outcome"] != "missing"}


AS = ("--allow-root",)  # who runs these tests may be root, with a Python that is root's alone
NOON = datetime(2026, 11, 23, 12, 0)
