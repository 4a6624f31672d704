"""The notebooks: made of their texts, blank, and run from top to bottom as a student would.

All steps written, a run takes 78 s of stage 1 and 68 s of the warm-ups (two busy cores, Python
3.12, 2026-11-24); here two steps are.
"""

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from grader.assignment.record import ROOT
from grader.assignment.submission import lines, steps
from grader.starter import WARM_UPS, blank

notebooks = pytest.importorskip("tools.notebooks", reason="pip install -e .[notebook]")
nbformat = pytest.importorskip("nbformat", reason="pip install -e .[notebook]")
nbclient = pytest.importorskip("nbclient", reason="pip install -e .[notebook]")

SOURCES = {name: (ROOT / name).read_text("utf-8") for name in (WARM_UPS, "problem_1.py")}
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "flash", "__pycache__", "_build", "drawn",
                                    ".*_cache", "attacks", "tests")


def written_in(step_id: str) -> str:
    """What stands in a step of the solved files."""
    for text in SOURCES.values():
        for step in steps(text):
            if step.id == step_id:
                return "".join(lines(text)[step.first_line:step.last_line - 1])
    raise AssertionError(f"no step {step_id}")


def step_of(cell) -> str | None:
    found = re.match(r"%%step (\S+)\n", cell.source)
    return found and found[1]


@pytest.fixture
def course(tmp_path) -> Path:
    return shutil.copytree(ROOT, tmp_path / "course", ignore=NOT_COPIED)


def run(notebook, folder: Path) -> list[str]:
    """-> what each cell printed, as Jupyter would run them there."""
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3",
                   resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(output.get("text", "") for output in cell.get("outputs", ()))
            for cell in notebook.cells]


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_is_what_its_text_makes(name):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    assert path.read_text("utf-8") == notebooks.made(name), "python -m tools.notebooks"


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_holds_no_line_of_a_solution_and_no_output(name):
    notebook = nbformat.reads(notebooks.made(name), as_version=4)
    solved = {row.strip() for text in SOURCES.values() for step in steps(text)
              for row in written_in(step.id).splitlines() if row.strip()}
    shown = {row.strip() for cell in notebook.cells for row in cell.source.splitlines()}
    assert len(solved) > 30 and not solved & shown
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        if step_of(cell):
            assert all(row.startswith("#") for row in cell.source.splitlines()[1:] if row)


def test_together_they_have_every_step_of_their_files():
    found = [step_of(cell) for name in notebooks.NAMES
             for cell in nbformat.reads(notebooks.made(name), as_version=4).cells if step_of(cell)]
    assert found == [step.id for text in SOURCES.values() for step in steps(text)]


def test_a_step_s_cell_says_what_the_file_says():
    assert notebooks.filled("%%step 1.4") == (
        "%%step 1.4\n# Step 1.4 -- Bring l_i and acc up to date with the same alpha.\n")


def test_the_address_comes_from_the_project(monkeypatch):
    assert 'REPOSITORY = ""' in notebooks.filled("first_cell.py")
    monkeypatch.setattr(notebooks.tomllib, "loads", lambda text: {
        "project": {"urls": {"Repository": "https://example.org/course"}}})
    assert 'REPOSITORY = "https://example.org/course"' in notebooks.filled("first_cell.py")


def test_code_at_the_left_edge_goes_into_its_step_and_nowhere_else():
    from notebooks.cells import _code_of, put

    for text in SOURCES.values():
        filled = blank(text)
        for step in steps(text):
            cell = f"# Step {step.id}\n\n{textwrap.dedent(written_in(step.id))}\n"
            filled = put(filled, step.id, _code_of(cell))
        assert filled == text
    assert _code_of("# Step 1.1\n\n  # more\n") == ""
    with pytest.raises(SyntaxError):
        put(text, "1.1", "s = (1")
    with pytest.raises(ValueError, match="want a step of the file; got 1.9"):
        put(text, "1.9", "s = 1")


@pytest.mark.interpreter
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_blank_notebook_runs_from_top_to_bottom(name, course):
    notebook = nbformat.reads(notebooks.made(name), as_version=4)
    said = run(notebook, course / "notebooks")
    first = next(text for text in said if text)
    assert "Problems 1-9 are in" in first and "pip install" not in first
    assert "problem 1 runs" in first
    asked = [cell for cell in notebook.cells if step_of(cell)]
    blanks = [text for text in said if "There is no code in this cell yet" in text]
    assert len(blanks) == len(asked) and "not started" in said[-2]
    assert not any("--watch" in text for text in [*said, *(cell.source for cell in notebook.cells)])
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", ())
                if "<svg" in output.get("data", {}).get("text/html", "")]
    shown = [cell for cell in notebook.cells if cell.source.startswith("picture(")]
    assert len(pictures) == len(shown) > 1
    for path in SOURCES:
        assert (course / "flash" / path).read_text("utf-8") == blank(SOURCES[path])


@pytest.mark.interpreter
def test_what_is_written_in_the_cells_is_graded_and_stays(course):
    notebook = nbformat.reads(notebooks.made("stage_1"), as_version=4)
    first, *others = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [first, *(cell for cell in others if step_of(cell) in ("1.3", "1.4")
                     or cell.source == "%grade --p1 --quick")]
    wrong = textwrap.dedent(written_in("1.4")).replace("alpha[..., None] * acc +", "acc +")
    for cell in kept:
        if step_of(cell):
            cell.source += wrong if step_of(cell) == "1.4" else written_in("1.3")
    again = nbformat.v4.new_code_cell(first.source)
    unfinished = nbformat.v4.new_code_cell("%%step 1.4\nacc = (")
    notebook.cells = [*kept, again, unfinished]
    said = run(notebook, course)
    told = dict(zip(map(step_of, kept), said, strict=False))
    assert "step 1.3 is right" in told["1.3"] and "step 1.4 is wrong" in told["1.4"]
    assert "acc is not multiplied by alpha" in " ".join(told["1.4"].split())
    assert "steps  ✗ 1.4   ✓ 1.3   · " in said[-3] and "\x1b" not in said[-3]
    assert "is there: what you wrote stays as it is" in said[-2]
    assert "was never closed: acc = (" in said[-1] and "Nothing was written" in said[-1]
    text = (course / "flash/problem_1.py").read_text("utf-8")
    assert textwrap.indent(wrong, " " * 12) in text


def test_without_a_clone_the_first_cell_says_what_to_do(tmp_path):
    notebook = nbformat.reads(notebooks.made("warmups"), as_version=4)
    notebook.cells = notebook.cells[:2]
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="!git clone ADDRESS course"):
        run(notebook, tmp_path)


def test_the_commands_of_a_report_are_those_of_a_cell(tmp_path, monkeypatch, capsys):
    from notebooks import cells

    (tmp_path / "autograder.py").write_text(
        "import sys\nprint('then', sys.argv[1:])\nprint('python autograder.py --p1 --watch')\n")
    monkeypatch.chdir(tmp_path)
    cells.grade("--p1 --quick")
    assert capsys.readouterr().out == "then ['--p1', '--quick']\n%grade --p1\n"


@pytest.mark.parametrize(("found", "next_"), [
    ("ok       problem 1 runs", "read on"),
    ("problem  Triton: none; pip install triton", "fix the first problem")])
def test_the_first_cell_says_what_is_to_be_fixed(found, next_, tmp_path, monkeypatch, capsys):
    from notebooks import cells

    class Shell:
        def getoutput(self, command):
            return ["ok       Python", found, "Next: python autograder.py --watch"]

        def register_magic_function(self, function, kind):
            assert (function, kind) in ((cells.step, "cell"), (cells.grade, "line"))

    monkeypatch.setattr(cells, "get_ipython", Shell)
    monkeypatch.setattr(cells, "FLASH", tmp_path)
    monkeypatch.setattr(cells.os, "environ", dict(cells.os.environ))
    monkeypatch.chdir(tmp_path)
    cells.begin()
    said = capsys.readouterr().out
    assert found in said and f"Next: {next_}" in said and "--watch" not in said


def test_only_what_is_missing_is_installed(monkeypatch):
    from notebooks import cells

    assert cells.missing() == []
    find = cells.importlib.util.find_spec
    monkeypatch.setattr(cells.importlib.util, "find_spec",
                        lambda name: None if name == "triton" else find(name))
    assert cells.missing() == ["triton>=3.6; platform_system == 'Linux'"]
