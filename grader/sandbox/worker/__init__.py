"""Imports a submission and calls it; the submission may change anything here."""
