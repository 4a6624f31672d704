"""The arrows between files go one way, across the border to a submission above all."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from grader.assignment import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
OURS = ("grader", "reference", "attacks", "tools", "tests", "fast", "benchmarks", "examples",
        "classroom")


def modules(*folders: str) -> list[str]:
    """Dotted names of the Python files in these folders and below."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def imported(module: str) -> set[str]:
    """The modules of ours that a module imports, wherever in it."""
    found, package = set(), module.split(".")[:-1]
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return {name for name in found if name.split(".")[0] in OURS
            and (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()}


def outside(folder: str) -> set[str]:
    """What the files of a folder of the grader import from outside of it."""
    return {name for module in modules(f"grader/{folder}") for name in imported(module)
            if not name.startswith(f"grader.{folder}.")}


def test_what_runs_beside_a_submission_imports_nothing_from_outside_its_folder():
    assert outside("inside") == set()


def test_of_what_runs_beside_a_submission_the_grader_takes_only_what_both_sides_share():
    found = {name for module in modules("grader") if not module.startswith("grader.inside.")
             for name in imported(module)}
    assert {name for name in found if name.startswith("grader.inside.")} == {"grader.inside.wire"}


def test_the_trusted_side_of_the_border_knows_nothing_of_cases_and_verdicts():
    assert outside("sandbox") <= {"grader.inside.wire", "grader.text"}


def test_naming_a_mistake_knows_nothing_of_the_verdict_and_of_the_command_line():
    above = {f"grader.{name}" for name in ("judge", "grade", "cli", "report", "confirm", "means",
                                           "timing", "compiling")}
    assert not outside("naming") & above


def test_a_step_asked_alone_knows_nothing_of_the_search_in_whole_files():
    assert not {name for name in outside("steps") if name.startswith("grader.naming")}


def test_cases_are_data():
    assert imported("grader.cases") <= {"grader.inside.wire", "grader.stages"}


@pytest.mark.parametrize("folders", [
    ("grader",), ("tools",), ("attacks",), ("classroom",), ("fast", "benchmarks")],
                         ids=lambda folders: folders[0])
def test_no_files_import_each_other_in_a_circle(folders):
    graph = {module: imported(module) for module in modules(*folders)}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_grader_needs_nothing_but_itself_and_the_reference():
    found = {name.split(".")[0] for module in modules("grader") for name in imported(module)}
    assert found == {"grader", "reference"}


def test_the_class_tool_knows_the_grader_and_nobody_knows_the_class_tool():
    found = {name.split(".")[0] for module in modules("classroom") for name in imported(module)}
    assert found <= {"classroom", "grader"}
    others = modules("grader", "attacks", "tools", "fast", "benchmarks", "examples")
    assert not {module for module in others
                if any(name.startswith("classroom") for name in imported(module))}


def test_the_nursery_is_started_before_this_process_imports_torch():
    code = "import sys, grader.cli, grader.sandbox.processes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_the_map_of_the_files_names_every_module_of_the_engine_and_nothing_else():
    shown = re.search(r"```\n(grader/.*?)```", PAGE, re.S)[1]
    named = set(re.findall(r"\b\w+\.(?:py|toml|md|npz)\b", shown))
    there = {path.name for path in (ROOT / "grader").rglob("*")
             if path.suffix in (".py", ".toml", ".md", ".npz") and path.name != "__init__.py"
             and path.parent.name != "mistakes"}  # which are all of one kind
    assert named - there == set(), "the map names what is not there"
    assert there - named == set(), "the map lacks them"
