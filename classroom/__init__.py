"""Grades a class of submissions: `python -m classroom`.  docs/architecture.md lists the files.

No submission is imported here.  Each is graded by the autograder in a process of its own, and only
its JSON comes back.
"""

import grader  # noqa: F401  First, because it rejects a Python that is too old.
