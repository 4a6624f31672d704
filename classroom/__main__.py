"""python -m classroom grade | gradebook | leaderboard | kit ...; --help."""

import argparse
import codecs
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from classroom import settings
from grader.course.stages import STAGES
from grader.host import files

DONE, NOT_SETTLED, USAGE, INTERRUPTED = 0, 3, 2, 130
ALIKE = 8  # first bytes, by which what a command wrote is known again
SAY_SECONDS = 30.0  # between two lines of progress where there is no terminal


def main(argv: list[str] | None = None) -> int:
    """-> 0 everything is settled, 2 usage, 3 a person has to look at something, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command != "grade":
            commands = {"gradebook": book, "leaderboard": board, "kit": pack}
            return commands[arguments.command](arguments)
        wanted = settings.complete(arguments)
        problem = _usage_problem(arguments)
        if problem:
            raise ValueError(problem)
        return grade(arguments, wanted)
    except (ValueError, RecursionError) as error:  # RecursionError: of TOML in TOML in TOML ...
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename}"
              + "; what was graded so far stands" * (arguments.command == "grade"), file=sys.stderr)
    return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m classroom", description="Grade the submissions of a class.")
    commands = parser.add_subparsers(dest="command", required=True,
                                     metavar="grade | gradebook | leaderboard | kit")
    grading = commands.add_parser(
        "grade", help="grade a folder of submissions, or go on with it",
        description="Grade a folder of submissions. Started again, it goes on where it ended. "
                    "What decides a grade (roster, gradebook, stages, policy, overrides, cases, "
                    "seed, device, limits) is kept in RESULTS/class.toml, and need not be given "
                    "again.",
        epilog="exit code: 0 everything is settled, 2 usage, 3 a person has to look at "
               "something, 130 interrupted",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=80))
    grading.add_argument("submissions", metavar="SUBMISSIONS", type=Path,
                         help="a folder with a folder, a .zip or a .tar.gz per student, or what "
                              "Moodle or Canvas downloads, unpacked or not; or a .csv with the "
                              "columns name and path")
    grading.add_argument("--out", metavar="RESULTS", type=Path, required=True,
                         help="the folder for the results; hosts may share it")
    grading.add_argument("--roster", metavar="FILE", type=Path,
                         help="a .csv of all students, with some of the columns name, id, login "
                              "and e-mail: who handed in nothing has a row as well (default: "
                              "that of --moodle or --canvas)")
    _gradebooks(grading.add_mutually_exclusive_group())
    _columns(grading)
    grading.add_argument("--stages", metavar="1-7", help="stages to grade (default: all)")
    grading.add_argument("--policy", metavar="FILE", type=Path,
                         help="a policy.toml: what stages and groups of cases are worth")
    grading.add_argument("--overrides", metavar="FILE", type=Path,
                         help="a .csv with the columns student, stage, points, reason (which the "
                              "student reads), note (private) and days_late: a person's word "
                              "instead of the grader's")
    grading.add_argument("--cases", metavar="FILE", type=Path,
                         help="your own cases, TOML, which students do not have")
    grading.add_argument("--seed", metavar="N", type=int,
                         help="the same inputs for everyone (default: fresh ones)")
    grading.add_argument("--jobs", metavar="N", type=int,
                         help="gradings at once (default: what cores and memory hold)")
    grading.add_argument("--device", choices=settings.DEVICES,
                         help="cpu: Triton's interpreter even where there is a GPU")
    grading.add_argument("--benchmark", action=argparse.BooleanOptionalAction,
                         help="time what passed, on a GPU (default: yes)")
    grading.add_argument("--timeout", metavar="S", type=float,
                         help="seconds for one call of the code (default: 60)")
    grading.add_argument("--stage-timeout", metavar="S", type=float,
                         help="seconds for all that is asked of one file (default: 600)")
    grading.add_argument("--yes", action="store_true",
                         help="change grades that stand without asking")
    grading.add_argument("--again", metavar="STUDENT[:STAGE]", action="append", default=[],
                         help="grade the files of a student again; may be repeated")
    grading.add_argument("--forget", metavar="STUDENT", action="append", default=[],
                         help="remove the record of somebody who is not in the class any more; "
                              "may be repeated")
    grading.add_argument("--worker-user", metavar="NAME", default="auto",
                         help="as the autograder's (root only)")
    _may_be_root(grading)
    grading.add_argument("--slurm", metavar="N", type=int, default=0,
                         help="run as N tasks of a Slurm array job that share RESULTS (needs "
                              "submitit)")
    grading.add_argument("--slurm-option", metavar="NAME=VALUE", action="append", default=[],
                         help="passed on to sbatch, such as partition=gpu or gres=gpu:1; may be "
                              "repeated")
    booking = commands.add_parser(
        "gradebook", help="the grades, as Canvas, Moodle and others read them",
        description="Fill a column of an exported gradebook, or write one.",
        epilog="exit code: 0 everyone is in both, 2 usage, and nothing was written, 3 the lines "
               "say who is not")
    booking.add_argument("results", metavar="RESULTS", type=Path, help="what `grade` wrote")
    system = booking.add_mutually_exclusive_group(required=True)
    _gradebooks(system)
    system.add_argument("--nbgrader", metavar="FILE", type=Path,
                        help="write FILE with the columns of nbgrader export")
    system.add_argument("--check50", metavar="DIR", type=Path,
                        help="write DIR/NAME.json, as check50 has it, for everyone")
    _columns(booking)
    ranking = commands.add_parser(
        "leaderboard", help="a page of the times of those who passed",
        description="Write DIR/index.html: a board a stage and GPU, under aliases.")
    ranking.add_argument("results", metavar="RESULTS", type=Path, help="what `grade` wrote")
    ranking.add_argument("--out", metavar="DIR", type=Path, required=True,
                         help="the folder for the page")
    ranking.add_argument("--verify", metavar="K", type=int, default=0,
                         help="first grade and time the top K of every board again")
    _may_be_root(ranking)
    packing = commands.add_parser(
        "kit", help="the grader, packed for a place where students hand in",
        description="Pack the grader for Gradescope, a zip, or for Classroom 50, a folder.")
    packing.add_argument("platform", choices=("gradescope", "classroom50"))
    packing.add_argument("--out", metavar="PATH", type=Path, required=True,
                         help="the zip, or the folder, which must not be there yet")
    packing.add_argument("--stages", metavar="1-7", default="1-7",
                         help="stages to grade (default: 1-7)")
    packing.add_argument("--minutes", metavar="N", type=float, default=10.0,
                         help="that the platform grants a submission (default: 10)")
    packing.add_argument("--policy", metavar="FILE", type=Path,
                         help="a policy.toml: what stages and groups of cases are worth")
    packing.add_argument("--cases", metavar="FILE", type=Path,
                         help="your own cases, TOML; Gradescope only: Classroom 50 publishes a kit")
    return parser


def _gradebooks(group) -> None:
    group.add_argument("--canvas", metavar="EXPORT.csv", type=Path,
                       help="the exported gradebook -> RESULTS/canvas.csv, to be imported")
    group.add_argument("--moodle", metavar="WORKSHEET.csv", type=Path,
                       help="the grading worksheet -> RESULTS/moodle.csv, to be uploaded")


def _columns(command: argparse.ArgumentParser) -> None:
    command.add_argument("--column", metavar="TITLE", help="which to fill, where that is not clear")
    command.add_argument("--scale", metavar="N", type=float, help="points there that all points "
                         "here are")


def _may_be_root(command: argparse.ArgumentParser) -> None:
    command.add_argument("--allow-root", action="store_true",
                         help="let the files run as root where no other account can run them")


def _usage_problem(arguments) -> str:
    if arguments.jobs is not None and arguments.jobs < 1:
        return f"--jobs: want 1 or more; got {arguments.jobs}"
    if arguments.seed is not None and not 0 <= arguments.seed < 2**48:
        return f"--seed: want 0 to 2^48 - 1; got {arguments.seed}"
    if arguments.slurm < 0:
        return f"--slurm: want 1 task or more; got {arguments.slurm}"
    if arguments.slurm_option and not arguments.slurm:
        return "--slurm-option: want it with --slurm N; got it alone"
    for name in ("timeout", "stage_timeout"):
        if not 0 < (seconds := getattr(arguments, name)) < float("inf"):
            option = name.replace("_", "-")
            return f"--{option}: want a number of seconds above 0; got {seconds:g}"
    _check_scale(arguments.scale)
    out, submissions = arguments.out.resolve(), arguments.submissions.resolve()
    if out == submissions or submissions in out.parents or out in submissions.parents:
        return f"--out: want a folder apart from the submissions; got {arguments.out}"
    return ""


def _check_scale(scale: float | None) -> None:
    if scale is not None and not 0 < scale < float("inf"):
        raise ValueError(f"--scale: want a number above 0; got {scale:g}")


def _stages(text: str) -> list[int]:
    """Of --stages, in order."""
    from grader.starter import parse_stages

    try:
        stages = sorted(set(parse_stages(text)))
        if not set(stages) <= set(STAGES):
            raise argparse.ArgumentTypeError(f"want stages of 1-{max(STAGES)}; got {text}")
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--stages: {error}") from None
    return stages


def grade(arguments, wanted: dict) -> int:
    """Everything of `grade`, with the reports at the end, however it ends.  wanted: what class.toml
    is to have."""
    from classroom import machine, policy, standing  # these import torch: --help needs none of it
    from classroom.batch import Batch
    from classroom.book import reports, student_report
    from classroom.gather import gather
    from classroom.store import Settings, Store
    from grader.assignment import record
    from grader.course import own_cases

    stages = _stages(arguments.stages)
    cases = ""
    if arguments.cases:
        own_cases.read(arguments.cases)
        cases = record.sha256(arguments.cases.read_bytes())[:12]
    present = gather(arguments.submissions,
                     arguments.roster or arguments.moodle or arguments.canvas)
    earlier = reports(arguments.out) if any(arguments.out.glob("students/*.json")) else []
    students, stands, kept = standing.everyone(present, earlier, arguments.out)
    gone = {policy.one(word, students, "--forget").key: word for word in arguments.forget}
    for key, word in gone.items():
        if kept.pop(key, True):
            raise ValueError("--forget: want somebody who is neither in SUBMISSIONS nor on the "
                             f"roster; got {word}")
    worth = policy.read(arguments.policy)
    students = [policy.with_markers(student, worth) for student in students
                if student.key not in gone]
    overrides = policy.by_student(policy.read_overrides(arguments.overrides), students, stages)
    for key in gone:
        standing.forget(arguments.out, key)
    standing.grade_again(arguments.again, students, arguments.out)
    if arguments.slurm:
        return spread(arguments)
    account = machine.account(arguments.worker_user, arguments.allow_root)
    here = machine.look(arguments.device, arguments.jobs)
    how = Settings(record.version(), here.device, arguments.timeout, arguments.stage_timeout,
                   arguments.seed, cases)
    progress = Progress()
    counting = {student.key: policy.that_count(student, worth.late) for student in students}
    with Store(arguments.out, how) as store:
        for student in students:
            if student.trouble:
                progress.line(f"{student.name}: refused, {student.trouble}")
            for number, why in student.refused.items():
                progress.line(f"{student.name}: problem_{number}.py refused, {why}")
            for note in student.notes:
                progress.line(f"{student.name}: {note}")
        if kept:
            names = [student.name for student in students if student.key in kept]
            progress.line(f"{', '.join(names)}: nothing in SUBMISSIONS now, so what was handed in "
                          "before counts; --forget NAME removes somebody who left")
        if worth.late and (undated := sum(
                student.time is None and not student.is_nothing for student in students)):
            progress.line(f"late: it is not known when {undated} of {len(students)} students handed"
                          " in; nothing is taken off for it")
        progress.line(f"Students: {len(students)}; {here.words}, grader {how.grader}")
        batch = Batch([each for found in counting.values() for each in found], stages, store, here,
                      benchmark=arguments.benchmark, hidden=[
                          arguments.submissions.resolve().parent
                          if arguments.submissions.suffix.lower() == ".csv"
                          else arguments.submissions.resolve(), arguments.out.resolve()],
                      worker_user=arguments.worker_user, account=account, say=progress.live,
                      cases=arguments.cases)
        chosen: dict[str, dict[int, bytes]] = {}  # the files that count

        def report_of(student) -> dict:
            """Of several hand-ins that count that with the most points."""
            made = []
            for each in counting[student.key]:
                report = student_report(each, stages, store)
                policy.apply(report, worth, overrides.get(student.key, []))
                made.append((sum(stage["points"] for stage in report["stages"]), each, report))
            _, best, report = max(reversed(made), key=lambda found: found[0])
            chosen[student.key] = best.files
            return report | {"key": student.key}

        def changed(found: list[dict]) -> dict[str, str]:
            """Key -> a line for each whose grade stands and would be another one."""
            return {report["key"]: f"{report['student']}: {words}" for report in found
                    if (old := stands.get(report["key"])) and (words := standing.changes(
                        old, report))}

        refused = ValueError("want --yes to change grades that stand; nothing was written")
        batch.read()
        accepted = changed([report for report in map(report_of, students) if all(
            stage["outcome"] != "pending" for stage in report["stages"])])
        if not standing.agreed(list(accepted.values()), arguments.yes):
            raise refused
        if not (arguments.out / settings.FILE).is_file():
            store.write(arguments.out / settings.FILE,
                        settings.text(arguments.out, wanted).encode())
        interrupted = False
        try:
            batch.run()
        except KeyboardInterrupt:
            interrupted = True
        found = list(map(report_of, students))
        asked = {key: line for key, line in changed(found).items() if accepted.get(key) != line}
        if not (interrupted or standing.agreed(list(asked.values()), arguments.yes)):
            raise refused
        if not interrupted:
            store.write(arguments.out / settings.FILE,
                        settings.text(arguments.out, wanted).encode())
        by, written = settings.digest(arguments.out, wanted), []
        for report in found:
            key = report["key"]
            if interrupted and key in asked:  # what stood stands until the command has gone on
                written.append(stands[key])
                continue
            store.keep(arguments.out / "submissions" / key, chosen[key])
            if key in stands and stands[key]["key"] != key:
                standing.forget(arguments.out, stands[key]["key"])
            written.append(report | {"class": by})
        code = write(students, stages, written, store, progress, interrupted,
                     {(key, "late" if given.points is None else given.stage): given.note
                      for key, rows in overrides.items() for given in rows if given.note})
        made, lines = filled(arguments, arguments.out, [] if interrupted else written)
        put(made)
        for line in (*lines, *(f"to upload: {path}" for path in made)):
            progress.line(line)
        return code or (NOT_SETTLED if lines else DONE)


def spread(arguments, cluster: str = "slurm") -> int:
    """Everything of `grade --slurm`: the tasks write the tables, here they are waited for."""
    from classroom import slurm
    from classroom.book import reports, to_look_at

    progress = Progress()
    arguments.out.mkdir(mode=0o700, parents=True, exist_ok=True)
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
                          for report in reports(arguments.out) if to_look_at(report)), "")
    progress.line(f"{unsettled}; the same command goes on." if unsettled else
                  f"Everything is in {arguments.out}: summary.html, grades.csv, junit.xml, "
                  "students/")
    return NOT_SETTLED if unsettled else DONE


def write(students, stages, reports, store, progress, interrupted: bool,
          notes: dict[tuple, str]) -> int:
    """The tables of what is known by now, and their last line.  notes: as summary.page() has them.
    """
    from classroom import feedback, summary
    from classroom.alike import alike
    from classroom.book import as_json, grades, junit, to_look_at

    found = alike(students, stages)
    for student, report in zip(students, reports, strict=True):
        report["as_published"] = found.published.get(student.name)
        store.write(store.folder / "students" / f"{report['key']}.json", as_json(report))
    made = {report["key"]: feedback.pages(report) for report in reports}
    for key, kinds in made.items():
        for kind, contents in kinds.items():
            store.write(store.folder / "feedback" / f"{key}.{kind}", contents)
    store.write(store.folder / "feedback.zip", feedback.packed(reports, made))
    store.write(store.folder / "grades.csv", grades(reports))
    store.write(store.folder / "junit.xml", junit(reports))
    store.write(store.folder / "summary.html", summary.page(
        reports, found, datetime.now(), store.folder, notes))
    everything = [stage for report in reports for stage in report["stages"]]
    count = Counter(stage["outcome"] for report in reports for stage in report["stages"]
                    if stage["stage"] in report["unsettled"])
    if interrupted:
        progress.line(f"Interrupted; not graded yet: {count['pending']} of {len(everything)}. "
                      "The same command goes on.")
        return INTERRUPTED
    for outcome, words in (("grader_fault", "blocked by faults of the grader's: the same command "
                            "tries them again"), ("skipped", "skipped"),
                           ("refused", "refused")):
        if count[outcome]:
            progress.line(f"{count[outcome]} of {len(everything)} {words}; summary.html lists "
                          "them.")
    states = Counter(report["state"] for report in reports)
    progress.line(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    progress.line(f"Everything is in {store.folder}: summary.html, grades.csv, junit.xml, "
                  "students/, feedback/")
    return NOT_SETTLED if any(map(to_look_at, reports)) else DONE


def book(arguments) -> int:
    """Everything of `gradebook`."""
    from classroom import gradebook
    from classroom.book import reports

    _check_scale(arguments.scale)
    if arguments.scale and not (arguments.canvas or arguments.moodle):
        raise ValueError("--scale: want it with --canvas or --moodle; got it alone")
    graded = reports(arguments.results)
    settings.check(arguments.results, graded)
    files_made, said = filled(arguments, arguments.results, graded)
    if arguments.nbgrader:
        files_made[arguments.nbgrader] = gradebook.nbgrader(
            graded, arguments.column or gradebook.SLUG)
        said = [f"{report['student']}: not settled, no row" for report in graded
                if report["points"] is None]
    if arguments.check50:
        files_made = {arguments.check50 / f"{report['key']}.json": gradebook.check50(report)
                      for report in graded}
    put(files_made)
    print(*said, f"{len(graded)} students: {arguments.check50 or next(iter(files_made))}", sep="\n")
    return NOT_SETTLED if said else DONE


def filled(arguments, results: Path, graded: list[dict]) -> tuple[dict[Path, bytes], list[str]]:
    """--canvas and --moodle: the files to upload, and what a person has to look at."""
    from classroom import gradebook

    made, said = {}, []
    for system in ("canvas", "moodle"):
        if graded and (exported := getattr(arguments, system)):
            target = results / f"{system}.csv"
            if exported.resolve() == target.resolve():
                raise ValueError(f"--{system}: want the exported file; got what this command wrote")
            made[target], lines = gradebook.filled(
                exported, system, arguments.column or "", arguments.scale, graded)
            said += lines
    return made, said


def board(arguments) -> int:
    """Everything of `leaderboard`."""
    from classroom import leaderboard, machine

    if arguments.verify < 0:
        raise ValueError(f"--verify: want 0 or more; got {arguments.verify}")
    found = leaderboard.entries(arguments.results)
    progress, verified = Progress(), leaderboard.read_verified(arguments.results)
    if arguments.verify:
        here = machine.look("cuda", 1)
        machine.account("auto", arguments.allow_root)
        verified = leaderboard.verify(arguments.results, found, arguments.verify, here,
                                      progress.line)
    aliases = leaderboard.read_aliases(arguments.results, [each["student"] for each in found])
    made = leaderboard.boards(found, aliases, verified)
    for ranked in made:
        for row in ranked["rows"]:
            if (again := row["verified"]) and (again["moved"] or again["outcome"] != "pass"):
                progress.line(f"P{row['stage']} of {row['student']} on {row['gpu']}: "
                              f"{again['was']:.4f} ms, again {again['outcome']}, "
                              + (f"{again['ms']:.4f} ms" if again["ms"] else "no time"))
    put({arguments.out / "index.html": leaderboard.page(made, datetime.now())}, 0o644)
    progress.line(f"{len(made)} boards of {len(found)} times are in {arguments.out / 'index.html'};"
                  f" who is who, in {arguments.results / 'aliases.csv'}")
    return DONE


def put(made: dict[Path, bytes], mode: int = 0o600) -> None:
    """Write files, each in one step.

    Raises ValueError: something of the user's has such a name, and nothing is written; one cannot
    be.
    """
    for path, contents in made.items():
        try:
            with open(path, "rb") as file:
                there, ours = (text.removeprefix(codecs.BOM_UTF8)[:ALIKE]
                               for text in (file.read(ALIKE + 3), contents))
        except FileNotFoundError:
            continue
        if there != ours:
            raise ValueError(f"want a new file, or one that this command wrote; got {path}")
    for path, contents in made.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(path, contents, mode)
        except OSError as error:
            raise ValueError(f"want a file that can be written; got {path}: {error.strerror}"
                             ) from None


def pack(arguments) -> int:
    """Everything of `kit`."""
    from classroom import kit
    from grader import starter

    out, is_folder = arguments.out, arguments.platform == "classroom50"
    if out.is_dir() or is_folder and out.exists() or not out.resolve().parent.is_dir():
        raise ValueError(f"--out: want a {'new folder' if is_folder else 'file'} in a folder that "
                         f"exists; got {out}")
    if is_folder and arguments.cases:
        raise ValueError("--cases: want it for gradescope only, for Classroom 50 publishes a kit; "
                         f"got it for {arguments.platform}")
    inside = kit.course(_stages(arguments.stages), arguments.minutes, arguments.policy,
                        arguments.cases)
    if is_folder:
        starter.write(kit.classroom50(inside), out)
    else:
        put({out: kit.gradescope(inside)})
    print(f"{out}: packed; docs/instructors.md says how it is used")
    return DONE


class Progress:
    """One line that is overwritten on a terminal; else a line every SAY_SECONDS."""

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
