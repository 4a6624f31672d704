"""The grading engine behind autograder.py and autograder_optional.py."""
