"""Repeats a recorded call on other numbers, without the submission."""
