"""The table of PyTorch's operations is what calling them shows, in the PyTorch of here."""

import pytest

from grader.course.operations import TABLE
from tools import operators

ROWS = [row.split("\t") for row in TABLE.read_text("utf-8").splitlines()[1:]]
NAMED = {"cat", "index_put_", "slice_backward", "mm", "_softmax", "select_backward", "scatter_add",
         "embedding_dense_backward", "im2col", "upsample_nearest2d_backward", "sum", "sort",
         "_unsafe_view", "_trilinear"}


def test_every_operation_below_autograd_has_a_row():
    packets = {name.removeprefix("aten::").partition(".")[0] for name in operators.schemas()}
    assert len(ROWS) > 1000 and {name.partition(".")[0] for name, _ in ROWS} >= packets


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["moves", "adds", "constant", "computes"])
def test_a_probe_finds_the_kind_again(kind):
    """Of every twentieth row of a kind, and of those that honest files meet."""
    mine = [name for name, its in ROWS if its == kind]
    asked = {name.partition(".")[0] for name in mine[::20]} | NAMED & set(mine)
    found = operators.rows(asked)
    assert found == [(name, its) for name, its in ROWS if name.partition(".")[0] in asked]
