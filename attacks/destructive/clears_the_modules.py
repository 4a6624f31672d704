"""Empties sys.modules at import."""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
import sys

sys.modules.clear()
