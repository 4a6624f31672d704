"""The worker, as far as it can be looked at without starting one; test_session.py starts them."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from grader.sandbox.worker import worker
from grader.sandbox.worker.returned import Failure
from grader.sandbox.worker.worker import MARGIN_BYTES, Server


def test_importing_the_worker_starts_nothing_and_needs_no_triton():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import grader.sandbox.worker.worker; "
        "print('triton' in sys.modules, 'reference' in sys.modules)"
    )
    root = str(worker.Path(worker.__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True,
                          check=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("x", [
    torch.randn(2, 3, 5, 8), torch.randn(2, 5, 3, 8).transpose(1, 2), torch.randn(1, 1, 4, 8),
    torch.randn(5, 2, 3, 8).movedim(0, -2)], ids=["dense", "transposed", "1 head", "rows outside"])
def test_a_second_layout_has_the_same_numbers_and_other_strides(x):
    other = worker._laid_out_otherwise(x)
    assert torch.equal(other, x) and other.stride() != x.stride() and other.stride(-1) == 1


def test_inputs_that_are_changed_ask_for_the_same_gradients():
    inputs = {"q": torch.ones(2, 3).requires_grad_(), "k": torch.ones(2, 3)}
    found = worker._changed(inputs, lambda x: 2 * x)
    assert found["q"].requires_grad and not found["k"].requires_grad
    assert found["q"].is_leaf and (found["k"] == 2).all() and (inputs["q"] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_around_an_input_lies_memory_of_its_own_on_both_sides(dtype):
    sent = torch.arange(8).to(dtype)
    apart = worker._apart(sent)
    assert torch.equal(apart, sent) and apart.data_ptr() != sent.data_ptr()
    margin = MARGIN_BYTES // dtype.itemsize
    assert apart.storage_offset() == margin
    assert apart.untyped_storage().nbytes() == (8 + 2 * margin) * dtype.itemsize


def server(function=None, **more) -> Server:
    """Of a file on a CPU, with this entry point; it has no channel."""
    found = Server.__new__(Server)
    found.device, found.on_cuda, found.synchronize = "cpu", False, lambda: None
    found.function, found.name, found.path = function, "f", "problem_3.py"
    found.module, found.prepared = SimpleNamespace(**more), {}
    return found


Q = torch.arange(6.0).reshape(2, 3)
REQUEST = {"args": ["@q", 3, "causal"], "kwargs": {"k": "@q"}, "entry": "", "grads": [],
           "outputs": [{"name": "o", "shape": [2, 3], "dtype": "float32"}]}


def test_a_call_gets_tensors_where_they_are_named_and_all_else_as_it_is():
    seen = []

    def f(*args, **kwargs):
        seen.append((args, kwargs))
        return Q + 1

    assert torch.equal(server(f)._call(REQUEST, {"q": Q})[0], Q + 1)
    assert seen == [((Q, 3, "causal"), {"k": Q})]
    other = server(f, other=lambda *args, **kwargs: Q + 2)
    assert torch.equal(other._call(REQUEST | {"entry": "other"}, {"q": Q})[0], Q + 2)
    with pytest.raises(Failure, match="problem_3.py defines no absent"):
        other._call(REQUEST | {"entry": "absent"}, {"q": Q})


def test_gradients_are_asked_of_each_input_that_wants_one():
    request = REQUEST | {"grads": ["q"]}
    q, up = Q.clone().requires_grad_(), {"o": torch.full((2, 3), 3.0)}
    assert (server()._gradients(request, {"q": q}, [2 * q], up)[0] == 6).all()
    with pytest.raises(Failure, match="want an output with a gradient") as caught:
        server()._gradients(request, {"q": q}, [Q], up)
    assert caught.value.id == "gradient-missing"
    k = Q.clone().requires_grad_()
    with pytest.raises(Failure, match="dk: want a gradient; got None from backward"):
        server()._gradients(REQUEST | {"grads": ["k"]}, {"k": k}, [2 * q], up)


def test_the_turns_of_a_timed_call_begin_further_on_each():
    ours, storage = server(), torch.arange(100.0)
    layout = {"shape": [3], "stride": [1], "offset": 2}
    ours.prepared = {"request": {"inputs": {"x": layout}, "grads": ["x"]},
                     "on_device": {"x": storage}, "kept": "before"}
    ours.arrange({"n": 3, "step": 10})
    assert [turn["x"].tolist() for turn in ours.prepared["turns"]] == [
        [2, 3, 4], [12, 13, 14], [22, 23, 24]]
    assert all(turn["x"].requires_grad for turn in ours.prepared["turns"])
    with pytest.raises(Failure, match="it was not made"):
        ours.kept({})


def test_of_the_timed_calls_one_answer_is_kept():
    ours = server(lambda x: x + 1)
    request = REQUEST | {"args": ["@x"], "kwargs": {}, "outputs": [
        {"name": "y", "shape": [], "dtype": "float32"}]}
    ours.prepared = {"request": request, "upstream": {}, "kept": None,
                     "turns": [{"x": torch.tensor(float(n))} for n in range(4)]}
    ours.time({"keep": 2})
    assert [x.item() for x in ours.kept({})[1]] == [3.0]


def test_memory_is_measured_on_a_gpu_only():
    with pytest.raises(Failure, match="memory is measured on a GPU only"):
        server().memory({})


def test_entries_that_are_placed_keep_their_strides_inside_of_their_storage():
    layout = {"shape": [2, 3], "stride": [4, 1], "offset": 1, "apart": 0, "numel": 9}
    inputs, up, on_device, sent = server().place(
        {"inputs": {"q": layout}, "douts": {}, "grads": ["q"]}, {"q": torch.arange(9.0)}, {})
    assert inputs["q"].tolist() == [[1, 2, 3], [5, 6, 7]] and inputs["q"].stride() == (4, 1)
    assert inputs["q"].requires_grad and up == sent == {}
    assert worker._named(on_device, {"o": Q}).keys() == {"q", "d_o"}
