"""Grade problems 8 and 9, the optional ones: python autograder_optional.py [--p8] [--p9]."""

import sys

from grader.cli import main

if __name__ == "__main__":
    sys.exit(main((8, 9), "autograder_optional.py"))
