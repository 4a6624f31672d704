import pytest
import torch

from tests.kernel_resources import SHARED_BYTES, STAGES, few, fewest, table

# Bytes of stack on 8.0 and 9.0, by (arch, stage, kernel, D): the larger of Triton 3.6's and
# 3.7.1's.  They are a few scalars of kernels that take all registers they may, 168 a thread where
# three programs are to share a multiprocessor.  Whatever is not here, or larger, is news.
KNOWN_STACKS = {
    (80, 4, "_fwd_kernel", 128): 8,
    (80, 5, "_fwd_kernel", 128): 8,
    (80, 8, "_fwd_kernel", 128): 8,
    (90, 4, "_fwd_kernel", 128): 8,
    (90, 5, "_fwd_kernel", 128): 8,
    (90, 6, "_fwd_kernel", 128): 64,
    (90, 7, "_fwd_kernel", 128): 80,
    (90, 8, "_fwd_kernel", 128): 8,
    (90, 8, "_dkdv_kernel", 64): 80,
    (90, 8, "_dkdv_kernel", 128): 24,
    (90, 9, "_fwd_kernel", 128): 96,
    (90, 9, "_dkdv_kernel", 64): 56,
    (90, 9, "_dkdv_kernel", 128): 40,
}


@pytest.mark.parametrize("arch", sorted(SHARED_BYTES, key=lambda arch: arch not in (80, 90)))
def test_every_kernel_compiles_and_fits(arch):
    # `python -m tests.kernel_resources` takes them all.  These are the largest, those of D = 128;
    # what stages 4 to 6 need is little less than what 7 and 8 do.
    stages = STAGES if arch in (80, 90) else (2, 3, 7, 8, 9)
    lists = [(few if arch == 90 else fewest)(stage, 128, torch.bfloat16) for stage in stages]
    if arch == 90:
        lists += [fewest(stage, 64, torch.bfloat16) for stage in stages[1:]]
    rows = table(arch, lists, processes=1)
    names = {(stage, "_fwd_kernel") for stage in stages}
    names |= {(2, name) for name in ("_dx_kernel", "_dw_kernel")}
    names |= {(stage, name) for stage in (8, 9) for name in ("_dq_kernel", "_dkdv_kernel")}
    assert {(r.stage, r.kernel) for r in rows} == names
    assert not [r for r in rows if not r.fits]
    assert not [r for r in rows if r.seconds > 20]
    if arch in (80, 90):
        known = [KNOWN_STACKS.get((arch, r.stage, r.kernel, r.D), 0) for r in rows]
        assert not [r for r, stack in zip(rows, known, strict=True) if r.stack > stack]
