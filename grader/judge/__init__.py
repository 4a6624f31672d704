"""Grades one stage, from its file to its points."""
