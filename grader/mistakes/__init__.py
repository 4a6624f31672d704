"""The table of mistakes: importing this fills hypotheses.TABLE."""

from grader.hypotheses import TABLE
from grader.mistakes import (  # noqa: F401
    addresses,
    backward,
    masks,
    row_sum,
    scores,
    softmax,
    windows,
)

__all__ = ["TABLE"]
