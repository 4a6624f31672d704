"""Grades one submission where students hand in; `classroom kit` packs it."""
