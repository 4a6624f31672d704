"""Forks workers and ends them; no line of a submission runs here."""
