"""The worker, as far as it can be looked at without starting one; test_session.py starts them."""

import subprocess
import sys

from grader.sandbox.worker import worker


def test_importing_the_worker_starts_nothing_and_needs_no_triton():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import grader.sandbox.worker.worker; "
        "print('triton' in sys.modules, 'reference' in sys.modules)"
    )
    root = str(worker.Path(worker.__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True,
                          check=True)
    assert done.stdout == "False False\n"
