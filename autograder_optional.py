"""Grade problems 8 and 9, the optional ones: python autograder_optional.py [--p8] [--p9]."""

import sys

try:
    from grader.cli import main
    from grader.process import leave
except ImportError as error:
    if getattr(error, "name", "") != "grader" or not getattr(sys.flags, "safe_path", False):
        raise
    sys.stderr.write(
        "error: want Python to find the folder grader, beside this file; got PYTHONSAFEPATH or -P, "
        "which keep it from looking there. Next: unset PYTHONSAFEPATH\n")
    sys.exit(2)

if __name__ == "__main__":
    leave(main("autograder_optional.py"))
