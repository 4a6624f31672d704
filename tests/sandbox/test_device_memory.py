"""One case at a time that takes much of a GPU, and only where there is room."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from grader.sandbox import device_memory


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(device_memory.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20 * 2**30, 80 * 2**30))


def test_a_second_large_case_waits_for_the_first_to_end(monkeypatch):
    with device_memory.large(16, 0) as first:
        with device_memory.large(16, 0) as second:
            assert first and not second
    with device_memory.large(16, 0) as third:
        assert third


def test_a_large_case_is_left_out_where_there_is_no_room():
    with device_memory.large(21, 0) as room:
        assert not room
    with device_memory.large(19, 0) as room:  # and the lock was given back
        assert room


def test_it_begins_when_another_process_gives_memory_back(monkeypatch):
    free = iter([1, 1, 30])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free) * 2**30, 80 * 2**30))
    monkeypatch.setattr(device_memory.time, "sleep", lambda seconds: None)
    with device_memory.large(16, 60) as room:
        assert room


def test_gradings_beyond_what_the_gpu_has_memory_for_wait_for_a_place(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 13 * 2**30))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=1))
    said, first = [], contextlib.ExitStack()
    monkeypatch.setattr(device_memory.time, "sleep", lambda seconds: first.close())

    first.enter_context(device_memory.place(said.append))  # these would be processes of their own
    assert not device_memory.is_shared()
    with device_memory.place(said.append):
        assert device_memory.is_shared() and not said
        with device_memory.place(said.append):  # while it waits the first one ends
            assert not device_memory.is_shared()
    assert said == ["Waiting: 2 gradings are under way, which the GPU has memory for."]
