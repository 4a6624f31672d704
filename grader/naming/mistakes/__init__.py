"""The table of mistakes: importing this fills hypotheses.TABLE."""

from grader.naming.mistakes import (  # noqa: F401
    addresses,
    backward,
    masks,
    row_sum,
    scores,
    softmax,
    windows,
)
from grader.naming.table import TABLE

__all__ = ["TABLE"]
