"""Grade problems 1 to 7: python autograder.py [--p1 ... --p7]; see --help."""

from grader.cli import main
from grader.process import leave

if __name__ == "__main__":
    leave(main((1, 2, 3, 4, 5, 6, 7), "autograder.py"))
