"""python -m classroom grade | gradebook | leaderboard | questions | kit ...; --help."""

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path

from classroom import audit, gradebook, grades, machine, settings, slurm, standing
from classroom.alike import alike
from classroom.batch import Batch
from classroom.gather import Asked, Submitted, gather
from classroom.reports import (
    as_json,
    grades_csv,
    junit,
    read_reports,
    student_report,
    to_look_at,
    undecided,
)
from classroom.store import Settings, Store, check_ours, put
from grader import starter
from grader.assignment import record
from grader.cli import add_option as _add
from grader.course.stages import STAGES
from grader.host import files

DONE, NOT_SETTLED, USAGE, INTERRUPTED = 0, 3, 2, 130
OUTPUTS = ("grades.csv", "junit.xml", "summary.html", "feedback.zip", "audit/history.csv")
POLICY = "a policy.toml: what stages and groups of cases are worth"  # help of options
AS_ROOT = "let the files run as root where no other account can run them"
SAY_SECONDS = 30.0  # between two lines of progress without a terminal


def main(argv: list[str] | None = None) -> int:
    """-> 0 all done, 2 usage, 3 a person has to look at something, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    arguments.words = sys.argv[1:] if argv is None else argv
    try:
        if arguments.command != "grade":
            return {"gradebook": book, "leaderboard": board, "questions": ask, "kit": pack}[
                arguments.command](arguments)
        wanted = settings.complete(arguments)
        _check(arguments)
        return grade(arguments, wanted)
    except (ValueError, RecursionError) as error:  # RecursionError: deeply nested TOML
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename}"
              + "; what was graded so far stands" * (arguments.command == "grade"), file=sys.stderr)
    return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m classroom", description="Grade the submissions of a class.")
    commands = parser.add_subparsers(dest="command", required=True,
                                     metavar="grade | gradebook | leaderboard | questions | kit")

    def command(name: str, help: str, **more) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.",
                                   **more)

    grading = command(
        "grade", "grade a folder of submissions, or go on with it; RESULTS/class.toml keeps the "
        "options that decide a grade", epilog="exit code: 0 everything is decided, 2 usage, 3 a "
        "person has to look at something, 130 interrupted",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=80))
    add, often = partial(_add, grading), {"action": "append", "default": []}
    add("submissions SUBMISSIONS", "a folder with a folder, a .zip or a .tar.gz per student, or "
        "what Moodle or Canvas downloads, unpacked or not; or a .csv with the columns name and "
        "path")
    add("--out RESULTS", "the folder for the results; hosts may share it", required=True)
    add("--roster FILE", "a .csv of all students, with some of the columns name, id, login, "
        "e-mail and team; beside --moodle or --canvas it adds names and numbers")
    _gradebooks(grading.add_mutually_exclusive_group(), grading)
    add("--stages 1-7", "stages to grade (default: all)")
    add("--policy FILE", POLICY)
    add("--overrides FILE", "a .csv with the columns student, stage, points, reason (which the "
        "student reads), note (private) and days_late: what you decide instead of the grader")
    add("--cases FILE", "your own cases, TOML, which students do not have")
    add("--seed N", "the same inputs for everyone (default: fresh ones)")
    add("--jobs N", "gradings at once (default: what cores and memory hold)")
    grading.add_argument("--device", choices=settings.DEVICES,
                         help="cpu: Triton's interpreter even where there is a GPU")
    add("--timeout S", "seconds for one call of the code (default: 60)")
    add("--stage-timeout S", "seconds for all that is asked of one file (default: 600)")
    for name, help in (("--benchmark", "time what passed, on a GPU (default: yes)"),
                       ("--partial", "SUBMISSIONS has only a part of the class (default: no)")):
        grading.add_argument(name, action=argparse.BooleanOptionalAction, help=help)
    add("--yes", "change existing grades without asking")
    add("--again STUDENT[:STAGE]", "grade the files of a student again; may be repeated", **often)
    add("--forget STUDENT", "remove all about somebody who left the class; may be repeated",
        **often)
    add("--join RESULTS", "take over what another person graded of this class: records, grades "
        "and history; may be repeated", **often)
    add("--worker-user NAME", "as the autograder's (root only)", default="auto")
    add("--allow-root", AS_ROOT)
    add("--slurm N", "run as N tasks of a Slurm array job (needs submitit)", default=0)
    add("--slurm-option NAME=VALUE", "passed on to sbatch, such as partition=gpu or gres=gpu:1; "
        "may be repeated", **often)
    booking = command(
        "gradebook", "fill a column of an exported gradebook, or write one",
        epilog="exit code: 0 everyone is in both, 2 usage, and nothing was written, 3 the lines "
               "say who is not")
    _add(booking, "results RESULTS", "what `grade` wrote")
    system = booking.add_mutually_exclusive_group(required=True)
    _gradebooks(system, booking)
    _add(system, "--nbgrader FILE", "write FILE with the columns of nbgrader export; "
         "--column names the assignment")
    _add(system, "--check50 DIR", "write DIR/NAME.json, as check50 has it, for everyone")
    add = partial(_add, command(
        "leaderboard", "write DIR/index.html: a board of times per stage and GPU, under aliases"))
    add("results RESULTS", "what `grade` wrote")
    add("--out DIR", "the folder for the page", required=True)
    add("--verify N", "first grade and time the top N of every board again", default=0)
    add("--allow-root", AS_ROOT)
    add = partial(_add, command(
        "questions", "write RESULTS/questions/NAME.html, three questions per student on their own "
        "files, to print, and RESULTS/answers.html"))
    add("results RESULTS", "what `grade` wrote")
    add("--student NAME", "ask only this student; the answers are in RESULTS/answers-NAME.html",
        default="")
    add("--seed N", "other questions for another number (default: 0)", default=0)
    add("--allow-root", AS_ROOT)
    packing = command("kit", "pack the grader for Gradescope, a zip, or Classroom 50, a folder")
    packing.add_argument("platform", choices=("gradescope", "classroom50"))
    add = partial(_add, packing)
    add("--out PATH", "the zip, or the folder, which must not be there yet", required=True)
    add("--stages 1-7", "stages to grade (default: 1-7)", default="1-7")
    add("--minutes X", "that the platform grants a submission (default: 10)", default=10.0)
    add("--policy FILE", POLICY)
    add("--cases FILE", "your own cases, TOML; only for Gradescope: Classroom 50 publishes a kit")
    return parser


def _gradebooks(one_of, command) -> None:
    _add(one_of, "--canvas FILE", "the exported gradebook -> RESULTS/canvas.csv, to be imported")
    _add(one_of, "--moodle FILE", "the grading worksheet -> RESULTS/moodle.csv, to be uploaded")
    _add(command, "--column TITLE", "which to fill, where that is not clear")
    _add(command, "--scale X", "points there that all points here are")


def _check(given) -> None:
    """Raises ValueError: these options of `grade` are invalid or contradict each other."""
    out, submissions = given.out.resolve(), given.submissions.resolve()
    apart = out != submissions and not {out, submissions} & {*out.parents, *submissions.parents}
    for is_right, want in (
            (given.jobs is None or given.jobs >= 1, f"--jobs: want 1 or more; got {given.jobs}"),
            (given.seed is None or 0 <= given.seed < 2**48,
             f"--seed: want 0 to 2^48 - 1; got {given.seed}"),
            (given.slurm >= 0, f"--slurm: want 1 task or more; got {given.slurm}"),
            (given.slurm or not given.slurm_option,
             "--slurm-option: want it with --slurm N; got it alone"),
            (apart, f"--out: want a folder apart from the submissions; got {given.out}")):
        if not is_right:
            raise ValueError(want)
    _check_positive(given, "timeout", "stage_timeout", "scale")


def _check_positive(arguments, *names: str) -> None:
    for name in names:
        if (value := getattr(arguments, name)) is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')}: want a number above 0; got {value:g}")


def _stages(text: str) -> list[int]:
    """The stages of --stages, in order."""
    try:
        stages = sorted(set(starter.parse_stages(text)))
        if not set(stages) <= set(STAGES):
            raise argparse.ArgumentTypeError(f"want stages of 1-{max(STAGES)}; got {text}")
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--stages: {error}") from None
    return stages


def grade(arguments, wanted: dict) -> int:
    """Run `grade`; the reports are written at the end, however it ends.  wanted: the new contents
    of class.toml."""
    from classroom.pages import zipped  # needs jinja2

    stages = _stages(arguments.stages)
    cases = ""
    if arguments.cases:
        from grader.course import own_cases  # imports torch

        own_cases.read(arguments.cases)
        cases = record.sha256(arguments.cases.read_bytes())[:12]
    options = list(filter(vars(arguments).get, ("roster", "moodle", "canvas")))
    tables = [getattr(arguments, name) for name in options]
    listed = " and ".join(table.name for table in tables)
    left_out = settings.replaced(arguments.out, wanted)
    worth = grades.read(arguments.policy)
    present = gather(arguments.submissions, *tables, options=options, say=left_out.append,
                     asked=Asked(stages, worth.ignore))
    joined = [line for other in arguments.join for line in audit.join(arguments.out, other)]
    joined += settings.not_applied(arguments.out, wanted)
    earlier = read_reports(arguments.out) if any(arguments.out.glob("students/*.json")) else []
    students, stands, kept = standing.everyone(
        present, earlier, arguments.out, arguments.submissions.suffix.lower() == ".csv",
        bool(worth.late))
    students = standing.in_teams(students, kept, worth.late, stages)
    standing.check_words(students, listed, bool(worth.late))
    if arguments.partial:
        worth = replace(worth, zero=False)  # the others may have handed in
    elif listed:
        students = standing.absent(students, arguments.submissions, tables[-1].name, worth)
    overrides = grades.by_student(grades.read_overrides(arguments.overrides), students, stages,
                                  worth)
    spent, doubts, lines = worth.late.spent_by([student.person for student in students]) \
        if worth.late else (Counter(), Counter(), [])
    nothing = [student for student in students if student.is_nothing]
    if worth.zero and (unsure := [student for student in nothing if student.may_own]):
        lines.append(f"missing: {len(unsure)} of the {len(nothing)} who handed in nothing get no 0 "
                     "points, because a submission that matches no student may be theirs: "
                     + ", ".join(dict.fromkeys(chain(*(each.may_own for each in unsure)))))
    gone = {grades.one(word, students, "--forget").key: word for word in arguments.forget}
    for key, word in gone.items():
        if kept.pop(key, True):
            raise ValueError("--forget: want somebody who is neither in SUBMISSIONS nor on the "
                             f"roster; got {word}")
        if key in overrides:
            raise ValueError(f"--forget: want somebody whom {arguments.overrides} does not name; "
                             f"got {word}: first delete the row of {overrides[key][0].student}")
    names = {student.key: student.name for student in students}
    students = [student for student in students if student.key not in gone]
    most = sum(worth.full(number) for number in stages if number not in worth.optional)
    # These fail early if a gradebook cannot be filled, or a file is not ours to replace.
    gradebooks = filled(arguments, arguments.out, most, [])[0]
    check_ours(arguments.out, [*OUTPUTS, *(path.name for path in gradebooks), *chain.from_iterable(
        standing.outputs(student.key) for student in students)])
    account = "" if arguments.slurm else machine.account(
        arguments.worker_user, arguments.allow_root)
    for key in gone:
        audit.forget(arguments.out, key, names[key])
        standing.forget(arguments.out, key)
    counting = {student.key: grades.that_count(student, worth.late, overrides.get(student.key, []))
                for student in students}
    standing.grade_again(arguments.again, students, counting, arguments.out)
    if arguments.slurm:
        return spread(arguments)
    here = machine.look(arguments.device, arguments.jobs)
    how = Settings(record.version(), here.device, arguments.timeout, arguments.stage_timeout,
                   arguments.seed, cases, worth.assignment)
    progress = Progress()
    with Store(arguments.out, how) as store:
        for line in (*left_out, *joined, *lines):
            progress.line(line)
        for student in students:
            if student.trouble:
                progress.line(f"{student.name}: refused, {student.trouble}")
            for number in sorted(student.refused.keys() & set(stages)):
                progress.line(
                    f"{student.name}: problem_{number}.py refused, {student.refused[number]}")
            for note in student.notes:
                progress.line(f"{student.name}: {note}")
            if student.mate and not (student.trouble or {*stages} <= student.refused.keys()):
                progress.line(f"{student.name}: graded by what {student.mate} of the same team "
                              "handed in")
        if before := [student.name for student in students if student.key in kept
                      and not (student.mate or standing.FORMER in student.notes)]:
            progress.line(", ".join(before) + ": nothing in SUBMISSIONS now, so what was handed in "
                          "before counts; --forget NAME removes somebody who left")
        if worth.late and (undated := sum(
                student.time is None and not student.is_nothing for student in students)):
            progress.line(f"late: it is not known when {undated} of {len(students)} students handed"
                          " in; nothing is taken off for it")
        progress.line(f"Students: {len(students)}; {here.words}, grader {how.grader}")
        batch = Batch([each for found in counting.values() for each in found], stages, store, here,
                      benchmark=arguments.benchmark, hidden=[
                          arguments.submissions.parent
                          if arguments.submissions.suffix.lower() == ".csv"
                          else arguments.submissions, arguments.out,
                          *filter(None, map(vars(arguments).get, settings.PATHS))],
                      worker_user=arguments.worker_user, account=account, say=progress.live,
                      cases=arguments.cases)
        chosen: dict[str, Submitted] = {}  # the hand-ins that count

        def report_of(student) -> dict:
            """The report of the hand-in with the most points, or that may yet get the most; then it
            is not final."""
            made = []
            for each in counting[student.key]:
                report = student_report(each, stages, store)
                rules = replace(worth, zero=False) if each.may_own else worth
                grades.apply(report, rules, overrides.get(student.key, []), spent[student.person],
                             doubts[student.person])
                standing.hold(report, stands.get(student.key))
                made.append((each, report))
            best, report = max(reversed(made), key=lambda found: grades.at_most(found[1]))
            chosen[student.key] = best
            old = stands.get(student.key, report)
            return report | {"key": student.key,
                             "others": standing.others(student, best)[0] or old["others"]}

        toml, text = arguments.out / settings.FILE, settings.text(arguments.out, wanted).encode()
        if not toml.is_file():  # nothing to protect: with --yes alone, the same options count
            store.write(toml, text)
        run = audit.begin(store, arguments, settings.tables(arguments.out, wanted))
        by = {"class": settings.digest(arguments.out, wanted), "commit": run["commit"]}
        interrupted = False
        try:
            batch.run()
        except KeyboardInterrupt:
            interrupted = True
        found = list(map(report_of, students))
        changed = {report["key"]: "; ".join((f"{report['student']}: {words}", *report["held"]))
                   for report in found if (old := stands.get(report["key"]))
                   and (words := standing.changes(old, report))}
        if not (interrupted or standing.agreed(list(changed.values()), arguments.yes)):
            raise settings.refuse(arguments.out, wanted)
        if not interrupted:
            store.write(toml, text)
            (arguments.out / settings.REFUSED).unlink(missing_ok=True)
        stay = {*changed} if interrupted else set()  # as they were, until the command goes on
        written = [stands[report["key"]] if report["key"] in stay else report | by
                   for report in found]
        made = audit.files(
            arguments.out, run, {name: getattr(arguments, name) for name in (
                "policy", "cases", "overrides")}, stands, written)
        for student in (student for student in students if student.key not in stay):
            key = student.key
            folder = arguments.out / "submissions" / key
            others, files = standing.others(student, chosen[key])
            if others:  # first: if this is killed, the next run finds the files of its reports
                store.write(folder / standing.OTHERS, zipped(files))
            store.keep(folder, chosen[key].files)
            if chosen[key].kept:
                store.write(folder / standing.REFUSED, zipped(chosen[key].kept))
            if key in stands and stands[key]["key"] != key:
                standing.forget(arguments.out, stands[key]["key"])
        graded = [replace(student, files=chosen[student.key].files) for student in students]
        code = write(graded, stages, written, store, progress, interrupted,
                     {(key, "late" if given.points is None else given.stage): given.note
                      for key, rows in overrides.items() for given in rows if given.note}, made)
        made, lines, also = ({}, [], []) if interrupted else filled(
            arguments, arguments.out, most, written)
        for path, contents in made.items():
            store.write(path, contents)
        for line in (*lines, *also, *(f"to upload: {path}" for path in made)):
            progress.line(line)
        left = list(filter(None, map(undecided, written)))
        if left:
            count = Counter(chain.from_iterable(left))
            progress.line(f"No grade yet for {len(left)} of {len(written)} students: "
                          + ", ".join(f"{number} {why}" for why, number in sorted(count.items()))
                          + "; summary.html lists them"
                          + ", and the same command tries again" * ("blocked" in count))
        code = code or (NOT_SETTLED if lines or joined else DONE)
        if code == NOT_SETTLED and not left:
            noted = [report["student"] for report in written if report["notes"]]
            progress.line("Every grade is decided, but the exit code is 3: see " + (
                f"the notes on {', '.join(noted)} in summary.html" if noted else "the lines above"))
        return code


def spread(arguments, cluster: str = "slurm") -> int:
    """Run `grade --slurm`: wait for the tasks, which write the tables."""
    progress = Progress()
    try:
        failed = slurm.spread(arguments, progress.live, cluster)
    except KeyboardInterrupt:
        progress.line("Interrupted, and the tasks are cancelled. The same command goes on.")
        return INTERRUPTED
    for words in failed:
        progress.line(words)
    unsettled = "no tables were written"
    if len(failed) < arguments.slurm and (arguments.out / "grades.csv").is_file():
        unsettled = next((f"something of {report['student']} is not settled"
                          for report in read_reports(arguments.out) if to_look_at(report)), "")
    progress.line(f"{unsettled}; the same command goes on." if unsettled else
                  f"Everything is in {arguments.out}: summary.html, grades.csv, junit.xml, "
                  "students/")
    return NOT_SETTLED if unsettled else DONE


def write(students, stages, reports, store, progress, interrupted: bool,
          notes: dict[tuple, str], history: dict[str, bytes]) -> int:
    """Write the tables of what is known so far, and print their last line.  notes: see
    summary.page(); history: name -> contents, from audit.files()."""
    from classroom import feedback, summary  # import torch

    found = alike([student for student in students if not student.mate], stages)
    for student, report in zip(students, reports, strict=True):
        report["as_published"] = found.published.get(student.mate or student.name)
    made = {report["key"]: feedback.pages(report) for report in reports}
    for key, kinds in made.items():
        for kind, contents in kinds.items():
            store.write(store.folder / "feedback" / f"{key}.{kind}", contents)
    store.write(store.folder / "feedback.zip", feedback.packed(reports, made))
    store.write(store.folder / "grades.csv", grades_csv(reports))
    store.write(store.folder / "junit.xml", junit(reports))
    store.write(store.folder / "summary.html", summary.page(
        reports, found, datetime.now(), store.folder, notes))
    # If the disk is full, the history tells nothing that no table has, and the next run compares
    # with reports that it tells of.
    for name, contents in (history | {
            f"students/{report['key']}.json": as_json(report) for report in reports}).items():
        store.write(store.folder / name, contents)
    if interrupted:
        outcomes = [stage["outcome"] for report in reports for stage in report["stages"]]
        progress.line(f"Interrupted; not graded yet: {outcomes.count('pending')} of "
                      f"{len(outcomes)}. The same command goes on.")
        return INTERRUPTED
    states = Counter(report["state"] for report in reports)
    progress.line(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    progress.line(f"Everything is in {store.folder}: summary.html, grades.csv, junit.xml, "
                  "students/, feedback/")
    return NOT_SETTLED if any(map(to_look_at, reports)) else DONE


def book(arguments) -> int:
    """Run `gradebook`."""
    _check_positive(arguments, "scale")
    if arguments.scale and not (arguments.canvas or arguments.moodle):
        raise ValueError("--scale: want it with --canvas or --moodle; got it alone")
    graded = read_reports(arguments.results)
    settings.check(arguments.results, graded)
    files_made, said, also = filled(arguments, arguments.results, graded[0]["max_points"], graded)
    if arguments.nbgrader:
        files_made[arguments.nbgrader] = gradebook.nbgrader(
            graded, arguments.column or gradebook.SLUG)
        said = [f"{report['student']}: no grade yet, so no row"
                for report in filter(undecided, graded)]
    if arguments.check50:
        files_made = {arguments.check50 / f"{report['key']}.json": gradebook.check50(report)
                      for report in graded}
    put(arguments.results, files_made)
    print(*said, *also, f"The grades are in {arguments.check50 or next(iter(files_made))}",
          sep="\n")
    return NOT_SETTLED if said else DONE


def filled(arguments, results: Path, most: float, graded: list[dict]
           ) -> tuple[dict[Path, bytes], list[str], list[str]]:
    """For --canvas and --moodle: the files to upload; lines on what a person has to look at; a line
    on grades that are not as they were there."""
    made, said, also = {}, [], []
    for system in ("canvas", "moodle"):
        if exported := getattr(arguments, system):
            target = results / f"{system}.csv"
            if exported.resolve() == target.resolve():
                raise ValueError(f"--{system}: want the exported file; got what this command wrote")
            made[target], said, replaced = gradebook.filled(
                exported, system, arguments.column or "", arguments.scale or most, graded)
            also = [f"{len(replaced)} row{'s' * (len(replaced) > 1)} of {exported.name} had "
                    f"another grade before: {', '.join(replaced)}"] * bool(replaced)
    return made, said, also


def board(arguments) -> int:
    """Run `leaderboard`."""
    from classroom import leaderboard

    if arguments.verify < 0:
        raise ValueError(f"--verify: want 0 or more; got {arguments.verify}")
    found = leaderboard.entries(arguments.results)
    progress, verified = Progress(), leaderboard.read_verified(arguments.results)
    if arguments.verify:
        here = machine.look("cuda", 1)
        machine.account("auto", arguments.allow_root)
    aliases = leaderboard.read_aliases(arguments.results, [each["student"] for each in found])
    found = [each for each in found if aliases[each["student"]] != leaderboard.LEFT_OUT]
    if arguments.verify:
        verified = leaderboard.verify(arguments.results, found, arguments.verify, here,
                                      progress.line)
    made = leaderboard.boards(found, aliases, verified)
    for ranked in made:
        for row in ranked["rows"]:
            if (again := row["verified"]) and (again["moved"] or again["outcome"] != "pass"):
                progress.line(f"P{row['stage']} of {row['student']} on {row['gpu']}: "
                              f"{again['was']:.4f} ms, again {again['outcome']}, "
                              + (f"{again['ms']:.4f} ms" if again["ms"] else "no time"))
    put(arguments.results, {
        arguments.out / "index.html": leaderboard.page(made, datetime.now())}, 0o644)
    progress.line(f"{len(made)} boards of {len(found)} times are in {arguments.out / 'index.html'};"
                  f" who is who, in {arguments.results / 'aliases.csv'}")
    return DONE


def ask(arguments) -> int:
    """Run `questions`."""
    from classroom import questions  # imports torch
    from grader.host.options import Options
    from grader.host.processes import confinement

    machine.account("auto", arguments.allow_root)
    progress, options = Progress(), Options(
        arguments.results, "cpu", arguments.seed, 60.0,
        confinement=confinement((arguments.results.resolve(),)))
    made = questions.of_class(arguments.results, options, arguments.seed, arguments.student,
                              progress.live)
    put(arguments.results, made)
    *pages, answers = made
    progress.line(f"Questions for {len(pages)} students are in {arguments.results / 'questions'}, "
                  f"the answers in {answers}")
    return DONE


def pack(arguments) -> int:
    """Run `kit`."""
    from classroom import kit  # imports torch

    out, is_folder = arguments.out, arguments.platform == "classroom50"
    if out.exists() or not out.resolve().parent.is_dir():
        raise ValueError(f"--out: want a new {'folder' if is_folder else 'file'} in a folder that "
                         f"exists; got {out}")
    if is_folder and arguments.cases:
        raise ValueError("--cases: want it for gradescope only, for Classroom 50 publishes a kit; "
                         f"got it for {arguments.platform}")
    inside = kit.course(_stages(arguments.stages), arguments.minutes, arguments.policy,
                        arguments.cases)
    if is_folder:
        starter.write(kit.classroom50(inside), out)
    else:
        files.replace(out, kit.gradescope(inside), 0o600)
    print(f"{out}: packed; docs/classes.md says how it is used")
    return DONE


class Progress:
    """Shows progress: on a terminal in one line, elsewhere in a line every SAY_SECONDS."""

    def __init__(self):
        self.is_terminal, self.said, self.last = sys.stdout.isatty(), time.monotonic(), ""

    def live(self, text: str) -> None:
        if text == self.last:
            return
        if self.is_terminal:
            print(f"\r\x1b[K{text}", end="", flush=True)
        elif time.monotonic() - self.said < SAY_SECONDS:
            return
        else:
            print(text, flush=True)
        self.said, self.last = time.monotonic(), text

    def line(self, text: str) -> None:
        print("\r\x1b[K" * self.is_terminal + text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
