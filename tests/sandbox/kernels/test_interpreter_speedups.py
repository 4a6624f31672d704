"""The interpreter that workers have computes what Triton's own does, in fewer steps."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Runs a kernel with functions in functions, of this file and of Triton, as Triton has it, and then
# as a worker has it.
COMPARE = '''
import inspect, os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import torch, triton, triton.language as tl
from grader.sandbox.kernels.interpreter_speedups import spare_repetition

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

pointer = tl.pointer_type(tl.float16)

def types():
    made = [tl.block_type(element, [32, tl.constexpr(16)]) for element in (tl.float32, pointer)]
    tile = tl.tensor(None, made[1])
    assert [kind.element_ty for kind in made] == [tl.float32, pointer] and tile.dtype == pointer
    return [(str(kind), kind.numel, list(kind.shape)) for kind in made] + [
        (tile.numel.value, [size.value for size in tile.shape])]

def refused():
    for shape in ([32, 16.0], [32, tl.constexpr(16.0)], (32, 16), 32, [], [3]):
        try:
            tl.block_type(tl.float32, shape)
            yield None
        except Exception as error:
            yield type(error), str(error)

original = tl.sum, tl.load
plain, many = run()
known, wrong = types(), list(refused())
spare_repetition()
quick, few = run()
again, as_few = run()
assert known == types() == types() and None not in wrong and wrong == list(refused())
assert torch.equal(plain, quick) and torch.equal(plain, again) and plain.abs().sum() > 0
assert many > 3 * few > 0 == as_few, (many, few, as_few)
assert original == (tl.sum, tl.load), "Triton's own functions come back after a launch"
'''

# Every operation of two operands, of all dtypes, shapes and numbers, as Triton has it and then as a
# worker has it.
OPERATIONS = '''
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import numpy as np, triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle
from grader.sandbox.kernels.interpreter_speedups import spare_repetition

np.seterr(all="ignore")
DTYPES = [tl.int1, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.bfloat16, tl.float32,
          tl.float64, tl.pointer_type(tl.float32)]
NUMBERS = [0, 1, -1, 300, 2**31, 2**40, 2**70, 1.5, -0.25, 1e-40, float("inf"), float("nan"), True]
SHAPES = [(), (4, 1), (1, 8), (4, 8), (8,), (2, 8)]
of = interpreter.interpreter_semantic
OPERATIONS = {name: getattr(of, name) for name in (
    "truediv", "floordiv", "mod", "and_", "or_", "xor_", "shl", "lshr", "less_than", "equal")}
OPERATIONS |= {name: lambda x, y, name=name: getattr(of, name)(x, y, True)
               for name in ("add", "sub", "mul")}
OPERATIONS["maximum"] = lambda x, y: of.maximum(x, y, tl.PropagateNan.NONE)
OPERATIONS["fdiv"] = lambda x, y: of.fdiv(x, y, False)
OPERATIONS["where"] = lambda x, y: of.where(tile(tl.int1, (4, 1)), x, y)
OPERATIONS["where one"] = lambda x, y: of.where(tile(tl.int1, ()), x, y)

def tile(dtype, shape):
    numbers = 1 + np.arange(max(int(np.prod(shape)), 1)) % 3
    held = numbers.astype(interpreter._get_np_dtype(dtype)).reshape(shape or (1,))
    return tl.tensor(TensorHandle(held, dtype), tl.block_type(dtype, [*shape]) if shape else dtype)

def results():
    tiles = [(dtype, shape) for dtype in DTYPES for shape in ((), (4, 8))]
    pairs = [(x, y) for x in tiles for y in tiles]
    pairs += [pair for x in tiles for y in NUMBERS for pair in ((x, y), (y, x))]
    pairs += [((dtype, x), (tl.int32, y)) for dtype in (tl.int32, tl.float16, DTYPES[-1])
              for x in SHAPES for y in SHAPES]
    for name, operation in OPERATIONS.items():
        for pair in pairs:
            operands = [tile(*one) if type(one) is tuple else one for one in pair]
            try:
                made = operation(*operands)
            except Exception as error:
                yield name, pair, type(error), str(error)
                continue
            shape = tuple(made.type.shape.values) if made.type.is_block() else (1,)
            assert made.handle.data.shape == shape, (name, pair)
            yield (name, pair, str(made.type), str(made.handle.dtype),
                   made.handle.data.dtype, made.handle.data.tobytes())

def kernel():
    pass

interpreter._patch_lang(kernel)
plain = list(results())
spare_repetition()
for before, after in zip(plain, results(), strict=True):
    assert before == after, (before, after)
kinds = [len(result) for result in plain]
print(len(kinds), kinds.count(6))
'''


# tl.reduce and tl.associative_scan with functions of the file's own, as Triton has them and then as
# a worker has them, in a tenth of the calls.
COMBINED = '''
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import torch, triton, triton.language as tl
from grader.sandbox.kernels.interpreter_speedups import spare_repetition

calls = []

@triton.jit
def larger(a, b):
    calls.append(1)
    return tl.maximum(a, b)

@triton.jit
def chosen(a, b):
    return a if a > b else b

@triton.jit
def merged(m, l, n, k):
    top = tl.maximum(m, n)
    return top, l * tl.exp2(m - top) + k * tl.exp2(n - top)

@triton.jit
def added(a, b):
    return a + b * 1.0

@triton.jit
def kernel(x_ptr, y_ptr, AXIS: tl.constexpr):
    i, j = tl.arange(0, 16), tl.arange(0, 16)
    x = tl.load(x_ptr + 16 * i[:, None] + j[None, :])
    m, l = tl.reduce((x, x * 0 + 1), AXIS, merged)
    tl.store(y_ptr + i, tl.reduce(x, AXIS, larger))
    tl.store(y_ptr + 16 + i, tl.reduce(x, AXIS, chosen))
    tl.store(y_ptr + 32 + i, m + l)
    tl.store(y_ptr + 48 + 16 * i[:, None] + j[None, :], tl.associative_scan(x, AXIS, added))
    kept = tl.reduce(x, AXIS, larger, keep_dims=True)
    tl.store(y_ptr + 304 + i, tl.reshape(kept, (16,)))
    tl.store(y_ptr + 320, tl.reduce(m, 0, larger))

def run(axis):
    calls.clear()
    torch.manual_seed(0)
    x, y = torch.randn(16, 16), torch.zeros(321)
    kernel[(1,)](x, y, axis)
    return y

plain = [run(axis) for axis in (0, 1)]
many = len(calls)
spare_repetition()
for axis, wanted in zip((0, 1, -2, -1), plain * 2):
    got = run(axis)
    assert torch.equal(got, wanted) and wanted.abs().sum() > 0, (axis, (got != wanted).nonzero())
    assert torch.equal(got[16:32], got[:16])
assert many > 10 * len(calls) > 0, (many, len(calls))
'''


def _printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, str(ROOT)], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.interpreter
def test_a_faster_launch_gives_the_same_bits_and_leaves_triton_as_it_was():
    _printed(COMPARE)


@pytest.mark.interpreter
def test_every_binary_operation_gives_the_same_type_bits_or_error():
    asked, answered = map(int, _printed(OPERATIONS).split())
    assert asked / 3 < answered < asked


@pytest.mark.interpreter
def test_functions_that_combine_numbers_give_the_same_bits_slice_by_slice():
    _printed(COMBINED)
