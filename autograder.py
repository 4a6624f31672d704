"""Grade problems 1 to 7: python autograder.py [--p1 ... --p7]; see --help."""

from grader.cli import main
from grader.process import leave

if __name__ == "__main__":
    leave(main("autograder.py"))
