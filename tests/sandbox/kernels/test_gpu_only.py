"""What is right only on a GPU runs in a worker without one as far as NumPy goes, or is skipped."""

import numpy as np
import pytest
import torch

from grader.sandbox.kernels import gpu_only
from tests.sessions import X, double_call, error_of, open_session, run

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def session():
    with open_session("needs_gpu.py") as session:
        yield session


@pytest.mark.parametrize("entry", ["by_libdevice", "warmed_up_in_vain"])
def test_what_numpy_has_too_runs(session, entry):
    torch.testing.assert_close(run(session, entry).outputs[0]["y"], X * 2)


@pytest.mark.parametrize("entry, says", [
    ("unknown", "libdevice.normcdf(x)"), ("unknown", "NumPy has no function like libdevice's __nv"),
    ("assembly", "tl.inline_asm_elementwise("), ("assembly", "interpreter has no inline_asm"),
    ("mapped", "tl.map_elementwise(_twice, x)"),
    ("warmed_up", "only a compiled kernel has ._init_handles"),
    ("launched_by_its_handle", "only a compiled kernel is launched by its handle"),
    ("registers", "only a compiled kernel has .n_regs"),
    ("cached", "only a compiled kernel has .cache_key"),
    ("events", "asks for a GPU during the call")])
def test_what_only_a_gpu_has_is_skipped_for_that_reason(session, entry, says):
    error = error_of(session, entry)
    assert error.outcome == "skipped" and says in error.sentence and error.line


@pytest.mark.parametrize("entry", ["by_libdevice", "unknown", "assembly", "mapped"])
def test_all_of_it_compiles_for_a_gpu(entry):
    with open_session("needs_gpu.py", compile_for=90) as compiler:
        compiler.load(entry, None, ("x",))
        assert compiler.compile(double_call(), to_ptx=True)


def test_what_no_kernel_has_is_a_crash(session):
    assert error_of(session, "misspelled").outcome == "crashed"


@pytest.mark.parametrize("name, arguments", [
    ("exp10", [2.0]), ("round", [2.5]), ("round", [-0.5]), ("rsqrt", [4.0]), ("fdim", [1.0, 3.0]),
    ("saturate", [1.5]), ("atan2", [1.0, -1.0]), ("pow", [2.0, 3.0]), ("fma", [2.0, 3.0, 4.0])])
def test_functions_of_other_names_are_those_of_c(name, arguments):
    want = {"exp10": 100, "round": np.copysign(np.ceil(abs(arguments[0])), arguments[0]),
            "rsqrt": 0.5, "fdim": 0, "saturate": 1, "atan2": 3 * np.pi / 4, "pow": 8, "fma": 10}
    found = gpu_only.LIBDEVICE[name](*(np.array([one], np.float32) for one in arguments))
    assert found == pytest.approx(want[name])
