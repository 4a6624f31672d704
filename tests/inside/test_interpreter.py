"""The interpreter that workers have computes what Triton's own does, in fewer steps."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Runs a kernel with functions in functions, of this file and of Triton, as Triton has it, and then
# as a worker has it.
COMPARE = '''
import inspect, os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import torch, triton, triton.language as tl
from grader.inside.interpreter import spare_repetition

@triton.jit
def shifted(x):
    return x - tl.max(x, 1)[:, None]

@triton.jit
def kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    for start in tl.range(0, tl.cdiv(N, BLOCK)):
        at = start * BLOCK + tl.arange(0, BLOCK)
        at = at[:, None] * N + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + at, mask=at < N * N, other=0.0)
        p = tl.exp2(shifted(x.to(tl.float32)))
        tl.store(y_ptr + at, (p / tl.sum(p, 1)[:, None]).to(tl.float16), mask=at < N * N)

looked = []
members = inspect.getmembers
inspect.getmembers = lambda *args: looked.append(args) or members(*args)

def run():
    looked.clear()
    torch.manual_seed(0)
    x, y = torch.randn(32, 32).to(torch.float16), torch.zeros(32, 32, dtype=torch.float16)
    kernel[(2,)](x, y, 32, 16)
    return y, len(looked)

original = tl.sum, tl.load
plain, many = run()
spare_repetition()
quick, few = run()
again, as_few = run()
assert torch.equal(plain, quick) and torch.equal(plain, again) and plain.abs().sum() > 0
assert many > 3 * few and few == as_few, (many, few, as_few)
assert original == (tl.sum, tl.load), "Triton's own functions come back after a launch"
'''


@pytest.mark.interpreter
def test_a_launch_gives_the_same_bits_with_less_repetition_and_leaves_triton_as_it_was():
    done = subprocess.run([sys.executable, "-c", COMPARE, str(ROOT)], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
