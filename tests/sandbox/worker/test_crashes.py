"""Triton's errors: the student's line and column, what Triton wants, what to try."""

import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from grader.sandbox.kernels.bounds import OutOfBounds
from grader.sandbox.wire import OBSERVED
from grader.sandbox.worker import crashes


def raised(source: str, path) -> dict:
    """What is said of the error that this text raises."""
    path.write_text(textwrap.dedent(source))
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "a"})
    except BaseException as error:
        return crashes.explain(error, str(path), "during the call")
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("said, id, wants", [
    ("arange's arguments must be of type tl.constexpr", "not-constexpr",
     "write start + tl.arange(0, BLOCK)"),
    ("arange's range must be a power of 2", "arange-not-a-power-of-two", "power of two"),
    ("input and other must have equal reduction dimensions", "dot-shapes", "tl.trans"),
    ("input and other must have equal ranks >= 2", "dot-shapes", "rows[:, None]"),
    ("Both operands must be same dtype. Got fp32 and fp16", "dot-dtypes", "p.to(v.dtype)"),
    ("Cannot make_shape_compatible: incompatible dimensions at index 1: 16 and 64",
     "shapes-do-not-broadcast", "x[:, None]"),
    ("accumulator shape is incompatible", "dot-shapes", "tl.zeros([M, N]"),
    ("Shape element 0 must have type `constexpr[int]`, got `constexpr[tensor]", "not-constexpr",
     "tl.constexpr"),
    ("Input shapes should have M >= 1, N >= 1 and K >= 16", "dot-too-small", "16 or more"),
    ("unsupported operand type(s) for @: 'tensor' and 'tensor'", "does-not-compile", "tl.dot(a,"),
    ("'tensor' object has no attribute 'masked_fill'", "does-not-compile", "tl.where"),
    ("module 'triton.language' has no attribute 'wher'", "does-not-compile", "tl.where"),
    ("exp(): argument 'input' (position 1) must be Tensor, not tensor", "does-not-compile",
     "use those of tl"),
    ("dot() got an unexpected keyword argument 'trans_b'", "does-not-compile", "tl.trans(k)"),
    ("max() got an unexpected keyword argument 'keepdim'", "does-not-compile", "keep_dims="),
    ("PassManager::run failed", "does-not-compile", "a return inside an `if`"),
    ("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", "not-on-the-gpu",
     "device=q.device"),
])
def test_what_triton_says_is_followed_by_what_it_wants(tmp_path, said, id, wants):
    found = raised(f"""\
        def kernel():
            x = 1
            y = [x, error()]

        def error():
            raise ValueError({said!r})
        kernel()
        """, tmp_path / "problem_3.py")
    assert (found["outcome"], found["id"]) == ("crashed", id)
    assert (found["line"], found["column"]) == (6, 5) and wants in found["sentence"]


def test_a_tile_in_an_error_is_its_dtype_and_shape(tmp_path):
    path = tmp_path / "problem_3.py"
    path.write_text("def kernel():\n    cast(tile())\n", "utf-8")
    numbers = np.random.default_rng(0).normal(size=(16, 16))

    def cast(input):
        raise AssertionError(f"cannot cast {input.handle.data} to pointer<fp32>")

    scope = {"cast": cast, "tile": lambda: SimpleNamespace(
        dtype="fp32", handle=SimpleNamespace(data=numbers))}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)
    with pytest.raises(AssertionError) as caught:
        scope["kernel"]()
    found = crashes.explain(caught.value, str(path), "during the call")
    assert "cannot cast fp32[16, 16] to pointer<fp32>" in found["sentence"]


def test_an_error_is_said_whatever_the_values_in_its_frame_do(tmp_path):
    class Odd:
        @property
        def handle(self):
            raise RuntimeError("no handle")

    path = tmp_path / "problem_3.py"
    path.write_text("def load():\n    value = odd\n    1 / 0\nload()", "utf-8")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(path.read_text("utf-8"), str(path), "exec"), {"odd": Odd()})
    found = crashes.explain(caught.value, str(path), "during the call")
    assert "division by zero" in found["sentence"]


def test_an_error_without_words_quotes_the_line_that_raised_it(tmp_path):
    found = raised("""\
        D = 16
        if D < 32:
            raise ValueError
        """, tmp_path / "problem_3.py")
    assert found["sentence"] == "ValueError during the call: raise ValueError"


@pytest.mark.parametrize("source", [
    "raise KeyError('k')",  # the student's own
    "import torch\ntorch.zeros(2).masked_fil(1)"])  # about a tensor of PyTorch's
def test_an_error_that_is_not_about_tiles_gets_no_advice_about_them(tmp_path, source):
    assert "Try:" not in raised(source, tmp_path / "problem_1.py")["sentence"]


@pytest.mark.parametrize("error, where, id", [
    (OutOfBounds("reads", 944), "during the call", "out-of-bounds-read"),
    (OutOfBounds("writes", 1), "during the call", "out-of-bounds-write"),
    (NameError("name 'x' is not defined"), "during the call", "name-not-defined"),
    (NotImplementedError("step 4.5"), "during the call", "blank-step"),
    (TypeError("want q in float16"), "during the call", "input-refused"),
    (TypeError("want q in float16"), "while being imported", ""),
    (RuntimeError("_FlashBackward returned an invalid gradient at index 1 - got [2] but expected "
                  "shape compatible with [3]"), "during the call", "gradient-shape"),
    (RuntimeError("_FlashBackward returned an invalid gradient at index 1 - expected device cuda:0 "
                  "but got cpu"), "during the call", ""),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "during the call",
     "outside-its-tensors"),
    (KeyError("k"), "during the call", ""),
    (RuntimeError("expected Variable or None (got CompiledKernel)"), "during the call",
     "input-refused"),
    (RuntimeError("unsupported AST node type: Continue"), "during the call",
     "does-not-compile"),
    (ImportError("__import__ not found"), "during the call", "does-not-compile"),
    (RuntimeError("function FBackward returned an incorrect number of gradients (expected 2, got "
                  "1)"), "during the call", "gradient-missing"),
    (RuntimeError("function FBackward returned a gradient different than None at position 2, but "
                  "the corresponding forward input was not a Variable"), "during the call",
     "gradient-missing"),
])
def test_what_was_raised_has_an_id_where_it_needs_no_search(tmp_path, error, where, id):
    path = tmp_path / "problem_3.py"
    path.write_text("")
    assert crashes.explain(error, str(path), where)["id"] == id


def test_every_id_is_one_that_the_grader_knows():
    assert {id for _, id, _ in crashes.WANTS} | crashes.TELLING <= set(OBSERVED)


def test_the_line_is_the_deepest_one_of_the_students_file(tmp_path):
    found = raised("""\
        import json
        def helper():
            json.loads("{")
        helper()
        """, tmp_path / "problem_3.py")
    assert found["line"] == 3 and found["outcome"] == "crashed"
    assert "problem_3.py:3 in helper" in found["detail"] and str(tmp_path) not in found["detail"]


def test_a_long_traceback_keeps_both_of_its_ends(tmp_path):
    calls = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(20))
    detail = raised(calls + "f0()", tmp_path / "problem_3.py")["detail"]
    assert "in f0: " in detail and "in f19: " in detail and "in f9: " not in detail


def test_all_lines_of_the_file_are_told_from_the_deepest_outwards(tmp_path):
    found = raised('''\
        def kernel():
            given()
        def given():
            raise IndexError("the real one")
        def caught():
            raise KeyError("k")
        try:
            caught()
        except KeyError:
            try:
                kernel()
            except IndexError as error:
                raise RuntimeError("around it") from error
        ''', tmp_path / "problem_3.py")
    assert found["lines"] == [4, 2, 11, 13, 6, 8]


def test_memory_outside_is_told_with_the_line_that_asked_for_it(tmp_path):
    (path := tmp_path / "problem_3.py").write_text("x = 1\ntl.load(ptrs)\n")
    with pytest.raises(OutOfBounds) as caught:
        exec(compile("\n" + "load()", str(path), "exec"), {"load": _reads_outside})
    found = crashes.explain(caught.value, str(path), "during the call")
    assert found["sentence"] == (
        "tl.load reads 1008 numbers outside the tensor at k_ptr: tl.load(ptrs)\n"
        "They are in rows 1-63 of the (64, 16) tile. Either the mask is missing or wrong, or the "
        "address is wrong.")
    assert found["detail"] == "problem_3.py:2 in <module>: tl.load(ptrs)"  # no sentence twice


def _reads_outside():
    raise OutOfBounds("reads", 1008, "k_ptr", "in rows 1-63 of the (64, 16) tile")


def test_the_lines_of_wrapped_interpreter_errors_are_unwrapped(tmp_path):
    found = raised("""\
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
    assert found["sentence"] == "IndexError during the call: the real one"
    assert found["detail"].count("the real one") == 1  # in the quoted line, and not once more


def test_a_circle_of_causes_ends(tmp_path):
    found = raised("""\
        a, b = ValueError("a"), ValueError("b")
        a.__cause__, b.__cause__ = b, a
        raise a
        """, tmp_path / "problem_3.py")
    assert found["sentence"] == "ValueError during the call: a"


def test_the_old_interpreter_under_a_new_numpy_is_skipped_not_blamed(tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    source = 'raise TypeError("only 0-dimensional arrays can be converted to Python scalars")'
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr("numpy.__version__", "2.4.1")
    found = raised(source, tmp_path / "problem_3.py")
    assert found["outcome"] == "skipped" and "numpy<2.4" in found["sentence"]
    for module, version in (("numpy", "2.3.5"), ("triton", "3.7.1")):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.__version__", version)
            assert raised(source, tmp_path / "problem_3.py")["outcome"] == "crashed"


def test_a_missing_triton_is_skipped_but_any_other_missing_module_is_a_crash(
        tmp_path, monkeypatch):
    source = "raise ModuleNotFoundError('No module named x', name='{}')"
    assert raised(source.format("triton"), tmp_path / "a.py")["outcome"] == "crashed"  # it is here
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert raised(source.format("triton"), tmp_path / "a.py")["outcome"] == "skipped"
    assert raised(source.format("flash_attn"), tmp_path / "a.py")["outcome"] == "crashed"


@pytest.mark.parametrize(("message", "fatal"), [
    ("CUDA error: an illegal memory access was encountered", True),
    ("CUDA error: misaligned address", True),
    ("CUDA error: invalid argument", False),
])
def test_a_dead_cuda_context_ends_the_worker(tmp_path, message, fatal):
    found = raised(f"raise RuntimeError({message!r})", tmp_path / "problem_3.py")
    assert found["fatal"] is fatal and message in found["sentence"]


def test_out_of_memory_on_the_gpu_asks_about_n_squared(tmp_path):
    found = raised("""\
        import torch
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB")
        """, tmp_path / "problem_3.py")
    assert "N x N" in found["sentence"] and "8.00 GiB" in found["sentence"]


def test_out_of_resources_says_what_to_make_smaller(tmp_path):
    found = raised("""\
        from triton.runtime.errors import OutOfResources
        raise OutOfResources(270336, 232448, "shared memory")
        """, tmp_path / "problem_3.py")
    assert "needs 270336 of shared memory, and the GPU has 232448" in found["sentence"]
