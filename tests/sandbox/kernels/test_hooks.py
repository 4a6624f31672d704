"""The interpreter takes what a GPU's compiler does, and tells listeners what kernels do."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from grader.sandbox.kernels import hooks

ROOT = Path(__file__).parents[3]

HEAD = '''
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import torch, triton, triton.language as tl
from grader.sandbox.kernels import hooks
'''
CONSTANTS = '''
C = tl.constexpr(1.5)

@triton.jit
def kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x, first = tl.load(x_ptr + offs), tl.load(x_ptr)
    y = tl.math.exp2(C * x) + tl.math.exp2(C - first) + tl.math.exp2(C + x) + tl.abs(C / x)
    tl.store(y_ptr + offs, y)

hooks.interpret("")
x, y = torch.rand(16) + 1, torch.empty(16)
kernel[(1,)](x, y, BLOCK=16)
want = torch.exp2(1.5 * x) + torch.exp2(1.5 - x[0]) + torch.exp2(1.5 + x) + 1.5 / x
torch.testing.assert_close(y, want)
assert (C * 2).value == 3 and isinstance(C - 1, tl.constexpr)
'''
OWN_NAMES = '''
@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, tl.max(tl.load(x_ptr + tl.arange(0, 4)), axis=0) - math.inf)

hooks.interpret("")
try:
    kernel[(1,)](torch.zeros(4))
    assert False
except Exception as error:
    assert "name 'math' is not defined" in str(error.__cause__)
assert not {"np", "math", "textwrap"} & globals().keys()
import math
kernel[(1,)](x := torch.zeros(4))
assert x[0] == -math.inf
'''
LISTENERS = '''
class Listener(hooks.Listener):
    def loaded(self, access, numbers):
        told.append((self, numbers[access.lanes].tolist(), access.base == x.data_ptr()))
        numbers[~access.lanes] = 7.0

    def store(self, access, numbers):
        told.append((self, numbers.tolist(), len(access.addresses)))

@triton.jit
def kernel(x_ptr, y_ptr):
    at = tl.arange(0, 4)
    tl.store(y_ptr + at, tl.load(x_ptr + 3 * tl.program_id(0) + at, mask=at < 3), mask=at < 2)

hooks.interpret("")
told, x, y = [], torch.arange(6.0), torch.zeros(4)
hooks.listeners += [Listener(), Listener()]
kernel[(2,)](x, y)
assert told == [(listener, *event) for event in (
    ([0.0, 1.0, 2.0], True), ([0.0, 1.0, 2.0, 7.0], 2),
    ([3.0, 4.0, 5.0], True), ([3.0, 4.0, 5.0, 7.0], 2)) for listener in hooks.listeners], told
'''


EACH_IN_A_FORK = '''
import runpy
for path in sys.argv[2:]:
    if not (child := os.fork()):
        runpy.run_path(path)
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(path)
'''


@pytest.mark.interpreter
def test_the_interpreter_does_as_a_compiler_does_and_tells_all_its_listeners(tmp_path):
    paths = []  # the interpreter reads a kernel's text
    for number, program in enumerate((CONSTANTS, OWN_NAMES, LISTENERS)):
        paths.append(tmp_path / f"kernels_{number}.py")
        paths[-1].write_text(HEAD + program, "utf-8")
    done = subprocess.run([sys.executable, "-c", HEAD + EACH_IN_A_FORK, str(ROOT), *paths],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_language_by_other_names_is_the_interpreters_in_a_launch():
    from triton import language as tl

    names = {"load": tl.load, "exp2": tl.math.exp2, "tensor": tl.tensor, "len": len, "tl": tl}
    hooks.take_other_names(names)
    assert names["tensor"] is tl.tensor and names["len"] is len and names["tl"] is tl
    assert names["load"].__module__ == tl.load.__module__
    with mock.patch.object(tl, "load", lambda x: ("patched", x)):
        assert names["load"](3) == ("patched", 3)
    with mock.patch.object(tl, "exp2", lambda x: 2**x):
        assert names["exp2"](3) == 8
