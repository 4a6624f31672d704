"""The interpreter that workers have computes with bfloat16 as PyTorch, and a GPU, do."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from grader.sandbox.kernels.bfloat16 import rounded, widened

ROOT = Path(__file__).parents[3]
COMPARE = '''
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import torch, triton, triton.language as tl
from grader.sandbox.kernels import bfloat16, interpreter_speedups

child = os.fork()
if not child:
    interpreter_speedups.spare_repetition()
bfloat16.compute()

@triton.jit
def kernel(x_ptr, y_ptr, z_ptr, T: tl.constexpr):
    at = tl.arange(0, T)[:, None] * T + tl.arange(0, T)[None, :]
    x, y = tl.load(x_ptr + at).to(tl.bfloat16), tl.load(y_ptr + at).to(tl.bfloat16)
    tl.store(z_ptr + at, tl.dot(x, y))
    tl.store(z_ptr + T * T + at, (x * y + 1.0 - x).to(tl.float32))
    tl.store(z_ptr + 2 * T * T + at, tl.where(x > y, tl.exp(x.to(tl.float32)), (x + y).to(
        tl.float16).to(tl.float32)) + x.to(tl.int32))
    tl.store(z_ptr + 3 * T * T + at, (tl.sum(x, 1)[:, None] + 0 * y).to(tl.float32))
    tl.store(z_ptr + 4 * T * T + at, (tl.max(x, 1)[:, None] + 0 * y).to(tl.float32))

torch.manual_seed(0)
x, y = torch.randn(2, 16, 16)
z = torch.zeros(5, 16, 16)
kernel[(1,)](x, y, z, T=16)
x, y = x.bfloat16(), y.bfloat16()
want = [x.float() @ y.float(), x * y + 1.0 - x,
        torch.where(x > y, torch.exp(x.float()), (x + y).half().float()) + x.int(),
        x.float().sum(1, True).expand(16, 16), x.amax(1, True).expand(16, 16)]
for got, right, digits in zip(z, want, (1e-5, 0, 1e-6, 2**-8, 0)):
    assert torch.allclose(got, right.float(), rtol=digits, atol=digits), (got, right)
sys.exit(child and os.waitpid(child, 0)[1] and "wrong with fewer steps")
'''


def test_a_kernel_computes_with_the_numbers_and_not_with_their_bits(tmp_path):
    (tmp_path / "compare.py").write_text(COMPARE)
    done = subprocess.run([sys.executable, "compare.py", str(ROOT)], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_numbers_are_rounded_as_pytorch_rounds_them():
    torch.manual_seed(0)
    numbers = torch.cat([torch.randn(1000) * torch.exp(30 * torch.randn(1000)), torch.tensor(
        [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8])])
    bits = rounded(numbers.numpy())
    want = numbers.bfloat16()
    assert bits.dtype == np.uint16
    assert torch.equal(torch.from_numpy(widened(bits)).nan_to_num(nan=7), want.float().nan_to_num(
        nan=7))
