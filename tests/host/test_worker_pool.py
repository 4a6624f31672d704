"""How many workers replay and compile, alone and beside other gradings."""

import os

import pytest

from grader.host import gpu_slots
from grader.host.processes import Confinement
from grader.host.worker_pool import WorkerPool


@pytest.mark.parametrize(("cores", "gradings", "replaying", "compiling"), [
    (16, 1, 2, 14), (64, 1, 2, 14), (16, 2, 1, 8), (16, 4, 1, 4), (16, 20, 1, 1), (4, 1, 1, 2),
    (4, 4, 1, 1), (2, 1, 1, 1), (None, 4, 1, 1),
])
def test_gradings_that_share_a_gpu_leave_each_other_cores(
        monkeypatch, cores, gradings, replaying, compiling):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(gpu_slots, "gradings", lambda: gradings)
    assert WorkerPool("cuda", 60.0, Confinement()).count == replaying
    assert WorkerPool("cpu", 60.0, Confinement(), compile_for=90).count == compiling
