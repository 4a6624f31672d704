"""Runs --step 3.5: one step on its own, with its first failing example printed in full."""

from grader.assignment import submission
from grader.course.stages import Stage
from grader.host.options import Options
from grader.report import overview
from grader.report.results import NONE, RIGHT
from grader.report.screen import Reporter
from grader.step_checks.checks import StepChecks, damaged


def ask(stage: Stage, step: str, options: Options, reporter: Reporter) -> bool:
    """Run the step and say what is wrong.  -> whether it is right.

    Raises:
        ValueError: the file has no such step, or it cannot be run.
    """
    file = submission.read(options.directory, stage.filename, stage.entry)
    if file.state in ("missing", "syntax_error"):
        raise ValueError(file.located)
    if step not in {known.id for known in file.steps}:
        raise ValueError(f"{file.path}: {broken}" if (broken := damaged(file)) else
                         f"want a step of {file.path}; got {step}")
    hint = f"{overview.program(stage.number).rpartition(' ')[0]} --hint {step}"
    if step in file.blank_steps:
        reporter.say(f"step {step}: {file.left_raises[step]}" if step in file.left_raises else
                     f"step {step} is still blank. Next: {hint}")
        return False
    with StepChecks(stage, options, file, step) as lights:
        found = next((light for light in lights.explained() if light.id == step), None)
    if found is None or found.light == NONE:
        why = lights.why + "." if found is None else " ".join(found.seen)
        reporter.say(f"step {step} has no light: {why}")
    elif found.light == RIGHT:
        reporter.say(f"step {step} is right when it is run on its own."
                     + "".join(f" A note: {line}" for line in found.seen))
    else:
        reporter.say(f"step {step} is wrong: " + "\n".join(found.lines).replace("\n", "\n  "))
        reporter.table(["  " + line for line in found.shown])
        reporter.say(f"Next: {hint}")
    return found is not None and found.light == RIGHT
