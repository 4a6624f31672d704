"""Notebooks of the warm-ups and stage 1, for Colab: python -m tools.notebooks makes NAME.ipynb from
NAME.md and first_cell.py."""
