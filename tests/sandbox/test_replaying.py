"""How many workers replay and compile, alone and beside other gradings."""

import os

import pytest

from grader.sandbox import places
from grader.sandbox.processes import Confinement
from grader.sandbox.replaying import ReplayingWorkers


@pytest.mark.parametrize(("cores", "is_shared", "replaying", "compiling"), [
    (16, False, 2, 14), (64, False, 2, 14), (16, True, 1, 4), (4, False, 1, 2), (4, True, 1, 1),
    (2, False, 1, 1), (None, True, 1, 1),
])
def test_gradings_that_share_a_gpu_leave_each_other_cores(
        monkeypatch, cores, is_shared, replaying, compiling):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(places, "is_shared", lambda: is_shared)
    assert ReplayingWorkers("cuda", 60.0, Confinement()).count == replaying
    assert ReplayingWorkers("cpu", 60.0, Confinement(), compile_for=90).count == compiling
