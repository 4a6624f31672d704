"""What is compiled and not run: a previous value that the compiler loses is found exactly there."""

import ast
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import problem_7
from grader.course.case_table import listed
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host.processes import Worker
from grader.host.session import Session
from grader.sandbox.kernels import compile_only

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


# Each kernel adds up `previous` round a loop that changes `a`; only some lose it.
def _copied_first(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a
        a = a + 2
    tl.store(p, total)


def _copied_last(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        a = a + 2
        previous = a
    tl.store(p, total)


def _made_a_new_value(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a + 0
        a = a + 2
    tl.store(p, total)


def _copied_in_a_tuple(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        total += previous
        previous, a = a, a + 2
    tl.store(p, total)


def _started_apart(p, n):
    a = tl.load(p)
    previous = a * 0
    total = a + 1
    for _ in range(n):
        total += previous
        previous = a
        a = a + 2
    tl.store(p, total)


def _by_way_of_a_third_name(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for _ in range(n):
        old = a
        a = a + 2
        total += previous
        previous = old
    tl.store(p, total)


def _copied_in_a_branch(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    for i in range(n):
        total += previous
        if i > 2:
            previous = a
        a = a + 2
    tl.store(p, total)


def _copied_while(p, n):
    a = tl.load(p)
    previous = a
    total = a + 1
    while n > 0:
        total += previous
        previous = a
        a = a + 2
        n -= 1
    tl.store(p, total)


def _running_maximum(p, n):
    m_i = tl.load(p)
    total = m_i
    alpha = m_i + 1
    for i in range(n):
        m_new = tl.maximum(m_i, tl.load(p + i))
        alpha = m_i - m_new
        total += alpha
        m_i = m_new
    tl.store(p, total)


def _lines_lost(function) -> list[int]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return [line for line, _ in compile_only.lost_values(tree.body[0])]


def _values_carried(function) -> int:
    """How many values the loop carries in the module as built, before any clean-up."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    source = ASTSource(JITFunction(function), {"p": "*fp32", "n": "i32"}, {})
    module = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["source"]
    (loop,) = [row for row in module.splitlines() if "scf.for" in row or "scf.while" in row]
    return loop.partition("(")[2].partition(")")[0].count("=")


LOOPS = {
    _copied_first: (3, [7]), _copied_in_a_tuple: (3, [7]), _by_way_of_a_third_name: (3, [9]),
    _copied_last: (3, []), _made_a_new_value: (3, []), _started_apart: (3, []),
    _running_maximum: (3, []), _copied_in_a_branch: (3, [8]), _copied_while: (4, [7]),
}


@pytest.fixture(scope="module")
def carried(tmp_path_factory) -> dict[str, int]:
    """What the compiler carries round each loop; asked in a process that never interpreted."""
    script = ("import json; from tests.sandbox.kernels import test_compile_only as t;"
              "print(json.dumps({f.__name__: t._values_carried(f) for f in t.LOOPS}))")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                         env=environment, cwd=Path(__file__).parents[3], timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("function", LOOPS, ids=lambda function: function.__name__)
def test_a_lost_previous_value_is_found_exactly_where_the_compiler_loses_it(function, carried):
    names, lost = LOOPS[function]
    assert _lines_lost(function) == lost
    assert carried[function.__name__] == names - len(lost)


@pytest.mark.parametrize("body", [
    "for i in range(n):\n    b = a\n    a = a + 1\n    total += b",  # b is read once it is set
    "for i in range(n):\n    total += b\n    b = a",  # a never changes
    "for i in range(n):\n    total += b\n    if i > 2:\n        b = a + 0\n    a = a + 1",
    "while total < n:\n    m = f(a)\n    total += m\n    a = m",
    "for i in tl.static_range(4):\n    total += b\n    b = a\n    a = a + 1",
], ids=["own round", "constant", "branch", "while", "unrolled"])
def test_ordinary_copies_raise_no_alarm(body):
    source = "def kernel(a, total, n):\n    b = a\n" + textwrap.indent(body, "    ")
    assert compile_only.lost_values(ast.parse(source).body[0]) == []


def test_a_loss_in_an_inner_loop_is_told_once():
    source = textwrap.dedent("""\
        def kernel(a, total, n):
            for i in range(n):
                b = a
                for j in range(n):
                    total += b
                    b = a
                    a = a + 1
        """)
    assert [line for line, _ in compile_only.lost_values(ast.parse(source).body[0])] == [6]


def _compiled(to_ptx: bool) -> list[tuple]:
    stage, case = STAGES[7], listed(7, "cuda", True)[0]
    source = Path(problem_7.__file__).read_bytes()
    with Session(Worker(source, stage.filename, device="cpu", interpret=False, compile_for=90),
                 120) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        return [(kernel.name, kernel.line, kernel.shared_bytes, kernel.warnings)
                for kernel in session.compile(build(case, 1).call, to_ptx)]


def test_as_far_as_ptx_a_kernel_has_the_same_name_line_and_shared_memory():
    assert _compiled(to_ptx=True) == _compiled(to_ptx=False) != []
