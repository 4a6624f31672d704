"""The grader's own process; how it is interrupted and ends is in test_interrupted_grader.py."""

import os
import subprocess
import sys

import pytest

from grader.assignment.record import ROOT

COUNTED = """
import os
from grader import process
process.prepare()
import numpy
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system lists no threads")
@pytest.mark.parametrize("chosen, threads", [(None, "1"), ("2", "2")])
def test_numpy_starts_no_threads_unless_the_user_wants_them(chosen, threads):
    if chosen and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment |= {"OPENBLAS_NUM_THREADS": chosen} if chosen else {}
    said = subprocess.run([sys.executable, "-c", COUNTED], cwd=ROOT, env=environment, check=True,
                          capture_output=True, text=True).stdout
    assert said.strip() == threads


def test_a_terminal_that_cannot_print_a_sign_ends_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "autograder.py", "--p3", "--submission", str(tmp_path)], cwd=ROOT,
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 1 and b"? P3 missing" in done.stdout, done.stderr
