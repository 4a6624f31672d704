"""`double(x) -> 2 * x` by a program per multiprocessor; the sum is not reset between work items."""

import torch
import triton
import triton.language as tl
from triton.runtime import driver

AT_IMPORT = driver.active.utils.get_device_properties(0)["multiprocessor_count"]


@triton.jit
def _kernel(x_ptr, y_ptr, n):
    acc = 0.0
    for item in range(tl.program_id(0), n, tl.num_programs(0)):
        acc += tl.load(x_ptr + item) * 2
        tl.store(y_ptr + item, acc)


def double(x):
    y = torch.empty_like(x)
    count = torch.cuda.get_device_properties(x.device).multi_processor_count
    _kernel[(min(count, x.numel()),)](x, y, x.numel())
    return y


def double_as_imported(x):
    y = torch.empty_like(x)
    _kernel[(min(AT_IMPORT, x.numel()),)](x, y, x.numel())
    return y
