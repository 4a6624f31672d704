"""One case at a time that takes much of a GPU, and only where there is room."""

import pytest
import torch

from grader.sandbox import device_memory


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(device_memory.places.tempfile, "gettempdir", lambda: str(tmp_path))
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
