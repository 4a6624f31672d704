"""Carries out what a call was made of, on other numbers, without the submission."""
