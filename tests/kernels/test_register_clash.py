import functools

import pytest
import torch

from tools import register_clash
from tools.compiled import map_pretending
from tools.sink_attn_resources import Call, many

HALF = torch.bfloat16


def full_attention_with_narrow_key_tiles():
    """The forward with both products of one shape, 64 x 64 x 64: what it has to avoid."""
    from sink_attn import policy

    options = policy.forward_options
    changed = dict(BLOCK_N=64, Q_IN_REGISTERS=True)
    policy.forward_options = lambda *args: options(*args) | changed
    Call(64, HALF, N=2048, causal=False)()


@pytest.mark.slow
def test_the_check_finds_a_kernel_known_to_lose_q():
    calls = [full_attention_with_narrow_key_tiles]
    check = functools.partial(register_clash.check, only="TWO_TILES")
    [[kernel]] = map_pretending(register_clash.ARCH, check, [calls], processes=1)
    assert kernel.q_in_registers
    assert kernel.clashes


@pytest.mark.slow
@pytest.mark.parametrize("D", [64, 128])
def test_no_kernel_that_keeps_q_in_registers_loses_it(D):
    check = functools.partial(register_clash.check, only="Q_IN_REGISTERS")
    [kernels] = map_pretending(register_clash.ARCH, check, [many(D, HALF)], processes=1)
    assert len(kernels) > 10
    for kernel in kernels:
        assert kernel.q_in_registers, f"not kept there by {kernel.name} of {kernel.variant}"
        assert not kernel.clashes, f"{kernel.name} of {kernel.variant}: {kernel.clashes}"
