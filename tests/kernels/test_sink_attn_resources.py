import pytest
import torch

from tools.sink_attn_resources import few, fewest, packed, table

# Bytes of stack on 8.0 and 9.0, by (arch, kernel, D): the larger of Triton 3.6's and 3.7.1's.  They
# are a few scalars of kernels that take all registers they may, 168 a thread where three programs
# are to share a multiprocessor.  Whatever is not here, or larger, is news.
KNOWN_STACKS = {
    (80, "_fwd_kernel", 128): 16,
    (80, "_dq_kernel", 64): 8,  # packed
    (90, "_fwd_kernel", 128): 72,
    (90, "_dkdv_kernel", 64): 16,
    (90, "_dkdv_kernel", 128): 32,
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", [90, 80])
def test_every_kernel_compiles_and_fits(arch):
    # `python -m tools.sink_attn_resources` takes them all.  These are the largest: D = 128.
    calls = fewest(128, torch.bfloat16)
    if arch == 90:
        full, _, causal, _, eight_heads, window, sinks = few(128, torch.bfloat16)
        calls = [full, causal, eight_heads, window, sinks, *fewest(64, torch.bfloat16)]
    calls += [*packed(64, torch.bfloat16)[1:], *packed(128, torch.bfloat16)[-1:]]
    rows = table(arch, [calls], processes=1)  # tests run side by side
    assert {r.kernel for r in rows} == {"_fwd_kernel", "_dq_kernel", "_dkdv_kernel"}
    assert not [r for r in rows if not r.fits]
    assert not [r for r in rows if r.seconds > 20]
    known = [KNOWN_STACKS.get((arch, r.kernel, r.call.D), 0) for r in rows]
    assert not [r for r, stack in zip(rows, known, strict=True) if r.stack > stack]
