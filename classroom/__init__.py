"""Grades a class of submissions: `python -m classroom`.  docs/architecture.md lists the files."""

import grader  # noqa: F401  First, because it rejects a Python that is too old.
