"""The warm-ups and stage 1 as notebooks, for Colab: python -m tools.notebooks makes NAME.ipynb of
NAME.md and first_cell.py."""
