import functools
import importlib

import pytest
import torch

from tests import register_clash
from tests.kernel_resources import Call, many, map_pretending

HALF = torch.bfloat16


def problem_3_with_narrow_key_tiles():
    """Problem 3's forward with both products of one shape, 64 x 64 x 64: what it has to avoid."""
    module = importlib.import_module("problem_3")
    launch, describe = module._fwd_kernel.run, module._describe
    changed = dict(BLOCK_N=64, Q_IN_REGISTERS=True)
    module._fwd_kernel.run = lambda *args, **options: launch(*args, **options | changed)
    module._describe = lambda x, rows, BLOCK_D: describe(x, 64, BLOCK_D)
    Call(3, 64, HALF, N=2048)()


def test_the_check_finds_a_kernel_known_to_lose_q():
    calls = [problem_3_with_narrow_key_tiles]
    [[kernel]] = map_pretending(register_clash.ARCH, register_clash.check, [calls], processes=1)
    assert kernel.q_in_registers
    assert kernel.clashes


@pytest.mark.parametrize("D", [64, 128])
def test_no_kernel_that_keeps_q_in_registers_loses_it(D):
    check = functools.partial(register_clash.check, only="Q_IN_REGISTERS")
    lists = [many(stage, D, HALF) for stage in range(3, 10)]
    parts = map_pretending(register_clash.ARCH, check, lists, processes=1)
    kernels = sum(parts, [])
    assert len(kernels) > 10
    for kernel in kernels:
        assert kernel.q_in_registers, f"not kept there by {kernel.name} of {kernel.variant}"
        assert not kernel.clashes, f"{kernel.name} of {kernel.variant}: {kernel.clashes}"
