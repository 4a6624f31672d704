"""The command line both graders share: arguments in, exit code out.

torch is imported only when there is something to grade, so that --help and a mistyped option are
answered at once, on any machine.
"""

import argparse
import contextlib
import functools
import os
import re
import secrets
import signal
import sys
import threading
import time
from pathlib import Path

from grader import process
from grader.assignment import hints, record, submission
from grader.course.stages import ASSIGNMENTS, STAGES, triton_version
from grader.host import files
from grader.host.files import is_stream
from grader.report import overview, results, submit
from grader.report.screen import Reporter

TYPES = {"N": int, "S": float, "X": float, "GIB": float} | dict.fromkeys(
    ("STEP", "NAME", "1-7", "TITLE", "STUDENT", "STUDENT[:STAGE]", "NAME=VALUE"),
    str)  # of an option's value; others are paths
# What is meant as --p3: p3, --P3, -p3, 3, --p 3, problem_3.py, and any dash that a text had.
PROBLEM = re.compile(r"\W*(?:p|problem)?[\s_=-]*(\d{0,3})(?:\.py)?", re.IGNORECASE)
DONE, NOT_PASSED, USAGE, FAULT = 0, 1, 2, 3  # Run.exit_code; 130 and 143: an interruption

NOT_GRADED = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Not graded</title>
<style>:root { color-scheme: light dark; font: 18px/1.55 system-ui, sans-serif; }</style>
<main><h1>Not graded</h1>
<p>The last command was refused, so there is nothing to show. The terminal says why.</p></main>
</html>
"""


class Refused(Exception):
    """Bad input, found before anything began; the message reads want ...; got ..."""


def main(program: str, argv: list[str] | None = None, stages: tuple[int, ...] = ()) -> int:
    """Grade the stages asked for, of `stages` or else of the program's own.

    -> 0 passed, 1 not passed, 2 usage, 3 grader fault.
    """
    process.prepare()
    try:
        return _main(stages or record.GRADERS[program], program, argv)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        _end_former_page(argv)
        return USAGE
    except SystemExit as end:  # argparse's
        if end.code == USAGE:
            _end_former_page(argv)
        raise
    except KeyboardInterrupt as stop:
        print(f"\n{process.INTERRUPTED}", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)


def _end_former_page(argv: list[str] | None) -> None:
    """Overwrite the file of a refused --page if there is one: it shows another run, maybe a passed
    one."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--page", type=Path, nargs="?")
    with contextlib.suppress(OSError, argparse.ArgumentError):
        page = parser.parse_known_args(argv)[0].page
        if page and page.suffix == ".html" and page.is_file():
            files.write(page, NOT_GRADED)


@contextlib.contextmanager
def _refusing(option: str = ""):
    """Turn a ValueError of the block into Refused, with the option's name."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"{option}: {error}" if option else str(error)) from None


def _main(numbers: tuple[int, ...], program: str, argv: list[str] | None) -> int:
    """Do what needs no PyTorch; start a grading for the rest."""
    with _refusing():
        given = record.read(record.ROOT)
    everything = [n for stages in record.GRADERS.values() for n in stages
                  if given is None or n in given.stages]
    numbers = tuple(n for n in numbers if n in everything)
    parser = _parser(numbers, program)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown or arguments.p is not None:
        parser.error(_unknown(unknown[0] if unknown else f"--p {arguments.p}".rstrip(), numbers,
                              everything))
    if arguments.hint is not None:
        with _refusing("--hint"):
            print(hints.next_hint(arguments.hint))
        return DONE
    if problem := _usage_problem(arguments, numbers):
        raise Refused(problem)
    asked = [n for n in numbers if getattr(arguments, f"p{n}")]
    if arguments.doctor:
        from grader.host import doctor

        asked = asked or list(numbers)
        return doctor.main([(n, STAGES[n].needs_triton) for n in asked],
                           overview.begin(asked[0], arguments.submission))
    if arguments.step:
        asked = [n for n in numbers if arguments.step.partition(".")[0] == str(n)]
        arguments.warmup = not asked  # W.5
    whole = (arguments.json or arguments.watch or arguments.submit  # even if nothing is begun
             or arguments.page)
    if not (asked or whole or arguments.case or arguments.warmup):
        if screen := overview.first_screen(numbers, arguments.submission):
            print(*screen, sep="\n")
            return NOT_PASSED
    if (arguments.submission / record.HUNT).is_file():
        from grader import hunt

        with _refusing():
            if hunt.stands_in_the_way(arguments.submission):
                return NOT_PASSED
    return _Grading(arguments, asked or list(numbers), everything, program).run()


def add_option(command, words: str, help: str, **more) -> None:
    """Add an option.  words: its name and its value, which gives its type."""
    name, _, takes = words.partition(" ")
    if takes:
        more |= {"metavar": takes, "type": TYPES.get(takes, Path)}
    command.add_argument(name, help=help, **more if takes else {"action": "store_true"})


def _parser(numbers: tuple[int, ...], program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python {program}", usage=f"python {program} [--p{numbers[0]} ...] [options]",
        description="Grade the problems named, or all that this program grades.",
        epilog="exit code: 0 every problem passed, 1 one did not, 2 usage, 3 grader fault",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=80))
    add = functools.partial(add_option, parser.add_argument_group("which problems"))
    for n in numbers:
        add(f"--p{n}", f"grade problem_{n}.py")
    parser.set_defaults(warmup=False)
    parser.add_argument("--p", nargs="?", const="", help=argparse.SUPPRESS)  # --p 3, --p=3
    if 1 in numbers:
        add("--warmup", "grade warmups/warmups.py")
    add("--submission DIR", "where the problem files are (default: here)", default=Path("."))

    add = functools.partial(add_option, parser.add_argument_group("while you work"))
    add("--watch", "grade again whenever a file is saved, up to the first wrong case")
    add("--quick", "standard cases only")
    add("--hint STEP", "print the next hint for a step, say 4.2")
    add("--step STEP", "run one step on its own, say 3.5, and print an example that it fails",
        default="")
    add("--case NAME", "run only this case, by the name that a failing report gives", default="")
    add("--seed N", "use the inputs of an earlier run again")
    add("--show", "draw the attention matrix that the first wrong case really uses")
    add("--plot FILE", "write that drawing there, as an .svg file")
    add("--submit", "also write submission.zip, to hand in: the files and this report")
    add("--no-benchmark", "do not time anything")
    add("--page FILE", "a page with pictures: with --watch live in the browser, or written to "
        "this .html file", nargs="?", const=Path(""))
    add("--profile", "on a GPU: where the time of your kernels goes, and what to try")
    add("--doctor", "what this machine can run, and what to install")
    add("--verbose", "a line for every case, what it printed, and what restrictions were in force")

    grading = parser.add_argument_group("for instructors")
    add = functools.partial(add_option, grading)
    add("--json FILE", "write the results there too, rewritten after every problem")
    add("--timeout S", "seconds for one call of the code (default: 60)", default=60.0)
    add("--stage-timeout S", "seconds for all that is asked of one file (default: 600)",
        default=600.0)
    add("--memory GIB", "host memory the code may hold (default: half of what is free, at most 16)")
    add("--worker-user NAME", "run the files as this account (root only); none: as yourself; "
        "default, if you are root: each worker under a user id of its own", default="auto")
    add("--cases FILE", "cases of your own, TOML, which students do not have")
    grading.add_argument("--assignment", choices=ASSIGNMENTS, default="original",
                         help="for which a file without step markers was written; of this course "
                         "it is asked everything (default: original)")
    add("--replay-all", "carry out every right case again, on other numbers, not five")
    add("--hide DIR", "another folder that the files may not see, such as all submissions",
        action="append", default=[])
    grading.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto",
                         help="cpu: Triton's interpreter even where there is a GPU")
    return parser


def _unknown(argument: str, numbers: tuple[int, ...], everything: list[int]) -> str:
    """What is wrong with an argument that is no option."""
    if not (match := PROBLEM.fullmatch(argument)):
        return f"want an option that --help lists; got {argument}"
    n = int(match[1] or 0)
    if n in everything and n not in numbers:
        return f"want a problem of this program; for that one: {overview.program(n)}"
    wanted = f"--p{n}" if n in numbers else f"--p{numbers[0]} to --p{numbers[-1]}"
    return f"want {wanted}; got {argument}"


def _usage_problem(arguments, numbers: tuple[int, ...]) -> str:
    """What is wrong with the arguments, as "want ...; got ...", or "" """
    if not arguments.submission.is_dir():
        return f"--submission: want a directory; got {arguments.submission}"
    if arguments.warmup and any(vars(arguments).get(name) for name in (
            "json", "submit", "quick", "case", "step", "show", "plot",
            *map("p{}".format, numbers))):
        return ("--warmup: want it alone, or with --watch or --page; got an option of the problems "
                "with it")
    if arguments.json is not None:
        folder = Path(os.path.realpath(arguments.json)).parent
        if arguments.json.is_dir() or not folder.is_dir():
            return f"--json: want a file in a directory that exists; got {arguments.json}"
    for option, path, end in (("--plot", arguments.plot, ".svg"),
                              ("--page", arguments.page, ".html")):
        if path and path.name and (path.suffix != end or not path.parent.is_dir()):
            return f"{option}: want an {end} file in a directory that exists; got {path}"
    part = arguments.quick or arguments.watch or arguments.case or arguments.step
    if arguments.submit and part:
        return "--submit: want every case asked; got --quick, --watch, --case or --step with it"
    if arguments.page and not arguments.page.name and not arguments.watch:
        return "--page: want an .html file, or --watch with it; got neither"
    if arguments.page and arguments.step:
        return "--page: want a whole problem; got --step with it"
    if arguments.profile and (part or arguments.warmup):
        return ("--profile: want every case asked, for a wrong kernel is not profiled; got "
                "--quick, --watch, --case, --step or --warmup with it")
    exercises = list(record.EXERCISES) if 1 in numbers else []
    if arguments.step and arguments.step not in exercises \
            and arguments.step.partition(".")[0] not in map(str, numbers):
        also = f", or {exercises[0]} to {exercises[-1]}" if exercises else ""
        stage = arguments.step.partition(".")[0]
        other = f". Problem {stage} has its own grader: python {record.grader_of(int(stage))} " \
            f"--step {arguments.step}" if stage in map(str, STAGES) else ""
        return (f"--step: want a step of problem {numbers[0]} to {numbers[-1]}{also}; got "
                f"{arguments.step}{other}")
    if arguments.cases is not None and not arguments.cases.is_file():
        return f"--cases: want a file of cases, TOML; got {arguments.cases}"
    for name in ("timeout", "stage_timeout"):
        if not 0 < (seconds := getattr(arguments, name)) < float("inf"):
            option = name.replace("_", "-")
            return f"--{option}: want a number of seconds above 0; got {seconds:g}"
    if arguments.memory is not None and not 0.5 <= arguments.memory < float("inf"):
        return f"--memory: want 0.5 GiB at least, for PyTorch itself; got {arguments.memory:g}"
    return ""


class _Grading:
    """One command that runs files: stages, a step, a case or the warm-ups."""

    def __init__(self, arguments, asked: list[int], everything: list[int], program: str):
        from grader.host.processes import confinement, seems_to_have_gpu

        if said := process.small_files():
            raise Refused(said)
        self.arguments, self.asked, self.everything = arguments, asked, everything
        self.program, self.stages = program, [STAGES[n] for n in asked]
        self.apart = arguments.case or arguments.step or arguments.warmup  # no whole stage
        self.seed = secrets.randbits(48) if arguments.seed is None else arguments.seed
        self.reporter = Reporter(verbose=arguments.verbose, whole=bool(arguments.case),
                                 brief=arguments.submit,
                                 seed=self.seed if len(asked) == 1 or arguments.warmup else None)
        with _refusing("--worker-user"):
            self.confined = confinement(
                (record.ROOT, arguments.submission, *arguments.hide,
                 *([arguments.cases] if arguments.cases else [])),
                arguments.worker_user, arguments.memory)
        self.gpu_seen = seems_to_have_gpu()
        self.with_gpu = arguments.device != "cpu" and self.gpu_seen

    def run(self) -> int:
        """Import torch while the first worker does the same in its own process; then do what was
        asked.  -> the exit code."""
        from grader.host.processes import ForkServer

        arguments = self.arguments
        first, settled = self.first_worker()
        if settled:
            return NOT_PASSED
        ForkServer.running()  # it imports torch while this process does
        if not self.apart:
            self.reporter.first_stage(self.stages[0])
        # Steps and warm-ups use little of a GPU, and --watch mostly waits for the next save.
        little = arguments.watch or arguments.step or arguments.warmup
        try:
            # An exception in the middle of the import would make torch abort the process.
            with process.left_at_once():
                process.import_torch(self.with_gpu, None if little else self.reporter.say,
                                     first.begin if first else lambda: None)
        except Exception as error:  # any kind: a missing library is an OSError
            line = str(error).strip().partition("\n")[0].rstrip(":") or type(error).__name__
            raise Refused(f"want PyTorch installed (pip install torch); got {line}. python "
                          f"{self.program} --doctor says more") from None
        options = self.options(first)
        if arguments.warmup:
            return self.warm_ups(options)
        if arguments.step:
            from grader.step_checks.one_step import ask

            with _refusing("--step"):
                right = ask(self.stages[0], arguments.step, options, self.reporter)
            return DONE if right else NOT_PASSED
        return self.grade(options)

    def first_worker(self) -> tuple:
        """-> the worker for the first file, if a whole stage is to be graded; and whether reading
        the file of the only stage was enough to know, and to show, how it ends."""
        from grader.host.first_worker import FirstWorker

        arguments, stage, start = self.arguments, self.stages[0], time.monotonic()
        if self.apart or arguments.watch:
            return None, False
        file = submission.read(arguments.submission, stage.filename, stage.entry)
        result = results.StageResult(stage.number, stage.title, stage.points)
        if file.unwritten or not results.settled_by_reading(stage, file, result):
            return FirstWorker(file.source, stage.filename, "cuda" if self.with_gpu else "cpu",
                               self.confined), False
        if len(self.asked) > 1 or arguments.json or arguments.submit or arguments.page:
            return None, False
        result.seconds = time.monotonic() - start
        self.reporter.stage_begins(stage)
        self.reporter.stage_ends(stage, result)
        self.reporter.next(overview.after_run([result], self.everything, arguments.submission,
                                              arguments.quick, False))
        return None, True

    def options(self, first):
        """The options that all of this command's gradings share."""
        import torch

        from grader.course import own_cases
        from grader.host.options import Options

        arguments, has_gpu = self.arguments, torch.cuda.is_available()
        if arguments.device == "cuda" and not has_gpu:
            raise Refused("--device cuda: want a CUDA GPU; got none that PyTorch can use")
        device = "cuda" if has_gpu and arguments.device != "cpu" else "cpu"
        if arguments.profile and device == "cpu":
            got = "--device cpu" if has_gpu else "none that PyTorch can use"
            raise Refused(f"--profile: want a CUDA GPU to profile on; got {got}")
        others_work = arguments.json or arguments.submission != Path(".")
        if others_work and arguments.worker_user == "auto" and self.confined.user is None \
                and hasattr(os, "geteuid") and os.geteuid() == 0:
            print("warning: the files run as root, because the account `nobody` cannot read "
                  "this Python or has no place to write. Name another one with --worker-user.",
                  file=sys.stderr)
        with _refusing():
            own = own_cases.read(arguments.cases) if arguments.cases else ()
        return Options(
            arguments.submission, device, self.seed, arguments.timeout, arguments.stage_timeout,
            bfloat16=device == "cuda" and torch.cuda.get_device_capability() >= (8, 0),
            quick=arguments.quick, benchmark=not arguments.no_benchmark,
            confinement=self.confined, case=arguments.case, own=own, show=arguments.show,
            plot=arguments.plot, page=self.page(), first=first, replays_all=arguments.replay_all,
            profile=arguments.profile, promises_all=arguments.assignment == "this",
            may_stop=not (arguments.json or arguments.submit or arguments.verbose))

    def page(self):
        """What --page shows results on; None without it."""
        if self.arguments.page is None:
            return None
        from grader.page.server import FilePage, ServedPage

        if not self.arguments.page.name:
            return ServedPage(self.arguments.submission)
        page = FilePage(self.arguments.submission, self.arguments.page)
        try:
            page.renew()
        except OSError as error:
            raise Refused(f"--page: cannot write {page.path}: {error.strerror}") from None
        return page

    def warm_ups(self, options) -> int:
        from grader import watching
        from grader.step_checks import warmups

        with process.left_at_once():
            if self.arguments.watch and not self.arguments.step:
                following = [STAGES[n] for n in self.everything]
                watching.watch_stages([None], following, options, self.reporter)
            return warmups.grade(options, self.reporter, self.arguments.step)

    def grade(self, options) -> int:
        """Grade stage after stage, or one case."""
        import torch

        from grader.course.correctness import warm_up
        from grader.judge.grade import grade_stage

        arguments, on_gpu = self.arguments, options.device == "cuda"
        stages = self.of_case(options) if arguments.case else self.stages
        run = results.Run(torch.cuda.get_device_name() if on_gpu else "cpu", torch.__version__,
                          triton_version(), self.seed, record.version())

        def save(at_the_end: bool) -> None:
            if arguments.json and (at_the_end or not is_stream(arguments.json)):
                results.write(run, arguments.json)

        if not on_gpu and arguments.device != "cpu" and self.gpu_seen:
            self.reporter.say("PyTorch finds no GPU: small cases, no timing. --doctor says more.")
        try:
            save(False)  # now, so that even an interrupted first stage leaves a complete file
        except OSError as error:
            raise Refused(f"--json: cannot write {arguments.json}: {error.strerror}") from None
        if on_gpu:  # while the workers start
            threading.Thread(target=warm_up, args=(
                stages[0].number, options.device, options.bfloat16, options.seed)).start()
        if arguments.watch:
            from grader.watching import watch_stages

            with process.left_at_once():
                watch_stages(stages, [STAGES[n] for n in self.everything], options, self.reporter)
        *_, last = stages
        for stage in stages:
            with process.left_at_once():
                run.stages.append(grade_stage(stage, options, self.reporter))
            try:
                save(stage is last)
            except OSError as error:
                self.summary(run)
                print(f"error: cannot write {arguments.json}: {error.strerror}", file=sys.stderr)
                return FAULT
        self.summary(run)
        try:
            if options.page is not None:
                options.page.renew()
        except OSError as error:
            print(f"error: cannot write {arguments.page}: {error.strerror}", file=sys.stderr)
            return FAULT
        return self.submit(run) if arguments.submit else run.exit_code()

    def summary(self, run) -> None:
        """Print the summary, and what to type next."""
        arguments = self.arguments
        self.reporter.summary(run, overview.after_run(
            run.stages, self.everything, arguments.submission, arguments.quick,
            bool(arguments.case)))

    def of_case(self, options) -> list:
        """The stages asked for that have the case named by --case."""
        from grader.course import contract
        from grader.course.case_table import listed
        from grader.judge import claims

        def names(stage) -> list[str]:
            cases = (*listed(stage.number, options.device, options.bfloat16), *options.own)
            own = [case for case in cases if case.stage == stage.number]
            return [case.name for case in own] + [
                claims.unpromised(case).name for case in own if case.course]

        found = [stage for stage in self.stages
                 if options.case in names(stage) or contract.named(stage, options.case)]
        if not found:
            raise Refused("--case: want the name of a case of a problem asked for, such as "
                          f"{names(self.stages[0])[0]}; got {options.case}")
        return found

    def submit(self, run) -> int:
        try:
            print(*submit.write(run, record.grader_of(self.asked[0]), self.arguments.submission),
                  sep="\n")
        except (ValueError, OSError) as error:
            print(f"error: --submit: {error}", file=sys.stderr)
            return FAULT
        return run.exit_code()
