"""Grade problems 1 to 7: python autograder.py [--p1 ... --p7]; see --help."""

import sys

from grader.cli import main

if __name__ == "__main__":
    sys.exit(main((1, 2, 3, 4, 5, 6, 7), "autograder.py"))
