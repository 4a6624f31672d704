"""What a call does is written down, and comes out again on other numbers when it is replayed."""

import ctypes
import gc
import inspect
import json
import threading

import pytest
import torch

from grader.course.trace import Trace
from grader.sandbox.replay import replay
from grader.sandbox.worker import recorder
from tests.sessions import names


def recorded(function, **inputs):
    """function(inputs) under a recorder -> its result, and the trace as it would be sent."""
    book = recorder.Recorder(inputs, on_cuda=False)
    with book:
        result = function(**inputs)
    return result, Trace(json.dumps(book.trace([result], [], [])))


def replayed(trace, tmp_path, **inputs):
    with torch.no_grad():
        (result,) = replay.Replay(trace.value, inputs, "cpu", str(tmp_path), True).run()
    return result


A, B = torch.arange(1000.0), torch.arange(1000.0).flip(0) * 3


def on_others(function, tmp_path):
    """What the trace made on A gives on B, and what function itself gives on B."""
    _, trace = recorded(function, x=A.clone())
    return replayed(trace, tmp_path, x=B.clone()), function(B.clone())


@pytest.mark.parametrize("function", [
    lambda x: (x.double() * 2).view(10, 100).sum(1).clone(),
    lambda x: torch.cat([x[:10], x[5:].flip(0)]).half(),
    lambda x: x.view(10, 100).t()[3:7],
    lambda x: torch.zeros(4, 8).index_put_((torch.tensor([1, 2]),), x[:8]),
    lambda x: torch.where(x > 10, x, float("-inf")).view(8, 125).amax(0),
], ids=["reduced", "joined", "view", "index", "infinite"])
def test_pytorch_operations_give_the_same_on_other_numbers(function, tmp_path):
    got, want = on_others(function, tmp_path)
    assert torch.equal(got, want) and got.stride() == want.stride()


def test_views_and_writes_in_place_are_followed(tmp_path):
    def work(x):
        y = torch.zeros(4, 8)
        y[1:3] += x[:16].view(2, 8)
        y.t()[0].fill_(5.0)
        return y.t()

    got, want = on_others(work, tmp_path)
    assert torch.equal(got, want)


def test_gradients_are_recorded_as_the_operations_they_are(tmp_path):
    def work(x):
        x = x.requires_grad_()
        return torch.autograd.grad((x.sin() * x).sum(), x)[0]

    got, want = on_others(work, tmp_path)
    assert torch.equal(got, want)


def test_a_constant_made_before_the_call_travels_and_a_large_one_is_nan(tmp_path):
    small, mask = torch.arange(1000.0), torch.ones(1024, 1024, dtype=torch.bool).tril()
    large = torch.zeros(recorder.KEPT // 4 + 1)
    for work in (lambda x: x * small, lambda x: x * mask[500, :1000]):
        got, want = on_others(work, tmp_path)
        assert torch.equal(got, want)
    got, _ = on_others(lambda x: x + large[:1000], tmp_path)
    assert got.isnan().all()


def test_a_table_of_addresses_points_at_the_new_tensors(tmp_path):
    def work(x):
        return torch.tensor([x.data_ptr() + 40, 7])

    _, trace = recorded(work, x=A.clone())
    other = B.clone()
    assert replayed(trace, tmp_path, x=other).tolist() == [other.data_ptr() + 40, 7]


def by_numpy(x):
    return torch.from_numpy(x.numpy() * 2.0)


def by_a_list(x):
    return torch.tensor([2 * value for value in x.tolist()])


def by_memmove(x):
    y, right = torch.empty(1000), 2 * x.numpy()
    ctypes.memmove(y.data_ptr(), right.ctypes.data, 4000)
    return y


def by_a_number(x):
    return torch.full((1000,), x.sum().item())


def by_another_thread(x):
    made = []
    thread = threading.Thread(target=lambda: made.append(x * 2))
    thread.start()
    thread.join()
    return made[0]


def with_the_recorder_off(x):
    with torch._C._DisableTorchDispatch():
        return x * 2


@pytest.mark.parametrize("function", [by_numpy, by_a_list, by_memmove, by_a_number,
                                      by_another_thread, with_the_recorder_off])
def test_what_goes_past_pytorch_does_not_come_out_on_other_numbers(function, tmp_path):
    got, want = on_others(function, tmp_path)
    assert not torch.equal(got, want)


def test_uninitialised_memory_is_no_small_number_in_call_and_replay(tmp_path):
    result, trace = recorded(lambda x: torch.empty(5, dtype=torch.float16), x=A)
    assert result.isnan().all() and replayed(trace, tmp_path, x=A).isnan().all()
    for dtype in (torch.int32, torch.int64):
        number, trace = recorded(lambda x: torch.empty(5, dtype=dtype), x=A)  # noqa: B023
        assert number.min() == replayed(trace, tmp_path, x=B).min() == torch.iinfo(dtype).max
    zeros, _ = recorded(lambda x: torch.zeros(5), x=A)
    assert zeros.eq(0).all()


def test_an_operation_and_a_number_read_are_known_by_the_files_line():
    book = recorder.Recorder({"x": A}, on_cuda=False, path=__file__)
    with book:
        y = A.exp() * A[3].item()
    here = inspect.currentframe().f_lineno - 1
    trace = Trace(json.dumps(book.trace([y], [], [])))
    assert {operation.line for operation in trace.operations} == {here} and trace.read == [here]


def test_an_operation_of_a_thread_that_python_did_not_start_has_no_line():
    book = recorder.Recorder({"x": A}, on_cuda=False, path=__file__)
    called = ctypes.CFUNCTYPE(None)(book._line)  # as autograd's threads call, on a GPU
    with book:
        called()
    assert book._line() == inspect.currentframe().f_lineno


def test_an_operation_in_a_custom_operator_is_seen_and_the_operator_is_not(tmp_path):
    @torch.library.custom_op("test_recorder::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    _, trace = recorded(lambda x: twice(x), x=A.clone())
    assert names(trace.operations) == ["aten::mul.Tensor"]
    assert torch.equal(replayed(trace, tmp_path, x=B), B * 2)


# ------------------------------------------------------------------- memory
def peak(function) -> int:
    return recorded(function, x=A)[1].peak_bytes


def test_memory_of_views_and_of_inputs_is_not_counted_twice():
    def work(x):
        y, z = x.view(10, 100)[2:4].t(), torch.zeros(500)
        z.add_(1)
        return z.view(5, 100).sum() + y.sum()

    assert 2000 <= peak(work) < 2100


def test_freed_memory_leaves_the_count_and_kept_memory_does_not():
    def frees(x):
        for _ in range(4):
            y = torch.zeros(1000)
            y.add_(1)
            del y
        return x + 1

    def keeps(x):
        kept = [torch.zeros(1000) for _ in range(4)]
        return x + len(kept)

    gc.collect()
    assert 4000 <= peak(frees) < 8000 and peak(keeps) >= 16000


def test_memory_beside_the_result_in_its_own_storage_counts():
    assert peak(lambda x: torch.zeros(9000)[:1000]) == 32000


def test_memory_that_a_storage_grows_by_counts():
    def grows(x):
        room = torch.empty(1)
        room.mul_(1)
        room.untyped_storage().resize_(36000)
        room.set_(room.untyped_storage(), 0, (9000,)).zero_()
        return x + room[:1000]

    assert peak(grows) >= 36000


def test_the_text_of_a_kernel_comes_without_decorators_and_indentation():
    class Holder:
        @staticmethod
        def kernel(x):
            return x

    text, _, line = recorder._definition(Holder.kernel)
    assert text.startswith("def kernel(x):\n    return x")
    assert recorder.inspect.getsourcelines(Holder.kernel)[1] + 1 == line


def test_a_call_of_too_many_steps_is_known_by_its_operations_and_memory(monkeypatch):
    monkeypatch.setattr(recorder, "LONGEST", 20)

    def work(x):
        total = torch.zeros(1000)
        for i in range(30):
            total += (x * i).exp()
        return total.clone()

    _, trace = recorded(work, x=A)
    assert trace.cut and trace.launches == 0 and trace.results_written
    assert set(names(trace.operations)) == {"aten::zeros", "aten::mul.Tensor", "aten::exp",
                                            "aten::add_.Tensor", "aten::clone"}
    assert trace.peak_bytes == 2 * 4000  # the sum and a product, or a product and its exponential
    assert len(json.dumps(trace.value)) < 2000


def test_memory_freed_by_a_long_call_leaves_its_count(monkeypatch):
    monkeypatch.setattr(recorder, "LONGEST", 3)

    def work(x):
        for _ in range(8):
            square = x[:, None] * x[None, :]
            del square
        return x + 1

    _, trace = recorded(work, x=A)
    assert trace.cut and trace.peak_bytes == 4_000_000 - 4000
