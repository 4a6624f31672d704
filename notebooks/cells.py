"""Defines what the notebooks' cells call: begin(), %%step, %grade, code() and picture().

Your files are in flash/, in the clone: an assignment as grader.starter writes it.
"""

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path

from IPython import get_ipython
from IPython.display import HTML, Markdown

from grader import starter
from grader.assignment.submission import lines, steps
from grader.host.files import replace

COURSE = Path(__file__).resolve().parent.parent
FLASH = COURSE / "flash"


def begin() -> None:
    """Install what is missing, make flash/ unless it is there, go there, register the magics."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["TERM"] = "dumb"  # a cell would keep all states of a line that is overwritten
    if needs := missing():
        print("pip install", *needs)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *needs], check=True)
    if FLASH.exists():
        print(f"{FLASH} is there: what you wrote stays as it is.")
    elif starter.main([str(FLASH)]):
        raise RuntimeError(f"{FLASH} was not made")
    os.chdir(FLASH)
    get_ipython().register_magic_function(step, "cell")
    get_ipython().register_magic_function(grade, "line")
    said = get_ipython().getoutput("python autograder.py --doctor")
    print(*itertools.takewhile(lambda row: not row.startswith("Next: "), said), sep="\n")
    if any(row.startswith("problem ") for row in said):
        print("Next: fix the first problem above in a new cell (!pip install ...), choose Restart "
              "session in the menu Runtime, and run this cell again; or go on with what is ok.")
    else:
        print("Next: read on, and run the cells below one after the other.")


def missing() -> list[str]:
    """The requirements that are not installed, as pip takes them."""
    project = tomllib.loads((COURSE / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needs = project["dependencies"] + extras["course"] + extras["plots"]
    return [need for need in needs if not importlib.util.find_spec(re.match(r"\w+", need)[0])]


def step(line: str, cell: str) -> None:
    """%%step 1.3: put the cell's code into its place in the file, and run the grader on it."""
    step_id = line.strip()
    if not (code := _code_of(cell)):
        print(f"There is no code in this cell yet. For a hint: %grade --hint {step_id}")
        return
    path = file_of(step_id)
    try:
        replace(path, put(path.read_text("utf-8"), step_id, code).encode())
    except SyntaxError as error:
        print(f"{error.msg}: {(error.text or '').strip()}\nNothing was written into {path.name}.")
        return
    os.chdir(FLASH)
    grade("--warmup" if step_id.startswith("W") else f"--step {step_id}")


def grade(options: str) -> None:
    """%grade --p1: run the grader, and show its commands as a cell takes them.

    Not --watch, which waits for a save, so that the cell would never end.
    """
    with subprocess.Popen([sys.executable, "autograder.py", *options.split()], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as grader:
        for row in grader.stdout:
            print(row.replace("python autograder.py", "%grade").replace(" --watch", ""), end="")


def file_of(step_id: str) -> Path:
    """The student's file that holds a step."""
    number = step_id.partition(".")[0]
    return FLASH / (starter.WARM_UPS if number == "W" else f"problem_{number}.py")


def put(source: str, step_id: str, code: str) -> str:
    """The source with this code, of any indent, as the text of the step.

    Raises:
        ValueError: the source has no such step.
        SyntaxError: the result is not Python.
    """
    found = next((known for known in steps(source) if known.id == step_id), None)
    if found is None:
        raise ValueError(f"want a step of the file; got {step_id}")
    rows = lines(source)
    marker = rows[found.first_line - 1]
    indent = marker[:len(marker) - len(marker.lstrip())]
    rows[found.first_line:found.last_line - 1] = [
        textwrap.indent(textwrap.dedent(code).rstrip() + "\n", indent)]
    compile("".join(rows), "the file", "exec", dont_inherit=True)
    return "".join(rows)


def code(name: str) -> Markdown:
    """Show a function of problem_1.py or warmups.py as it is in your file."""
    for path in (file_of("1.1"), file_of("W.1")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
                shown = "".join(lines(text)[first - 1:node.end_lineno])
                return Markdown(f"{path.name}, from line {first}:\n\n```python\n{shown}```")
    raise ValueError(f"want a function of problem_1.py or warmups.py; got {name}")


def picture(name: str) -> HTML:
    """Show a figure of the guide on white."""
    from guide.figures import draw_all

    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_all(Path(folder), [name])[0].read_text("utf-8")
    return HTML(f'<div style="background: white">{drawn[drawn.index("<svg"):]}</div>')


def _code_of(cell: str) -> str:
    """The cell from its first line of code on; "" if there is none."""
    return "".join(itertools.dropwhile(lambda row: not row.strip() or row.lstrip()[0] == "#",
                                       lines(cell)))
