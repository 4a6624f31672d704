"""The graders' programs, run in this process: the fork server that earlier tests started is
warm."""

import contextlib
import io
import runpy
import sys
from types import SimpleNamespace
from unittest import mock

from grader import process
from grader.assignment.record import ROOT
from grader.host import worker_pool


def grader(*arguments, program="autograder.py") -> SimpleNamespace:
    """returncode, stdout and stderr, as of a process of its own."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.callback(worker_pool.end_all)  # as at the end of a process
        stack.enter_context(mock.patch.object(sys, "argv", [program, *map(str, arguments)]))
        # Its signals, descriptors and memory are pytest's, and so is its end.
        for name in ("prepare", "import_torch"):
            stack.enter_context(mock.patch.object(process, name))
        stack.enter_context(mock.patch.object(process, "leave", sys.exit))
        stack.enter_context(contextlib.chdir(ROOT))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(errors))
        try:
            runpy.run_path(str(ROOT / program), run_name="__main__")
        except SystemExit as end:
            return SimpleNamespace(returncode=end.code, stdout=out.getvalue(),
                                   stderr=errors.getvalue())
    raise AssertionError("the program ends with an exit code")
