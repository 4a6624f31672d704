"""Says what to do: the first screen, before anything is written, and the next command."""

import shlex
from pathlib import Path

from grader.assignment.record import ROOT, WARM_UPS, grader_of
from grader.assignment.submission import Submission, read
from grader.course.stages import STAGES, no_triton
from grader.report.results import StageResult
from grader.text import escape, ranges

BAR = 30  # columns


def program(number: int) -> str:
    """The command that grades this stage."""
    return f"python {grader_of(number)} --p{number}"


def command(number: int, directory: Path, options: str = "", asked: str = "") -> str:
    """The command for the file in directory, with further options, or with other ones than --pN."""
    where = "" if directory == Path(".") else f" --submission {escape(shlex.quote(str(directory)))}"
    start = f"python {grader_of(number)} {asked}" if asked else program(number)
    return start + where + options


def alone(id: str, directory: Path) -> str:
    """The command that runs this step on its own."""
    return command(int(id.partition(".")[0]), directory, asked=f"--step {id}")


def first_screen(numbers: list[int], directory: Path) -> list[str]:
    """One line per stage, and the next command; empty once a stage is begun."""
    files = {n: read(directory, f"problem_{n}.py", "") for n in numbers}
    if any(file.state not in ("missing", "not_started") for file in files.values()):
        return []
    rows = []
    for n, file in files.items():
        carried = sum(bool(step.origin) for step in file.steps)
        new = len(file.steps) - carried
        count = f"{new} step{'s' * (new != 1)}" + f", {carried} to copy" * (carried > 0)
        rows.append(f"  P{n}  {STAGES[n].title:<44} "
                    + ("missing" if file.state == "missing" else count))
    there = [n for n, file in files.items() if file.state != "missing"]
    if not there:
        names = " ... ".join(f"problem_{n}.py" for n in dict.fromkeys((numbers[0], numbers[-1])))
        where = "this folder" if directory == Path(".") else directory
        to_do = f"{program(numbers[0])} --submission FOLDER"
        return [f"There is no {names} in {where}.",
                f"Next: {_entered(numbers[0], directory) or to_do}"]
    lines = ["No problem is begun yet:", "", *rows, "", f"Next: {begin(there[0], directory)}"]
    if 1 in there and (gentle := len(read(directory, WARM_UPS, "").blank_steps)):
        asked = command(1, directory, asked="--warmup")
        lines.append(f"      or first: {asked}   ({gentle} short exercises, no points)")
    kernels = [n for n in there if STAGES[n].needs_triton]
    if kernels and no_triton():
        lines += ["", f"Triton is not installed or too old, and problems {ranges(kernels)} need "
                      f"it: python {grader_of(there[0])} --doctor"]
    return lines


def _entered(number: int, directory: Path) -> str:
    """The command for somebody who is above the folder of this program and its problems, or "" """
    here, path = Path.cwd(), ROOT / f"problem_{number}.py"
    if directory != Path(".") or here not in ROOT.parents or not path.exists():
        return ""
    return f"cd {escape(shlex.quote(str(ROOT.relative_to(here))))}, then run {program(number)}"


def begin(number: int, directory: Path, options: str = "", to_fix: str = "") -> str:
    """What to do next in a stage that has not passed: fix what is wrong, write blank steps, or run
    its command.  to_fix: "fix step 3.5", or "" """
    if STAGES[number].needs_triton and no_triton():
        return f"python {grader_of(number)} --doctor   (problem {number} needs Triton)"
    file = read(directory, f"problem_{number}.py", "")
    if file.state == "missing" and (entered := _entered(number, directory)):
        return entered
    if origins := _to_copy(file, directory):
        return copying(number, directory) or begin(  # nothing to copy has been written
            min(int(origin.partition(".")[0]) for origin in origins), directory)
    if to_fix:
        said = f"{to_fix}, then run {command(number, directory, options or ' --watch')}"
        step = to_fix.removeprefix("fix step ")
        return said if step == to_fix else (
            f"{said}\n      more: {alone(step, directory)}, or --hint {step}")
    if file.to_write:
        return (f"read {file.path.name}, write step {file.to_write[0]}, then run "
                f"{command(number, directory, ' --watch')}")
    return command(number, directory, options)


def copying(number: int, directory: Path) -> str:
    """The command that copies earlier steps into a stage; "" if there is nothing to copy."""
    origins = _to_copy(read(directory, f"problem_{number}.py", ""), directory)
    earlier = [read(directory, f"problem_{stage}.py", "")
               for stage in {origin.partition(".")[0] for origin in origins}]
    if any(step.id in origins and step.id not in file.blank_steps
           for file in earlier for step in file.steps):
        return f"python -m grader.carry {number}   (copies your earlier steps into it)"
    if any(file.state == "missing" for file in earlier):
        return (f"python -m grader.carry {number} --from FOLDER   (copies steps from the "
                "earlier problems, wherever they are)")
    return ""


def _to_copy(file: Submission, directory: Path) -> list[str]:
    """The earlier steps that blank steps of a file copy; none if the file is in another folder than
    this one, where copying happens."""
    return [step.origin for step in file.steps
            if step.id in file.blank_carried and directory == Path(".")]


def after(number: int, numbers: list[int], directory: Path) -> str:
    """What to do when this stage has passed: the next one of numbers."""
    following = next((n for n in numbers if n > number), None)
    if following is None:
        return "nothing: that was the last problem."
    return begin(following, directory)


def after_run(results: list[StageResult], everything: list[int], directory: Path, quick: bool,
              one_case: bool) -> str:
    """What to do after a run: the first stage with something to fix, or the one after the last."""
    to_fix = [result for result in results if result.outcome != "pass" or result.doubtful]
    begun = [result for result in to_fix if result.outcome not in ("not_started", "missing")]
    if to_fix:
        first = (begun or to_fix)[0]
        if first.first_wrong and not first.to_fix:
            return begin(first.stage, directory, f" --case {first.first_wrong}", "fix the file")
        said = begin(first.stage, directory, " --quick" * quick, first.to_fix)
        unexplained = said == command(first.stage, directory, " --quick" * quick) and \
            first.outcome in ("wrong", "crashed", "rejected", "timeout")
        return "fix the file, then run " * unexplained + said
    if red := [id for result in results for id in result.red]:
        return f"{alone(red[0], directory)}   (it is red)"
    if quick or one_case:
        return command(results[0].stage, directory, "   (all cases)")
    next_one = after(results[-1].stage, everything, directory)
    short = next((r for r in results if r.points < r.max_points), None)
    if short is None:
        return next_one
    missing = f"{short.max_points - short.points:g} of {short.max_points} points are missing"
    look = f"{short.to_fix}, then run " if short.to_fix else ""
    later = {*everything} - {*range(results[-1].stage + 1)}
    onward = f"\n      or go on: {next_one}" * bool(later)
    return f"{look}{command(short.stage, directory)}   ({missing}){onward}"


def written(directory: Path) -> str:
    """A bar that shows how many steps in the directory are written; "" if there are none."""
    done, steps = steps_written(directory)
    bar = "#" * (BAR * done // max(steps, 1))
    return f"course [{bar:-<{BAR}}] {done} of {steps} steps written" if steps else ""


def steps_written(directory: Path) -> tuple[int, int]:
    """How many of the steps in the directory are written, and how many there are."""
    files = [read(directory, f"problem_{n}.py", "") for n in STAGES]
    steps = sum(len(file.steps) for file in files)
    return steps - sum(len({step.id for step in file.steps} & {*file.blank_steps})
                       for file in files), steps
