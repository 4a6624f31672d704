"""python -m tools.notebooks: writes notebooks/NAME.ipynb for every notebooks/NAME.md.

In the text, a cell `first_cell.py` becomes that file, with the repository's address from
pyproject.toml; a cell `%%step 1.3` gets the problem file's comment on the step.
"""

import re
import tomllib
from pathlib import Path

import jupytext
import nbformat

from grader.assignment.submission import lines, steps
from grader.starter import ROOT, WARM_UPS

FOLDER = ROOT / "notebooks"
NAMES = ("warmups", "stage_1")


def made(name: str) -> str:
    """The text of NAME.ipynb."""
    notebook = jupytext.reads((FOLDER / f"{name}.md").read_text("utf-8"), fmt="md:myst")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"  # otherwise it differs each time
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.source = filled(cell.source)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python",
                                        "name": "python3"},
                         "language_info": {"name": "python"}}
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def filled(source: str) -> str:
    """The notebook's cell for a cell of the text."""
    if source == "first_cell.py":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        address = project.get("urls", {}).get("Repository", "")
        text = (FOLDER / source).read_text("utf-8").rstrip()
        return text.replace('REPOSITORY = ""', f'REPOSITORY = "{address}"')
    if match := re.fullmatch(r"%%step (\S+)", source):
        return f"{source}\n{comment(match[1])}\n"
    return source


def comment(step_id: str) -> str:
    """The problem file's comment above this step, without its indent."""
    number = step_id.partition(".")[0]
    text = (ROOT / (WARM_UPS if number == "W" else f"problem_{number}.py")).read_text("utf-8")
    found = next(known for known in steps(text) if known.id == step_id)
    above = [row.strip() for row in lines(text)[:found.first_line - 1]]
    first = max(i for i, row in enumerate(above) if row.startswith(f"# Step {step_id} -- "))
    return "\n".join(above[first:])


def write(folder: Path = FOLDER) -> None:
    for name in NAMES:
        (folder / f"{name}.ipynb").write_text(made(name), "utf-8")


if __name__ == "__main__":
    write()
