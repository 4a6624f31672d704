"""Turns a notebook that was handed in, or what nbconvert made of it, into a problem file."""

import ast
import json
import re

from grader.text import escape

COMMANDS = ("%", "!", "?")  # how a line that only a notebook runs begins
# What nbconvert makes of such a line.
CONVERTED = re.compile(rb"^([ \t]*)get_ipython\(\)\..*$", re.MULTILINE)


def exported(code: bytes) -> bytes:
    """A .py, without the lines that nbconvert made of such commands.  Raises ValueError: one of
    them was a whole cell."""
    if cell := re.search(rb"^get_ipython\(\)\.run_cell_magic\('(\w+)", code, re.MULTILINE):
        raise ValueError(f"has a cell that is not Python: it begins with %%{cell[1].decode()}")
    return CONVERTED.sub(rb"\1pass", code)


def code(notebook: bytes) -> bytes:
    """The code cells in order, without lines that only a notebook runs.  Raises ValueError: they
    make no file; the message continues the notebook's name."""
    try:
        cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]
                 if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("cannot be read as a notebook") from None
    made = []
    for number, cell in enumerate(cells, start=1):
        if cell.startswith("%%"):
            raise ValueError(f"has a cell that is not Python: code cell {number} begins with "
                             f"{escape(cell.split()[0])}")
        text = "\n".join("" if row.startswith(COMMANDS) else row for row in cell.split("\n"))
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"makes no Python file: code cell {number}: {escape(str(error))}"
                             ) from None
        made.append(text)
    if not "".join(made).strip():
        raise ValueError("has no code in it")
    return ("\n\n".join(made) + "\n").encode(errors="replace")
