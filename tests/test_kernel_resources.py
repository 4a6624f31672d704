import pytest
import torch

from tests.kernel_resources import SHARED_BYTES, STAGES, few, table

# {(stage, kernel, D): bytes} on 8.0 and 9.0.
KNOWN_STACKS = {}


@pytest.mark.parametrize("arch", sorted(SHARED_BYTES, key=lambda arch: arch != 90))
def test_every_kernel_compiles_and_fits(arch):
    dims = (64, 128) if arch == 90 else (128,)
    lists = [few(stage, D, torch.bfloat16) for stage in STAGES for D in (16, *dims)]
    rows = table(arch, lists, processes=1)
    assert {(r.stage, r.kernel) for r in rows} >= {(stage, "_fwd_kernel") for stage in STAGES}
    assert not [r for r in rows if not r.fits]
    assert not [r for r in rows if r.seconds > 20]
    if arch in (80, 90):
        stacks = [r for r in rows if r.stack > KNOWN_STACKS.get((r.stage, r.kernel, r.D), 0)]
        assert not stacks
