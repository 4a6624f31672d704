"""Triton kernels in a worker: interpreted, compiled without a GPU, and on one."""

import pytest
import torch

from grader.course.calls import SubmissionError, TensorInput
from grader.host.processes import Worker
from grader.host.session import Session
from tests.sessions import (
    SUBMISSIONS,
    X,
    double_call,
    error_of,
    names,
    open_session,
    reaching,
    run,
    with_gradient,
)

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def kernels():
    with open_session("kernels.py") as session:
        yield session


@pytest.fixture(scope="module")
def compiler():
    with open_session("kernels.py", compile_for=90) as session:
        yield session


ADVICE = ("Either the mask is missing or wrong, or the address is wrong: check its tile and "
          "strides.")


@pytest.mark.parametrize("entry, id, said", [
    ("unmasked", "out-of-bounds-read", """\
tl.load reads 52 numbers outside the tensor at x_ptr: x = tl.load(x_ptr + offs)
They are elements 12-63 of 64. """ + ADVICE),
    ("wide", "out-of-bounds-write", """\
tl.store writes 1 number outside the tensor at y_ptr: tl.store(y_ptr + offs, x * 2, mask=offs <= n)
It is element 12 of 64. """ + ADVICE),
    ("strayed", "out-of-bounds-read", """\
tl.load reads 64 numbers outside the tensor at x_ptr: x = tl.load(x_ptr + offs)
They are all 64 elements. """ + ADVICE),
])
def test_memory_outside_is_told_by_the_kernels_own_name_for_it(kernels, entry, id, said):
    error = error_of(kernels, entry)
    assert (error.id, error.sentence) == (id, said)


@pytest.mark.parametrize("entry", ["right", "tuned"])
def test_a_kernel_that_wants_a_gpu_runs_in_the_interpreter_and_is_counted(kernels, entry):
    reply = run(kernels, entry)
    assert torch.equal(reply.outputs[0]["y"], X * 2)
    assert reply.trace.launches == 1 and reply.trace.peak_bytes == 0
    assert names(reply.trace.operations) == ["aten::empty_like"]


def test_launches_of_the_backward_are_counted_apart(kernels):
    reply = run(kernels, "differentiable", with_gradient())
    assert torch.equal(reply.grads["x"], torch.full((3, 4), 6.0))
    assert (reply.trace.launches, reply.trace.backward_launches) == (1, 1)


def test_an_error_in_a_nested_kernel_is_found_under_the_interpreters_wrapping(kernels):
    error = error_of(kernels, "broken")
    assert error.sentence.startswith("NameError") and "missing_name" in error.sentence
    assert "missing_name" in (SUBMISSIONS / "kernels.py").read_text().splitlines()[error.line - 1]


def test_a_blank_step_in_a_kernel_names_itself_in_interpreter_and_compiler(kernels, compiler):
    assert error_of(kernels, "blank").sentence == "step 4.2 is still blank"
    with pytest.raises(SubmissionError, match="step 4.2 is still blank"):
        compiler.load("blank", None, ("x",))
        compiler.compile(double_call())


def compile_entry(session, entry, call=None):
    session.load(entry, None, ("x",))
    return session.compile(call or double_call())


def test_a_kernel_compiles_without_a_gpu_forward_and_backward(compiler):
    (kernel,) = compile_entry(compiler, "differentiable", with_gradient())
    assert kernel.name == "_double_kernel" and kernel.warnings == ()
    assert 0 < kernel.seconds


def test_a_compile_only_worker_still_shows_the_interpreters_variable(compiler):
    assert compile_entry(compiler, "interpreted") == []


@pytest.mark.interpreter
def test_what_only_the_compiler_refuses_is_a_crash_at_the_students_line(kernels, compiler):
    assert torch.equal(run(kernels, "with_continue").outputs[0]["y"], X * 2)
    with pytest.raises(SubmissionError, match="does not compile") as caught:
        compile_entry(compiler, "with_continue")
    lines = (SUBMISSIONS / "kernels.py").read_text().splitlines()
    assert "continue" in lines[caught.value.line - 1]


def test_an_error_in_a_compiled_helper_points_into_the_helper(compiler):
    with pytest.raises(SubmissionError, match="missing_name") as caught:
        compile_entry(compiler, "broken")
    lines = (SUBMISSIONS / "kernels.py").read_text().splitlines()
    assert "x + missing_name" in lines[caught.value.line - 1]


@pytest.fixture(scope="module")
def forms():
    """Workers that run, carry out again and compile ways to write a kernel."""
    with open_session("forms.py") as runs, open_session("forms.py", compile_for=90) as compiles, \
            Session(Worker(b"", "replaying.py", device="cpu", interpret=True), 60.0) as replays:
        yield runs, replays, compiles


@pytest.mark.interpreter
@pytest.mark.parametrize("entry", ["attributes", "named_tuples", "lookups", "conditions"])
def test_what_the_compiler_takes_runs_and_is_carried_out_again(forms, entry):
    runs, replays, compiles = forms
    assert compile_entry(compiles, entry)
    reply = run(runs, entry)
    assert torch.equal(reply.outputs[0]["y"], X * 2)
    other = double_call(inputs={"x": TensorInput.dense(X + 7)})
    assert torch.equal(replays.replay(other, reply.trace)["y"], (X + 7) * 2)


def test_too_much_shared_memory_is_a_sentence_with_both_numbers(compiler):
    with pytest.raises(SubmissionError, match=r"needs \d+ bytes .* has 232448 bytes") as caught:
        compile_entry(compiler, "too_big")
    lines = (SUBMISSIONS / "kernels.py").read_text().splitlines()
    assert "kernel[lambda meta" in lines[caught.value.line - 1]


def test_autotuning_picks_a_configuration_that_fits(compiler):
    (kernel,) = compile_entry(compiler, "tuned_to_fit")
    assert kernel.shared_bytes <= 232448


def test_a_lost_previous_value_is_reported_with_its_line(compiler):
    (kernel,) = compile_entry(compiler, "loses_value")
    ((line, sentence),) = kernel.warnings
    assert "the marked line" in (SUBMISSIONS / "kernels.py").read_text().splitlines()[line - 1]
    assert "loses" in sentence and "previous" in sentence


# ----------------------------------------------------------------------- GPU
@pytest.fixture(scope="module")
def on_gpu():
    with open_session("kernels.py", device="cuda", interpret=False) as session:
        yield session


@pytest.mark.gpu
@pytest.mark.parametrize("entry", ["right", "tuned", "differentiable"])
def test_a_kernel_on_the_gpu_comes_back_bit_for_bit_and_is_counted(on_gpu, entry):
    reply = run(on_gpu, entry, double_call(repeats=2))
    assert torch.equal(reply.outputs[1]["y"], X * 2) and torch.equal(reply.late["y"], X * 2)
    assert reply.trace.launches == 1 and reply.trace.backward_launches == 0
    assert reply.trace.peak_bytes < 1 << 20  # the autotuner's 256 MiB are not the student's


@pytest.mark.gpu
def test_gradients_and_launches_of_a_backward_on_the_gpu_are_seen(on_gpu):
    reply = run(on_gpu, "differentiable", with_gradient())
    assert torch.equal(reply.grads["x"], torch.full((3, 4), 6.0))
    assert (reply.trace.launches, reply.trace.backward_launches) == (1, 1)


@pytest.mark.gpu
def test_fresh_memory_on_the_gpu_is_poisoned_and_the_wrong_device_is_told():
    with open_session("answers.py", device="cuda", interpret=False) as session:
        assert run(session, "unwritten").outputs[0]["y"].isnan().all()
        assert error_of(session, "on_meta").sentence == "y: want a dense tensor on cuda; got meta"


@pytest.mark.gpu
def test_time_and_memory_are_measured_on_the_gpu(on_gpu):
    on_gpu.load("right", None, ("x",))
    call = reaching(10)
    assert 0 < on_gpu.time(call, 10) < 1
    assert on_gpu.memory(call) == 512  # the allocator's smallest block


@pytest.mark.gpu
def test_out_of_gpu_memory_leaves_the_worker_usable(on_gpu):
    assert "out of GPU memory" in error_of(on_gpu, "out_of_memory").sentence
    assert torch.equal(run(on_gpu, "right").outputs[0]["y"], X * 2)


@pytest.mark.gpu
def test_an_illegal_address_is_told_and_ends_the_worker():
    with open_session("kernels.py", device="cuda", interpret=False) as session:
        session.load("outside", None, ("x",))
        with pytest.raises(SubmissionError, match="outside its tensors") as caught:
            session.run(double_call())
    assert caught.value.outcome == "crashed" and caught.value.fatal
