"""The arrows between files go one way, across the border to a submission above all."""

import ast
import functools
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from grader.assignment.record import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
OURS = ("grader", "reference", "attacks", "tools", "tests", "sink_attn", "benchmarks", "examples",
        "classroom", "guide")


@functools.cache
def modules(*folders: str) -> list[str]:
    """Dotted names of the Python files in these folders and below."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def is_module(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()


def source(module: str) -> str:
    return (ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")


@functools.cache
def imported(module: str) -> set[str]:
    """The modules of ours that a module imports, wherever in it; a package whose own names it
    imports is package.__init__."""
    return imports(module, source(module))


def imports(module: str, text: str) -> set[str]:
    """The modules of ours that a text imports, if it is that of a module."""
    found, package = set(), module.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            above = package[:len(package) + 1 - node.level]
            base = ".".join(above) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
            if not all(is_module(f"{base}.{alias.name}") for alias in node.names):
                found.add(f"{base}.__init__")
    return {name for name in found if name.split(".")[0] in OURS and is_module(name)}


def outside(folder: str) -> set[str]:
    """What the files of a folder of the grader import from outside of it."""
    return {name for module in modules(f"grader/{folder}") for name in imported(module)
            if not name.startswith(f"grader.{folder}.")}


def package(module: str) -> str:
    """ "judge", "sandbox.worker"; "" for what lies at the top of the grader and for wire.py. """
    inner = module.split(".")[1:-1]
    return ".".join(inner) if inner != ["sandbox"] else ""


def test_what_runs_beside_a_submission_imports_nothing_from_outside_its_folder():
    assert outside("sandbox") == set()


def test_the_grader_takes_from_the_sandbox_only_what_both_sides_share():
    found = {(module, name) for module in modules("grader")
             if not module.startswith("grader.sandbox.") for name in imported(module)
             if name.startswith("grader.sandbox.") and name != "grader.sandbox.wire"}
    assert found == {("grader.host.processes", "grader.sandbox.__init__")}  # LENGTH


def test_only_the_doctor_runs_more_of_the_sandbox_in_a_process_of_its_own():
    found = {(module, name) for module in modules("grader")
             if not module.startswith("grader.sandbox.")
             for node in ast.walk(ast.parse(source(module))) if isinstance(node, ast.Constant)
             and re.search(r"^(from|import) grader\.sandbox", str(node.value), re.M)
             for name in imports(module, node.value)}
    assert found == {("grader.host.doctor", f"grader.sandbox.supervisor.{name}")
                     for name in ("confine", "seccomp")}


# From the bottom: a package imports only from those before it.
PACKAGES = ("sandbox.kernels", "sandbox.replay", "sandbox.worker", "sandbox.supervisor", "course",
            "host", "assignment", "report", "drawings", "page", "step_checks", "diagnosis", "judge",
            "check")


def test_every_folder_of_the_grader_is_a_package():
    assert {package(module) for module in modules("grader")} - {""} == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_imports_only_from_packages_below_it(name):
    found = {package(other) for module in modules("grader") if package(module) == name
             for other in imported(module)} - {"", name}
    assert found <= set(PACKAGES[:PACKAGES.index(name)])


def test_no_package_needs_what_lies_above_the_packages():
    leaves = {"grader.text", "grader.sandbox.wire", "grader.sandbox.__init__"}
    way_in = "grader.check.__main__"
    found = {other for module in modules("grader") if package(module) and module != way_in
             for other in imported(module) if other.startswith("grader.") and not package(other)}
    assert found <= leaves


def test_what_is_asked_of_whom_is_not_known_to_those_who_run_it():
    """Of the course they take what is sent and what comes back, and a stage's own entry point."""
    found = {name for name in outside("host") if name.startswith("grader.course.")}
    assert found <= {"grader.course.calls", "grader.course.trace", "grader.course.stages"}


@pytest.mark.parametrize("folders", [
    ("grader",), ("tools",), ("attacks",), ("classroom",), ("sink_attn", "benchmarks"), ("guide",)],
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
    others = modules("grader", "attacks", "tools", "sink_attn", "benchmarks", "examples")
    assert not {module for module in others
                if any(name.startswith("classroom") for name in imported(module))}


def test_the_fork_server_is_started_before_this_process_imports_torch():
    code = "import sys, grader.cli, grader.host.processes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.style
def test_the_name_of_a_test_has_at_most_70_characters():
    names = [name for path in (ROOT / "tests").rglob("test_*.py")
             for name in re.findall(r"def test_(\w+)", path.read_text("utf-8"))]
    assert len(names) > 1000 and [name for name in names if len(name) > 70] == []


def test_the_page_names_every_package_and_no_file_that_is_not_there():
    named = set(re.findall(r"`(?:\w+/)*(\w+\.(?:py|toml|tsv|md))`", PAGE)) - {
        "problem_10.py", "test_problem_10.py", "stage_K.toml"}
    folders = ("grader", "classroom", "attacks", "tests", "tools", "benchmarks", "guide",
               "sink_attn")
    there = {path.name for path in (*ROOT.iterdir(), *(
        path for folder in folders for path in (ROOT / folder).rglob("*")))}
    assert named - there == set()
    assert {name.partition(".")[0] for name in PACKAGES} <= set(re.findall(r"`(\w+)/`", PAGE))
