"""Raises while it is imported."""

LIMIT = 1
raise RuntimeError("no good")
