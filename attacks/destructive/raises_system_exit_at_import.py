"""Raises SystemExit at import."""
# stage: 2
# outcome: crashed
# says: sys.exit
import sys

sys.exit(0)
