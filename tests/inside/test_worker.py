"""The parts of the worker that can be looked at without starting one."""

import ast
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grader.inside import compile_only, crashes, worker
from grader.text import KEPT, Tail, escape

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


def test_importing_the_worker_starts_nothing_and_needs_no_triton():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import grader.inside.worker; "
        "print('triton' in sys.modules, 'reference' in sys.modules)"
    )
    root = str(worker.Path(worker.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True,
                          check=True)
    assert done.stdout == "False False\n"


# --------------------------------------------------------------------- errors
def _raised(source: str, path) -> dict:
    path.write_text(textwrap.dedent(source))
    try:
        exec(compile(path.read_text(), str(path), "exec"), {})
    except BaseException as error:
        return crashes.explain(error, str(path), "when it was called")
    raise AssertionError("nothing was raised")


def test_the_line_is_the_deepest_one_of_the_students_file(tmp_path):
    found = _raised("""\
        import json
        def helper():
            json.loads("{")
        helper()
        """, tmp_path / "problem_3.py")
    assert found["line"] == 3 and found["outcome"] == "crashed"
    assert "problem_3.py:3 in helper" in found["detail"] and str(tmp_path) not in found["detail"]


def test_the_lines_of_wrapped_interpreter_errors_are_unwrapped(tmp_path):
    found = _raised("""\
        class InterpreterError(Exception):
            pass
        def kernel():
            raise IndexError("the real one")
        try:
            kernel()
        except IndexError as error:
            raise InterpreterError(repr(error)) from error
        """, tmp_path / "problem_3.py")
    assert found["line"] == 4
    assert found["sentence"] == "IndexError when it was called: the real one"


def test_a_circle_of_causes_ends(tmp_path):
    found = _raised("""\
        a, b = ValueError("a"), ValueError("b")
        a.__cause__, b.__cause__ = b, a
        raise a
        """, tmp_path / "problem_3.py")
    assert found["sentence"] == "ValueError when it was called: a"


def test_the_old_interpreter_under_a_new_numpy_is_skipped_not_blamed(tmp_path, monkeypatch):
    source = 'raise TypeError("only 0-dimensional arrays can be converted to Python scalars")'
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr("numpy.__version__", "2.4.1")
    found = _raised(source, tmp_path / "problem_3.py")
    assert found["outcome"] == "skipped" and "numpy<2.4" in found["sentence"]
    for module, version in (("numpy", "2.3.5"), ("triton", "3.7.1")):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.__version__", version)
            assert _raised(source, tmp_path / "problem_3.py")["outcome"] == "crashed"


def test_a_missing_triton_is_skipped_but_any_other_missing_module_is_a_crash(
        tmp_path, monkeypatch):
    source = "raise ModuleNotFoundError('No module named x', name='{}')"
    assert _raised(source.format("triton"), tmp_path / "a.py")["outcome"] == "crashed"  # it is here
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert _raised(source.format("triton"), tmp_path / "a.py")["outcome"] == "skipped"
    assert _raised(source.format("flash_attn"), tmp_path / "a.py")["outcome"] == "crashed"


@pytest.mark.parametrize(("message", "fatal"), [
    ("CUDA error: an illegal memory access was encountered", True),
    ("CUDA error: misaligned address", True),
    ("CUDA error: invalid argument", False),
])
def test_a_dead_cuda_context_ends_the_worker(tmp_path, message, fatal):
    found = _raised(f"raise RuntimeError({message!r})", tmp_path / "problem_3.py")
    assert found["fatal"] is fatal and message in found["sentence"]


def test_out_of_memory_on_the_gpu_asks_about_n_squared(tmp_path):
    found = _raised("""\
        import torch
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB")
        """, tmp_path / "problem_3.py")
    assert "N x N" in found["sentence"] and "8.00 GiB" in found["sentence"]


def test_out_of_resources_says_what_to_make_smaller(tmp_path):
    found = _raised("""\
        from triton.runtime.errors import OutOfResources
        raise OutOfResources(270336, 232448, "shared memory")
        """, tmp_path / "problem_3.py")
    assert "needs 270336 of shared memory, and the GPU has 232448" in found["sentence"]


# ----------------------------------------------------------------------- text
def test_control_and_direction_characters_are_shown_and_plain_text_stays():
    assert escape("a\x1b[0m\r\u202e\x00\n\té✅") == "a\\x1b[0m\\x0d\\u202e\\x00\n\té✅"


def test_a_long_stream_keeps_its_ends_and_counts_the_rest():
    tail = Tail()
    for piece in (b"<", b"a" * 3 * KEPT, b">"):
        tail.add(piece)
    text = tail.text()
    assert text.startswith("<a") and text.endswith("a>")
    assert f"[... {KEPT + 2} bytes left out ...]" in text


# ---------------------------------------------------------- lost previous values
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
    script = ("import json; from tests.inside import test_worker as t;"
              "print(json.dumps({f.__name__: t._values_carried(f) for f in t.LOOPS}))")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                         env=environment, cwd=Path(__file__).parents[2], timeout=120)
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
