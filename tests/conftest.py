"""Without a GPU the kernels run in Triton's interpreter, which must be said before any import."""

import gc
import os
import signal

# Tests run side by side: a second thread of NumPy's or of PyTorch's would wait for the others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from grader.course.stages import interpreter_fault

torch.set_num_threads(1)
# A shell's `&` leaves it ignored, and the children that a test interrupts inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from grader.sandbox.kernels.interpreter_speedups import spare_repetition

    spare_repetition()  # as in the grader's workers: a fifth of the time


def pytest_collection():
    gc.disable()  # thousands of tests and all of torch are not to be looked through for garbage


def pytest_collection_modifyitems(items):
    lacks = {"gpu": "" if torch.cuda.is_available() else "needs a CUDA GPU",
             "interpreter": interpreter_fault()}
    for item in items:
        if " at 0x" in item.nodeid:  # each worker of a run has another address, and all end
            raise pytest.UsageError(f"want ids that are always the same; got {item.nodeid}")
        if reason := next((lacks[word] for word in lacks if word in item.keywords), ""):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
