"""A mistake is told by its cause, which running the changed step, or a kernel's strides, proves."""

import pytest

from grader.report.results import StepCheck
from tests.step_checks.blanks import lights, with_change


def light(stage: int, step: str, old: str, new: str) -> StepCheck:
    """Of the solved step with this change."""
    return lights(with_change(stage, step, old, new), stage)[step]


@pytest.mark.parametrize("stage, step, old, new, said", [
    (1, "1.1", "start_m + torch.arange(q.shape[-2]", "torch.arange(start_m, start_m + BLOCK_M",
     "BLOCK_M is the size of a whole tile, and the last tile is smaller: here q.shape[-2] is 5."),
    # the strides of x, which has gaps, for a dx that has none
    (2, "2.6", """\
torch.empty(M, N, device=x.device, dtype=x.dtype)
                _dx_kernel[(grid_m * grid_n,)](
                    dy, w, dx, M, N, dy.stride(0), w.stride(0), dx.""", """\
torch.empty_like(x)
                _dx_kernel[(grid_m * grid_n,)](
                    dy, w, dx, M, N, dy.stride(0), w.stride(0), x.""",
     "is handed stride_dxm=600, and along that axis dx has the stride 300."),
    # vectors in place of matrices; widths; a row that counts twice
    (2, "2.4", "dy[:, None] * w[None, :]", "dy @ w",
     "dy and w are vectors, and @ multiplies matrices. An outer product is a column times a row"),
    (2, "2.4", "dy[:, None] * w[None, :]", "tl.dot(dy, w)", "and tl.dot multiplies matrices."),
    (3, "3.7", "tl.arange(0, BLOCK_D)", "tl.arange(0, D)", "has BLOCK_D columns, not D."),
    (3, "3.8", "tile.shape[1]", "D", "The tile has tile.shape[1] columns, not D."),
    (3, "3.8", "tile.shape[1]", "BLOCK_D", "The tile has tile.shape[1] columns, not BLOCK_D."),
    (3, "3.7", """\
tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N)""", """\
start + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (i < N)""", "start is counted twice: ptr is already the address of row start."),
], ids=lambda value: str(value)[:40])
def test_a_mistake_is_named_without_a_search(stage, step, old, new, said, monkeypatch):
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)
    found = light(stage, step, old, new)
    assert found.light == "wrong" and said in found.lines[0], found.lines


@pytest.mark.parametrize("step, old, new, said", [
    ("1.7", "lse[:, :, m, None]", "lse", "`s - lse[:, :, m]`. `lse[:, :, m]` needs a new axis"),
    ("1.8", "dv[:, :, n] += p.transpose(-1, -2)", "dv += p", "`p` must be transposed here.")])
def test_a_second_mistake_beside_a_whole_tensor_is_found(step, old, new, said):
    found = light(1, step, old, new)
    assert found.mistake == "whole-tensor" and "is the whole tensor" in found.lines[0]
    assert said in found.lines[-1], found.lines
