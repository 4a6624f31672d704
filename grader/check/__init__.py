"""Checks any attention function: python -m grader.check FILE.py[:function]."""
