"""The Dockerfiles, the dev container and the Modal script: what they name is there; the script is
run with a stand-in for Modal."""

import importlib.util
import json
import re
import sys
import types

import pytest

from grader.assignment.record import ROOT

FILES = sorted((ROOT / "containers").glob("*.Dockerfile"))
PAGE = (ROOT / "containers/README.md").read_text("utf-8")


def instructions(path) -> list[tuple[str, str]]:
    rows = [row for row in path.read_text("utf-8").splitlines() if row and row[0] != "#"]
    return [tuple(row.split(" ", 1)) for row in rows]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)  # "gpu" would be a mark
def test_a_dockerfile_installs_as_make_does_and_starts_what_is_there(path):
    asked = instructions(path)
    assert [word for word, _ in asked] == ["FROM", "RUN", "COPY", "WORKDIR", "RUN", "CMD"]
    said = dict(asked)
    assert said["COPY"] == f". {said['WORKDIR']}"
    makefile = (ROOT / "Makefile").read_text("utf-8")
    pins = re.search(r"-c (\S+)", said["RUN"])[1]  # of the last RUN
    assert f"-c {pins} " in makefile and (ROOT / pins).is_file()
    assert said["RUN"].startswith("python -m pip install ") and said["RUN"].endswith(' ".[course]"')
    assert json.loads(said["CMD"]) == ["python", "autograder.py"]
    assert not any(word == "USER" for word, _ in asked)  # root, so that workers run as nobody
    head = path.read_text("utf-8").partition("FROM")[0]
    assert "# Tried" in head and "# Not tried" in head and f"-f containers/{path.name} ." in head


def test_nothing_that_make_and_the_grader_leave_goes_into_an_image():
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    left = {row.strip("/") for row in (ROOT / ".gitignore").read_text("utf-8").split()
            if row.startswith("/") and row.endswith("/")}
    assert left <= set(ignored) and {".git", ".venv", "**/__pycache__"} <= set(ignored)


def test_the_dev_container_is_built_from_the_dockerfile_for_a_cpu():
    path = ROOT / ".devcontainer/devcontainer.json"
    rows = path.read_text("utf-8").splitlines()
    read = json.loads("\n".join(row for row in rows if not row.startswith("//")))
    assert (path.parent / read["build"]["dockerfile"]).resolve() == FILES[0]
    assert (path.parent / read["build"]["context"]).resolve() == ROOT
    assert read["postCreateCommand"] == "python autograder.py --doctor"


@pytest.mark.parametrize("name", [path.name for path in FILES] + ["on_modal.py"])
def test_the_page_names_every_way(name):
    assert f"({name})" in PAGE


@pytest.fixture
def script(monkeypatch):
    """containers/on_modal.py, its functions called here in the place of a rented machine."""
    asked = {}

    class App:
        def __init__(self, name, image):
            asked["image"] = image

        def function(self, **options):
            asked["options"] = options
            return lambda call: types.SimpleNamespace(remote=call)

        def local_entrypoint(self):
            return lambda call: call

    image = types.SimpleNamespace(from_dockerfile=lambda path, context_dir: (path, context_dir))
    monkeypatch.setitem(sys.modules, "modal", types.SimpleNamespace(App=App, Image=image))
    spec = importlib.util.spec_from_file_location("on_modal", ROOT / "containers/on_modal.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert asked["image"] == (FILES[1], ROOT) and asked["options"]["gpu"] == "L4"
    monkeypatch.setattr(module, "COURSE", ROOT)
    return module


@pytest.mark.interpreter
def test_the_modal_script_brings_the_report_back(script, tmp_path, monkeypatch, capfd):
    workdir = dict(instructions(FILES[1]))["WORKDIR"]
    assert f'COURSE = Path("{workdir}")' in (ROOT / "containers/on_modal.py").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        script.main(str(ROOT), 2)
    graded = json.loads((tmp_path / "results_2.json").read_bytes())["stages"]
    assert [(stage["stage"], stage["outcome"]) for stage in graded] == [(2, "pass")]
    assert ended.value.code == 0 and "100 of 100 points" in capfd.readouterr().out


def test_the_modal_script_refuses_a_folder_without_the_file(script, tmp_path):
    with pytest.raises(SystemExit, match="want a folder with problem_3.py; got"):
        script.main(str(tmp_path), 3)
