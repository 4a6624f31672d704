"""Forks, confines and ends workers; no line of a submission runs here."""
