import pytest
import torch

from tools.kernel_resources import STAGES, few, fewest, table

# Uses of the stack in loops that multiply, by (arch, stage, kernel, D): the larger of Triton 3.6's
# and 3.7.1's.  Turing (7.5) multiplies number by number and holds a tile in registers; elsewhere no
# forward of these has any.  Whatever is not here, or larger, is news.
KNOWN_SPILLS = {
    (75, 3, "_fwd_kernel", 128): 78,
    (75, 9, "_fwd_kernel", 128): 238,
    (75, 9, "_dq_kernel", 128): 427,
    (75, 9, "_dkdv_kernel", 128): 254,
    (80, 8, "_dq_kernel", 128): 28,
    (80, 8, "_dkdv_kernel", 128): 4,
    (80, 9, "_dkdv_kernel", 128): 8,
    (90, 9, "_dkdv_kernel", 64): 2,
    (100, 9, "_dkdv_kernel", 128): 515,
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", [90, 80, 120])
def test_every_kernel_compiles_and_fits(arch):
    # `python -m tools.kernel_resources` takes them all.  These are the largest, those of D = 128;
    # what stages 4 to 8 need is little more than what 3 does, or less than 9.
    half = torch.float16 if arch == 75 else torch.bfloat16  # Turing has no bfloat16
    stages = {90: STAGES, 80: (2, 3, 4, 7, 8, 9)}.get(arch, (3, 9))
    lists = [fewest(stage, 128, half) for stage in stages]
    if arch == 90:
        lists += [few(9, 128, half)[:1], fewest(9, 64, half)]
    rows = table(arch, lists, processes=1)  # tests run side by side
    names = {(stage, "_fwd_kernel") for stage in stages}
    names |= {(2, name) for name in ("_dx_kernel", "_dw_kernel") if 2 in stages}
    names |= {(n, name) for n in stages if n > 7 for name in ("_dq_kernel", "_dkdv_kernel")}
    assert {(r.call.stage, r.kernel) for r in rows} == names
    assert not [r for r in rows if not r.fits]
    assert not [r for r in rows if r.seconds > 20]
    known = [KNOWN_SPILLS.get((arch, r.call.stage, r.kernel, r.call.D), 0) for r in rows]
    assert not [r for r, spills in zip(rows, known, strict=True) if r.spills > spills]
    assert not [r for r in rows if r.notes], "on Hopper products wait for one another"
