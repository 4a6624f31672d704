"""Imports a submission and calls it; all here may be in a submission's hands."""
