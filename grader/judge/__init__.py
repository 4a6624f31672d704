"""One stage, from its file to its points."""
