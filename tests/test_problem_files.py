"""What holds for the nine problem files as texts."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {n: (ROOT / f"problem_{n}.py").read_text() for n in range(1, 10)}


def _definition(n: int, name: str) -> str:
    for node in ast.parse(FILES[n]).body:
        if getattr(node, "name", None) == name:
            return ast.get_source_segment(FILES[n], node)
    raise AssertionError(f"problem_{n}.py defines no {name}")


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("_recompute_backward", (3, 4, 5, 6, 7)),  # the given backward
        ("_head", (3, 4, 5, 8)),
        ("_head", (6, 7, 9)),  # with several heads in a tile
        ("_load_rows", (3, 4, 5, 8)),
        ("_load_rows", (6, 7, 9)),
        ("_store_rows", (3, 4, 5, 8)),
        ("_store_rows", (6, 7, 9)),
        ("_partial_sums", (3, 4, 5, 6, 7, 8, 9)),
        ("_can_describe", (3, 4, 5, 6, 7, 8, 9)),
        ("_describe", (3, 4, 5, 6, 7, 8, 9)),
        ("_tiles", (3, 4, 5, 6, 7, 8, 9)),
        ("_backward_tiles", (8, 9)),
        ("_longest_first", (4, 5, 8, 9)),
        ("_check", (5, 6, 7, 8, 9)),
    ],
)
def test_what_stages_share_is_the_same_to_the_letter(name, stages):
    texts = {n: _definition(n, name) for n in stages}
    different = [n for n in stages if texts[n] != texts[stages[0]]]
    assert not different, f"{name} in problems {different} is not that of problem {stages[0]}"


@pytest.mark.parametrize("n", FILES)
def test_a_problem_file_stands_alone(n):
    allowed = {"math", "os", "torch", "triton"}
    for node in ast.walk(ast.parse(FILES[n])):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] in allowed


@pytest.mark.parametrize("n", FILES)
def test_a_problem_file_opens_with_its_background(n):
    docstring = ast.get_docstring(ast.parse(FILES[n]), clean=False)
    assert docstring.startswith(f"Problem {n} -- ")
    assert 20 <= len(docstring.splitlines()) <= 62
    for word in ("Shapes", "Dtypes", "Check", "Stuck", "Source"):
        assert re.search(rf"^{word}\b", docstring, re.MULTILINE), word
    grader = "autograder.py" if n <= 7 else "autograder_optional.py"
    assert f"python {grader} --p{n}" in docstring


@pytest.mark.parametrize("n", FILES)
def test_every_step_is_announced_above_its_region(n):
    lines = FILES[n].splitlines()
    for i, line in enumerate(lines):
        if "BEGIN SOLUTION" in line:
            step = line.split()[-1]
            above = "\n".join(lines[max(0, i - 6) : i])
            assert f"# Step {step} -- " in above, f"problem_{n}.py:{i + 1}"


@pytest.mark.parametrize("n", FILES)
def test_step_numbers_count_up_from_one(n):
    steps = re.findall(r"# BEGIN SOLUTION (\d+)\.(\d+)", FILES[n])
    assert {int(stage) for stage, _ in steps} == {n}
    assert sorted(int(step) for _, step in steps) == list(range(1, len(steps) + 1))
