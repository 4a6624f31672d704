"""The grading engine behind autograder.py and autograder_optional.py.

Every program imports this first, so it explains what would otherwise end in a traceback.  It must
stay readable for Python 2.7.
"""

import os
import sys

PYTHON = (3, 11)  # the oldest that works, as in pyproject.toml

if sys.version_info < PYTHON:
    sys.stderr.write(
        "error: want Python %d.%d or newer; got %s (%s). Next: start it with python3.12 or "
        "python3.11 (make: PYTHON=python3.12); if there is none, install one (Ubuntu 22.04: sudo "
        "apt install python3.11-venv; else uv, conda or python.org).\n"
        % (PYTHON + (".".join(map(str, sys.version_info[:3])), sys.executable)))
    sys.exit(2)

# Python, and PyTorch with it, would find a student's queue.py before the standard library's.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_hiding = [name for name in sorted(os.listdir(_ROOT))
           if name.partition(".")[0] in sys.stdlib_module_names | {"torch", "triton", "numpy"}
           and (name.endswith(".py") or os.path.exists(os.path.join(_ROOT, name, "__init__.py")))]
if _hiding:
    sys.stderr.write(
        "note: %s in %s: rename it. What you run there imports it in place of Python's own, "
        "PyTorch, Triton or NumPy; the grader looks past it.\n" % (", ".join(_hiding), _ROOT))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _ROOT] + [_ROOT]
