"""Gives a step's three hints, one more each time they are asked for.

The texts are in hints.toml, one table per step with nudge, formula and near_code.  Which of them
was shown last is kept in .autograder/hints.json of the working directory.
"""

import json
import tomllib
from pathlib import Path

from grader.assignment.record import EXERCISES, grader_of
from grader.course.stages import Stage
from grader.host.files import replace
from grader.text import either

RUNGS = ("nudge", "formula", "near_code")
HINTS_FILE = Path(__file__).parent / "hints.toml"
STATE_FILE = Path(".autograder") / "hints.json"


class UnknownStep(ValueError):
    """The step has no hints; the message says which have."""


def next_hint(step: str, hints_file: Path = HINTS_FILE, state_file: Path = STATE_FILE) -> str:
    """The next hint of a step, ready to print; after the last one, the last again.

    Raises:
        UnknownStep: "want a step such as 4.1, 4.2; got 4.9".
    """
    hints = tomllib.loads(hints_file.read_text("utf-8")) if hints_file.exists() else {}
    if step not in hints:
        same = [name for name in hints if name.partition(".")[0] == step.partition(".")[0]]
        raise UnknownStep(f"want a step such as {', '.join(same or [*hints][:1])}; got {step}")
    state = _read(state_file)
    rung = min(state.get(step, -1) + 1, len(RUNGS) - 1)
    state[step] = rung
    _write(state_file, state)
    head = f"Step {step}, hint {rung + 1} of {len(RUNGS)} ({RUNGS[rung].replace('_', ' ')})"
    more = "Ask again for more." if rung + 1 < len(RUNGS) else (
        f'That was the last one.  The companion guide goes on, in "{_chapter(step)}": README.md '
        "says where it is.")
    return f"{head}\n\n{hints[step][RUNGS[rung]].strip()}\n\n{more}"


def _chapter(step: str) -> str:
    """The guide's chapter that derives this step's mathematics."""
    return "Warm-ups" if step in EXERCISES else f"Stage {step.partition('.')[0]}"


def look_at(stage: Stage, *steps: str, marked: bool = True) -> str:
    """A sentence on the steps to look at again, or, for a file that has none, on the course's."""
    if not marked:
        there = sorted(steps, key=lambda id: int(id.partition(".")[2]))
        return (f"In this course's {stage.filename}, this is done in step {either(there)}. "
                f"For a hint: {_command(stage, steps[0])}")
    origin = stage.origins.get(steps[0], "")  # its hints say more
    copied = f", copied from {origin}" * (bool(origin) and len(steps) == 1)
    return f"look at step {either(steps)}{copied}; more: {_command(stage, origin or steps[0])}"


def for_a_hint(stage: Stage, step: str) -> str:
    """How to ask for a hint of a step that something else has named."""
    return f"for a hint: {_command(stage, stage.origins.get(step) or step)}"


def _command(stage: Stage, step: str) -> str:
    return f"python {grader_of(stage.number)} --hint {step}"


def _read(path: Path) -> dict[str, int]:
    """How many hints of each step were shown; a damaged file only means starting again."""
    try:
        saved = json.loads(path.read_text("utf-8"))
        return {str(k): v for k, v in saved.items() if isinstance(v, int) and v >= 0}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(path: Path, state: dict[str, int]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(state, indent=1).encode(), 0o644)
    except OSError:
        pass  # in a read-only directory the hint is shown, but not remembered
