"""Entries that lie GiB apart take little GPU memory."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grader.course.inputs import FAR, lay_out
from grader.sandbox.worker import gaps
from tests.sessions import X, double_call, open_session, run


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 64 * 16, 3 * 2**20 + 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_entries_are_where_they_belong(width, dtype):
    want = torch.randn(3, width, device="cuda").to(dtype)
    whole = gaps.managed(2 * FAR + width, dtype)
    assert whole.shape == (2 * FAR + width,) and whole.dtype == dtype
    entries = whole.as_strided((3, width), (FAR, 1))
    assert torch.equal(entries.copy_(want), want)
    assert torch.equal(whole[2 * FAR:], want[2]) and torch.equal(entries.contiguous(), want)


@pytest.mark.gpu
def test_the_gaps_take_no_memory():
    total = torch.cuda.mem_get_info()[1]
    kept = [gaps.managed(2 * FAR + 1, torch.bfloat16) for _ in range(total // 2**32 + 1)]
    assert sum(x.nbytes for x in kept) > total


@pytest.mark.gpu
def test_a_worker_lays_a_call_out_with_them_and_fills_them_again():
    far = lay_out(X, "far")
    call = double_call(inputs={"x": far}, refill={"x": replace(far, storage=far.storage + 1)})
    with open_session("answers.py", device="cuda", interpret=False) as session:
        reply = run(session, "right", call)
    assert torch.equal(reply.outputs[0]["y"], 2 * X)
    assert torch.equal(reply.refilled["y"], 2 * (X + 1))


def test_a_driver_without_managed_memory_is_told_by_its_own_number(monkeypatch):
    driver = SimpleNamespace(cuMemAllocManaged=lambda *given: 801)
    monkeypatch.setattr(gaps.ctypes, "CDLL", lambda name: driver)
    with pytest.raises(OSError, match="cuMemAllocManaged: error 801"):
        gaps.managed(16, torch.float16)


def test_spread_entries_are_gathered_as_they_were_sent():
    sent = torch.arange(6.0)
    layout = {"shape": [3, 2], "numel": 6, "apart": 100}
    whole = gaps.spread(sent, 100, 3)
    assert whole.numel() == 202 and whole[100:102].tolist() == [2, 3]
    assert torch.equal(gaps.gathered(whole, layout).reshape(-1), sent)
    assert gaps.spread(sent, 0, 3) is sent and gaps.gathered(sent, layout | {"apart": 0}) is sent
