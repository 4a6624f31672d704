"""Workflows, forms, CITATION.cff, CHANGELOG.md and the pages for contributors: they parse, agree,
and what they name is there."""

import importlib.util
import re
import shlex
import subprocess
import tomllib
from datetime import datetime

import pytest
import yaml

from grader import cli
from grader.assignment import record
from grader.assignment.record import ROOT
from guide import build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NIGHTLY = ROOT / ".github/workflows/nightly.yml"
WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir())
TARGETS = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text("utf-8"), re.M)[1].split()
ACTIONS = {"actions/checkout@v6", "actions/setup-python@v6", "actions/upload-pages-artifact@v5",
           "actions/deploy-pages@v5"}


def read(path):
    return yaml.safe_load(path.read_text("utf-8"))


def steps(path) -> list[dict]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def assert_is_here(command: str) -> None:
    """Whether a command that a workflow or a page names is one of this repository's."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        assert set(words[1:]) <= set(TARGETS), command
    elif words[0].endswith("python") and words[1] == "-m":
        assert words[2] == "pip" or importlib.util.find_spec(words[2]), command
        for path in words[3:]:
            assert not path.startswith("tests/") or (ROOT / path).is_file(), command
    elif words[0].endswith("python"):
        numbers = tuple(record.GRADERS[words[1]])
        cli._parser(numbers, words[1]).parse_args(words[2:])  # exits where it knows no such option
    elif words[0] == "bash":
        assert (ROOT / words[1]).is_file(), command
    else:
        assert words[0] in ("grep", "cp"), command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_commands_of_this_repository_and_actions_that_are_known(path):
    workflow = read(path)
    assert workflow[True] and workflow["name"] == path.stem  # YAML 1.1 takes "on" for true
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert step["uses"] in ACTIONS
        for command in step.get("run", "").splitlines():
            assert_is_here(command)


def test_only_the_job_that_publishes_may_write_and_only_from_main():
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert ("permissions" in job) == (name == "publish")
    publish = read(ROOT / ".github/workflows/guide.yml")["jobs"]["publish"]
    assert publish["if"] == "github.event_name == 'push'"
    assert read(ROOT / ".github/workflows/guide.yml")[True]["push"] == {"branches": ["main"]}


def test_what_is_published_is_what_the_guide_is_built_into():
    given = next(step["with"]["path"] for step in steps(ROOT / ".github/workflows/guide.yml")
                 if "upload-pages-artifact" in step.get("uses", ""))
    assert ROOT / given == build.HERE / "_build" / "html"


def test_the_pythons_tried_are_the_oldest_that_is_allowed_and_a_newer_one():
    job = read(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]
    oldest, newer = job["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={oldest}" and newer > oldest


def test_the_nightly_runs_lift_the_pins_of_torch_triton_and_numpy_alone(tmp_path):
    command = next(step["run"] for step in steps(NIGHTLY) if step.get("run", "").startswith("grep"))
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    (tmp_path / "constraints.txt").write_text(pins)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    left = (tmp_path / "others.txt").read_text().splitlines()
    gone = [row for row in pins.splitlines() if row not in left]
    assert [re.match(r"\w+", row)[0] for row in gone] == ["torch", "triton", "numpy"]


def test_a_nightly_run_has_the_oldest_versions_that_are_allowed():
    oldest, newest = read(NIGHTLY)["jobs"]["versions"]["strategy"]["matrix"]["include"]
    pins = dict(pin.split("==") for pin in oldest["pins"].split())
    extras = PROJECT["optional-dependencies"]
    allowed = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(
        [*PROJECT["dependencies"], *extras["course"], *extras["test"]]), re.M))
    assert {"torch", "triton", "numpy"} <= set(pins) and not newest["pins"]
    for name, version in pins.items():
        assert re.fullmatch(rf"{re.escape(allowed[name])}(\.0)*", version), name
    assert PROJECT["requires-python"] == f">={oldest['python']}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_for_something_that_must_be_there(path):
    form = read(path)
    assert form["name"] and form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["type"] in ("input", "textarea") and field["attributes"]["label"]
               for field in form["body"])
    assert any(field["validations"]["required"] for field in form["body"])


def test_the_newest_version_of_the_changelog_is_the_grader_s():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = [head for head in re.findall(r"^## (.*)", changelog, re.M) if head != "Unreleased"]
    version, _, day = released[0].partition(", ")
    assert version == record.VERSION
    assert datetime.strptime(day, "%d %B %Y").date() == read(ROOT / "CITATION.cff")["date-released"]


def test_a_release_is_tagged_with_that_version():
    shown = subprocess.run(["make", "--dry-run", "release"], cwd=ROOT, capture_output=True,
                           text=True, check=True).stdout
    assert f'git tag --annotate "v{record.VERSION}"' in shown


def test_the_citation_agrees_with_the_project():
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["message"]
    title, _, _ = citation["title"].partition(": ")
    assert citation["version"] == record.VERSION == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]["text"]
    named = [author["name"] for author in PROJECT.get("authors", ())]
    assert [author.get("name") or f"{author['given-names']} {author['family-names']}"
            for author in citation["authors"]] == (
                named or [f"The authors of {title}"])
    urls = PROJECT.get("urls", {})
    assert citation.get("repository-code") == urls.get("Repository")


@pytest.mark.parametrize(("name", "most"), [
    (".github/SECURITY.md", 40), (".github/CODE_OF_CONDUCT.md", 40),
    (".github/pull_request_template.md", 40), ("AGENTS.md", 60), ("CONTRIBUTING.md", 60),
    ("grader/assignment/agents.md", 60)])
def test_a_page_is_short_and_its_commands_and_files_are_there(name, most):
    page, folder = (ROOT / name).read_text("utf-8"), (ROOT / name).parent
    assert len(page.splitlines()) <= most and max(map(len, page.splitlines())) <= 120
    commands = [row for block in re.findall(r"```\n(.*?)```", page, re.S)
                for row in block.splitlines()]
    assert bool(commands) == (most == 60)
    for command in commands + re.findall(r"`((?:make|\S*python) [^`]*)`", page):
        assert_is_here(command)
    if folder == ROOT:
        for path in re.findall(r"`([\w./]+(?:/|\.py|\.toml|\.cff))`", page):
            assert all((ROOT / path.replace("_K", f"_{n}")).exists() for n in (1, 9)), path
    if folder.name == "assignment":  # for a student's agent
        assert any("--hint" in command for command in commands)
        assert any("--step" in command for command in commands)
        assert "companion" in page and "`# BEGIN SOLUTION`" in page
