"""The grading engine behind autograder.py and autograder_optional.py.

Every program imports this before anything else, so what would end in a traceback of Python's own is
said here.  Python 2.7 can read it.
"""

import os
import sys

PYTHON = (3, 11)  # the least, as pyproject.toml has

if sys.version_info < PYTHON:
    sys.stderr.write(
        "error: want Python %d.%d or newer; got %s (%s). Next: start it with python3.12 or "
        "python3.11 (make: PYTHON=python3.12); if there is none, install one (Ubuntu 22.04: sudo "
        "apt install python3.11-venv; else uv, conda or python.org).\n"
        % (PYTHON + (".".join(map(str, sys.version_info[:3])), sys.executable)))
    sys.exit(2)

# A student's queue.py beside the program is found before Python's own, by PyTorch too.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_hiding = [name for name in sorted(os.listdir(_ROOT))
           if name.partition(".")[0] in sys.stdlib_module_names | {"torch", "triton", "numpy"}
           and (name.endswith(".py") or os.path.exists(os.path.join(_ROOT, name, "__init__.py")))]
if _hiding:
    sys.stderr.write(
        "note: %s in %s: rename it. What you run there imports it in place of Python's own, "
        "PyTorch, Triton or NumPy; the grader looks past it.\n" % (", ".join(_hiding), _ROOT))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _ROOT] + [_ROOT]
