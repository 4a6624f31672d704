"""What holds for the nine problem files as texts."""

import ast
import difflib
import re
import runpy
import textwrap
from pathlib import Path

import pytest
import torch

from grader.assignment.record import WARM_UPS
from grader.assignment.submission import steps
from tools.stage_table import carried, code_lines

ROOT = Path(__file__).parent.parent
FILES = {n: (ROOT / f"problem_{n}.py").read_text("utf-8") for n in range(1, 10)}
TREES = {n: ast.parse(source) for n, source in FILES.items()}
ATTENTION = range(3, 10)  # the stages that are one attention kernel and what grows out of it

REGIONS = {  # step id -> its title and the text inside its region
    step.id: (step.title, "\n".join(source.splitlines()[step.first_line : step.last_line - 1]))
    for source in FILES.values()
    for step in steps(source)
}
CARRIED = {  # step id -> the step that it is, to the letter
    step: origin for source in FILES.values() for step, origin in carried(source).items()
}


def _functions(n: int) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in TREES[n].body if isinstance(node, ast.FunctionDef)}


def _definition(n: int, name: str) -> str:
    """The text of a function, without its steps' numbers and what they ask."""
    text = ast.get_source_segment(FILES[n], _functions(n)[name])
    asked = re.compile(r"\s*#( Step |   |\s*(BEGIN|END) SOLUTION )")
    return "\n".join(row for row in text.splitlines() if not asked.match(row))


def _parameters(function: ast.FunctionDef) -> dict[str, bool]:
    """Name -> is it a tl.constexpr?"""
    return {arg.arg: arg.annotation is not None and "constexpr" in ast.unparse(arg.annotation)
            for arg in function.args.args}


def _code(n: int) -> list[str]:
    """The lines of code, without comments behind them and without indentation."""
    rows = FILES[n].splitlines()
    return [rows[i - 1].strip().split("  # ")[0] for i in sorted(code_lines(FILES[n]))]


# ------------------------------------------------------------- what stages share
@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("_head", ATTENTION),
        ("_load", ATTENTION),
        ("_store", ATTENTION),
        ("_tiles", ATTENTION),
        ("_small_strides", ATTENTION),
        ("_load_row", (8, 9)),
        ("_check", (3, 4)),
        ("_check", (5, 6, 7, 8, 9)),
    ],
)
def test_what_stages_share_is_the_same_to_the_letter(name, stages):
    texts = {n: _definition(n, name) for n in stages}
    different = [n for n in stages if texts[n] != texts[stages[0]]]
    assert not different, f"{name} in problems {different} is not that of problem {stages[0]}"


@pytest.mark.parametrize("step", CARRIED)
def test_what_a_step_carries_over_is_the_same_to_the_letter(step):
    title, text = REGIONS[CARRIED[step]]
    assert not title.startswith("Copied from") and CARRIED[step][0] < step[0]
    assert textwrap.dedent(REGIONS[step][1]) == textwrap.dedent(text)


def test_a_step_carries_over_or_has_text_of_its_own():
    own = {step: textwrap.dedent(text) for step, (_, text) in REGIONS.items()
           if step not in CARRIED}
    twins = [(a, b) for a in own for b in own if a < b and own[a] == own[b]]
    assert len(CARRIED) > 40 and not twins


@pytest.mark.parametrize("n", ATTENTION[1:])
def test_the_background_names_the_steps_that_are_new(n):
    found = re.search(r"^New here: steps? (.*?)\.(  |$)", ast.get_docstring(TREES[n]), re.MULTILINE)
    named = []
    for first, last in re.findall(r"\d\.(\d+)(?: to \d\.(\d+))?", found[1]):
        named += [f"{n}.{step}" for step in range(int(first), int(last or first) + 1)]
    assert named == [step for step in REGIONS if int(step[0]) == n and step not in CARRIED]


@pytest.mark.parametrize(
    ("n", "most"), [(3, 130), (4, 130), (5, 140), (6, 155), (7, 170), (8, 240), (9, 320)]
)
@pytest.mark.style
def test_a_problem_file_stays_short(n, most):
    assert len(_code(n)) <= most


@pytest.mark.parametrize(("n", "most"), [(4, 40), (5, 32), (6, 60), (7, 48)])
@pytest.mark.style
def test_a_stage_differs_from_the_one_before_it_by_its_own_idea(n, most):
    changes = [row for row in difflib.unified_diff(_code(n - 1), _code(n), lineterm="", n=0)
               if row[0] in "+-" and not row.startswith(("+++", "---"))]
    assert len(changes) <= most, "\n".join(changes)


# ---------------------------------------------------------------- kernels to read
@pytest.mark.parametrize("n", ATTENTION)
@pytest.mark.style
def test_no_kernel_is_tuned_in_a_problem_file(n):
    machinery = ("TensorDescriptor", "maxnreg", "TWO_TILES", "Q_IN_REGISTERS", "LATE_V",
                 "PRODUCTS_FIRST", "num_warps", "make_tensor_descriptor", "warp_specialize")
    assert not [word for word in machinery if word in FILES[n]]


@pytest.mark.parametrize("n", ATTENTION)
@pytest.mark.style
def test_the_kernel_comes_first_and_soon(n):
    first = next(iter(_functions(n).values()))
    assert first.name == "_fwd_kernel" and first.lineno < 80


@pytest.mark.parametrize("n", ATTENTION)
@pytest.mark.style
def test_tiles_have_two_heights_and_a_width(n):
    names = {node.id if isinstance(node, ast.Name) else node.arg
             for node in ast.walk(TREES[n]) if isinstance(node, ast.Name | ast.arg)}
    assert {name for name in names if name.startswith("BLOCK")} == {
        "BLOCK_M", "BLOCK_N", "BLOCK_D"}
    for name, function in _functions(n).items():
        if name.endswith("_kernel"):
            constants = [name for name, constant in _parameters(function).items() if constant]
            assert constants == ["D", "BLOCK_D", "BLOCK_M", "BLOCK_N"] + ["CAUSAL"] * (n > 7)


@pytest.mark.parametrize("n", ATTENTION)
@pytest.mark.style
def test_no_function_takes_more_arguments_than_one_can_read(n):
    assert max(len(_parameters(function)) for function in _functions(n).values()) <= 28


# ----------------------------------------------------------------- files and steps
@pytest.mark.parametrize("n", FILES)
def test_a_problem_file_stands_alone(n):
    allowed = {"math", "os", "torch", "triton"}
    for node in ast.walk(TREES[n]):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] in allowed


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("name", [*(f"problem_{n}.py" for n in range(2, 10)), WARM_UPS])
def test_by_hand_without_a_gpu_or_the_interpreter_a_file_says_what_it_wants(name, no_gpu):
    with pytest.raises((ValueError, SystemExit), match="want .*TRITON_INTERPRET=1 at start"):
        runpy.run_path(str(ROOT / name), run_name="__main__")


@pytest.mark.parametrize("n", FILES)
def test_a_problem_file_opens_with_its_background(n):
    docstring = ast.get_docstring(TREES[n], clean=False)
    assert docstring.startswith(f"Problem {n} -- ")
    assert 20 <= len(docstring.splitlines()) <= 60
    for word in ("Shapes", "Dtypes", "Check", "Stuck", "Source"):
        assert re.search(rf"^{word}\b", docstring, re.MULTILINE), word
    grader = "autograder.py" if n <= 7 else "autograder_optional.py"
    assert f"python {grader} --p{n}" in docstring
    asked = re.search(rf"python {grader} --hint (\d\.\d+) ", docstring)[1]
    assert asked in REGIONS and asked[0] == str(n) and asked not in CARRIED


@pytest.mark.parametrize("n", FILES)
def test_every_step_is_announced_above_its_region(n):
    lines = FILES[n].splitlines()
    for i, line in enumerate(lines):
        if "BEGIN SOLUTION" in line:
            step = line.split()[-1]
            above = "\n".join(lines[max(0, i - 6) : i])
            assert f"# Step {step} -- " in above, f"problem_{n}.py:{i + 1}"


@pytest.mark.parametrize("n", ATTENTION[1:])
def test_a_line_stands_above_every_new_step_and_above_no_other(n):
    marked = re.findall(r"^ *# =+ new\n *# Step (\d\.\d+) -- ", FILES[n], re.MULTILINE)
    assert len(marked) == FILES[n].count("= new\n")
    assert marked == [step for step in REGIONS if int(step[0]) == n and step not in CARRIED]


@pytest.mark.parametrize("n", FILES)
def test_steps_stand_in_the_order_of_their_numbers(n):
    found = re.findall(r"# BEGIN SOLUTION (\d+)\.(\d+)", FILES[n])
    assert {int(stage) for stage, _ in found} == {n}
    assert [int(step) for _, step in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize("n", FILES)
def test_every_step_that_a_text_names_exists(n):
    named = re.findall(r"\bsteps? ((?:\d\.\d+(?:,| and|, and| to)? ?)+)", FILES[n])
    assert {step for text in named for step in re.findall(r"\d\.\d+", text)} <= set(REGIONS)
