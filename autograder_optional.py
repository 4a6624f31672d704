"""Grade problems 8 and 9, the optional ones: python autograder_optional.py [--p8] [--p9]."""

from grader.cli import main
from grader.process import leave

if __name__ == "__main__":
    leave(main("autograder_optional.py"))
