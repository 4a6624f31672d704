"""Covered memory: right for PyTorch and kernels, noise for everything else."""

import ctypes

import numpy as np
import torch

from grader import ledger, seal, trace, watch

torch.set_num_threads(1)  # tests run side by side; a second thread would only wait for the others


def watched(function, *inputs):
    """function(*inputs) under a watch -> its result, and what the ledger found strange."""
    book = ledger.Ledger(inputs)
    with watch.Watch(inputs, False, book) as seen:
        result = function(*inputs)
        seen.returns(result)
    return result, book.strange


def test_pytorch_operations_see_the_numbers_and_nothing_is_strange():
    x = torch.arange(1000.0)
    result, strange = watched(lambda x: (x.double() * 2).view(10, 100).sum(1).clone(), x)
    assert torch.equal(result, (torch.arange(1000.0).double() * 2).view(10, 100).sum(1))
    assert not strange and torch.equal(x, torch.arange(1000.0))


def test_numpy_reads_noise():
    x = torch.arange(1000.0)
    with np.errstate(all="ignore"):  # of noise
        result, strange = watched(lambda x: torch.from_numpy(x.numpy() * 2.0), x)
    assert not torch.equal(result, 2 * x)
    assert strange == {"a tensor that no PyTorch operation made"}


def test_what_ctypes_writes_comes_out_as_noise_and_is_noticed():
    right = torch.arange(1000.0)

    def write(x):
        y = torch.empty(1000)
        ctypes.memmove(y.data_ptr(), right.data_ptr(), 4000)
        return y

    result, strange = watched(write, torch.zeros(4))
    assert not torch.equal(result, right)
    assert strange == {"memory that neither a kernel nor a PyTorch operation wrote"}


def test_views_and_writes_in_place_stay_right():
    def work(x):
        y = torch.zeros(4, 8)
        y[1:3] += x.view(2, 8)
        y.t()[0].fill_(5.0)
        return y.t()

    result, strange = watched(work, torch.ones(16))
    want = torch.zeros(4, 8)
    want[1:3] += 1
    want[:, 0] = 5
    assert torch.equal(result, want.t()) and not strange


def test_a_workspace_kept_from_one_call_to_the_next_is_right():
    kept = {}

    def work(x):
        if "y" not in kept:
            kept["y"] = torch.zeros(1000)
        return kept["y"].copy_(x).clone()

    for value in (1.0, 2.0):
        result, strange = watched(work, torch.full((1000,), value))
        assert result.unique().tolist() == [value] and not strange


def test_gradients_pass_through_covered_memory():
    def work(x):
        x = x.requires_grad_()
        return torch.autograd.grad((x.sin() * x).sum(), x)[0]

    x = torch.linspace(0, 1, 500)
    result, strange = watched(work, x)
    want = x.detach().cos() * x.detach() + x.detach().sin()
    assert torch.allclose(result, want) and not strange


# ---------------------------------------------------------------- the recorder
def recorded(function):
    seen = trace.Trace(on_cuda=False)
    with seen:
        function()
    return seen


def test_a_product_is_seen_in_another_thread_with_dispatch_switched_off():
    import threading

    def work():
        with torch._C._DisableTorchDispatch():
            torch.ones(4, 4) @ torch.ones(4, 4)

    def elsewhere():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert "mm" in recorded(elsewhere).products


def test_arithmetic_counts_what_is_computed_and_not_what_is_moved():
    q, k = torch.ones(64, 1, 32), torch.ones(1, 48, 32)
    assert recorded(lambda: q.float().clone().contiguous()).arithmetic <= 2 * trace.LEAST
    product = recorded(lambda: q * k).arithmetic
    assert 64 * 48 * 32 <= product <= 64 * 48 * 32 + trace.LEAST
    assert recorded(lambda: (q * k).sum(-1)).arithmetic >= 2 * 64 * 48 * 32


def test_writing_number_by_number_adds_up():
    y = torch.zeros(100)

    def one_by_one():
        for i in range(100):
            y[i] = i

    assert recorded(one_by_one).arithmetic >= 100 * trace.LEAST


def test_what_runs_under_our_mark_is_not_counted_but_a_product_is():
    def marked():
        with trace.mark():
            torch.ones(1000).mul(2)
            torch.ones(4, 4) @ torch.ones(4, 4)

    seen = recorded(marked)
    assert seen.arithmetic <= 4 * trace.LEAST and "mm" in seen.products


# ---------------------------------------------------------------------- the seal
class Guarded:
    RULES = {"a", "b"}

    def method(self):
        return 1


def test_a_seal_holds_while_nothing_is_replaced():
    assert seal.Seal([Guarded, ledger, np.random]).broken() == []


def test_a_replaced_method_changed_code_and_an_emptied_set_are_named(monkeypatch):
    sealed = seal.Seal([Guarded])
    monkeypatch.setattr(Guarded, "method", lambda self: 2)
    assert sealed.broken() == ["Guarded.method"]
    monkeypatch.undo()
    assert sealed.broken() == []
    code = Guarded.method.__code__
    Guarded.method.__code__ = (lambda self: 2).__code__
    Guarded.RULES.clear()
    assert sealed.broken() == ["Guarded.RULES", "Guarded.method"]
    Guarded.method.__code__ = code
    Guarded.RULES.update({"a", "b"})
