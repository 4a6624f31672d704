"""The hints that are shipped: one for every step, short, and never the solution itself."""

import ast
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from grader import starter
from grader.assignment import hints
from grader.assignment.submission import steps
from tools.stage_table import carried

ROOT = Path(__file__).parent.parent
HINTS = tomllib.loads(hints.HINTS_FILE.read_text("utf-8"))


def _solutions() -> dict[str, tuple[str, list[str]]]:
    """Step id -> its title and the lines inside its region."""
    found = {}
    names = [starter.WARM_UPS, *(f"problem_{number}.py" for number in range(1, 10))]
    for name in names:
        source = (ROOT / name).read_text("utf-8")
        rows = source.splitlines()
        for step in steps(source):
            found[step.id] = step.title, rows[step.first_line : step.last_line - 1]
    return found


SOLUTIONS = _solutions()
CARRIED = {  # step id -> the step that it is, to the letter
    step: origin
    for number in range(1, 10)
    for step, origin in carried((ROOT / f"problem_{number}.py").read_text("utf-8")).items()
}
LEAKS = {  # as a student could paste them: with and without the comment behind
    " ".join(text.split())
    for _, rows in SOLUTIONS.values()
    for row in rows
    for text in (row, row.split("  # ")[0])
    if len(text.strip()) > 15
}
each_hint = pytest.mark.parametrize("step", HINTS)


def _leaks(text: str) -> list[str]:
    """The solution lines in a text, wherever its own lines break."""
    return sorted(leak for leak in LEAKS if leak in " ".join(text.split()))


def _expressions(step: str) -> set[str]:
    """What a step's solution is made of, down to 20 characters, without blanks."""
    tree = ast.parse(textwrap.dedent("\n".join(SOLUTIONS[step][1])))
    kinds = ast.Call | ast.BinOp | ast.Compare | ast.IfExp
    texts = {_squeezed(ast.unparse(x)) for x in ast.walk(tree) if isinstance(x, kinds)}
    return {text for text in texts if len(text) >= 20}


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_every_step_has_hints_in_order_and_no_hint_lacks_a_step():
    assert set(HINTS) == set(SOLUTIONS) and len(HINTS) >= 9
    assert list(HINTS) == sorted(HINTS, key=lambda step: [
        int(part) for part in step.replace("W", "0").split(".")])


@each_hint
def test_a_step_has_its_three_rungs_and_nothing_else(step):
    assert tuple(HINTS[step]) == hints.RUNGS
    for text in HINTS[step].values():
        assert isinstance(text, str) and text.strip()


@each_hint
@pytest.mark.style
def test_a_text_is_plain_writing_in_four_lines_of_eighty_columns(step):
    for rung, text in HINTS[step].items():
        lines = text.strip().splitlines()
        assert len(lines) <= 4, rung
        for line in lines:
            assert len(line) <= 80 and line == line.rstrip(), f"{rung}: {line}"
        strange = {c for c in text if not (c.isascii() and c.isprintable()) and c not in "\n…"}
        assert not strange and "!" not in text, f"{rung}: {strange}"
    nudge = HINTS[step]["nudge"].strip()
    assert 1 <= len(re.findall(r"[.?](?=\s|$)", nudge)) <= 3 and nudge.endswith((".", "?"))
    if step not in CARRIED:  # at a blank page
        assert re.match(r"You have .+\. This step must .+\. .+", " ".join(nudge.split()))


@each_hint
def test_no_hint_contains_a_line_of_any_solution(step):
    for rung, text in HINTS[step].items():
        assert not _leaks(text), rung


@each_hint
def test_almost_code_is_no_python_one_could_paste_and_no_expression_of_its_step(step):
    text = HINTS[step]["near_code"].strip()
    for line in text.splitlines():
        with pytest.raises(SyntaxError):
            ast.parse(line.strip())
    assert not [expression for expression in _expressions(step) if expression in _squeezed(text)]


@pytest.mark.parametrize("step", CARRIED)
def test_a_carried_over_step_is_short_and_points_back_in_every_rung(step):
    assert not SOLUTIONS[CARRIED[step]][0].startswith("Copied from")
    for rung, most in zip(hints.RUNGS, (3, 1, 1), strict=True):
        text = HINTS[step][rung].strip()
        assert len(text.splitlines()) <= most, rung
        assert re.search(rf"\b[Ss]tep {re.escape(CARRIED[step])}\b", " ".join(text.split())), rung
    assert f"--hint {CARRIED[step]}" in HINTS[step]["near_code"]


@each_hint
def test_every_step_that_a_hint_names_exists_and_is_no_later_stage(step):
    for text in HINTS[step].values():
        named = set(re.findall(r"\b\d\.\d+\b", text)) - {"0.01"}
        assert named <= set(SOLUTIONS) and all(name[0] <= step[0] for name in named)


@pytest.mark.parametrize("step", sorted(set(HINTS) - set(CARRIED)))
def test_two_steps_with_work_in_them_have_different_hints(step):
    others = [HINTS[other] for other in HINTS if other != step]
    assert not [rung for rung in hints.RUNGS if any(HINTS[step][rung] == x[rung] for x in others)]


def test_a_leaked_line_would_be_noticed():
    leak = next(row for row in SOLUTIONS["3.7"][1] if "tl.load" in row).strip()
    broken = leak.replace(" ", "\n", 1)
    assert _leaks(f"Write {leak} here") == _leaks(f"Write\n{broken}\nhere") == [leak]
    assert not _leaks(f"Write {leak[:-3]} here")


def test_the_grader_prints_the_three_rungs_of_a_shipped_hint(tmp_path):
    state = tmp_path / "hints.json"
    for rung in hints.RUNGS:
        assert HINTS["4.2"][rung].strip() in hints.next_hint("4.2", state_file=state)


SIZES = {"N", "NK", "M", "D", "BLOCK_M", "BLOCK_N"}  # which say what shape something has


def _foreign(step: str, text: str) -> set[str]:
    """Names of the file that a text mentions and its step's solution does not use."""
    tree = ast.parse((ROOT / f"problem_{step.partition('.')[0]}.py").read_text("utf-8"))
    known = {getattr(node, "id", getattr(node, "arg", None)) for node in ast.walk(tree)}
    known = {name for name in known if name and ("_" in name.strip("_") or name.isupper())}
    own = re.findall(r"\w+", "\n".join(SOLUTIONS[step][1]))
    return known & set(re.findall(r"\w+", text)) - {*own} - SIZES


def test_a_formula_names_what_its_own_step_uses():
    own = [step for step in HINTS if step not in CARRIED and step[0] != "W"]
    foreign = {step: found for step in own if (found := _foreign(step, HINTS[step]["formula"]))}
    assert foreign == {"8.11": {"_dq_kernel"}}  # whose delta it is
    assert _foreign("6.3", HINTS["6.4"]["formula"])
