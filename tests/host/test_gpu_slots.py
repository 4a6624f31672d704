"""Gradings side by side take turns where the GPU has no memory for all of them."""

import os
import subprocess
import sys

import pytest

from grader.assignment.record import ROOT
from grader.host import gpu_slots


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_slots.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(gpu_slots, "_others", [])


def held_elsewhere(*names) -> subprocess.Popen:
    """Another process, which holds these; it says so before it waits to be killed."""
    code = (f"import sys; from grader.host import gpu_slots; gpu_slots.tempfile.tempdir = "
            f"{gpu_slots.tempfile.gettempdir()!r}; print([gpu_slots.is_mine(gpu_slots.lock(n)) "
            f"for n in {names!r}], flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == f"{[True for _ in names]}\n"
    return other


def test_a_grading_knows_how_many_are_beside_it_now_whoever_came_first():
    gpu_slots.wait("gpu", 3, pytest.fail)
    assert gpu_slots.gradings() == 1
    others = [held_elsewhere("gpu-1"), held_elsewhere("gpu-2")]
    assert gpu_slots.gradings() == 3
    others[0].communicate()
    assert gpu_slots.gradings() == 2
    others[1].communicate()
    assert gpu_slots.gradings() == 1


def test_one_too_many_waits_until_another_process_has_ended_however_it_ended(monkeypatch):
    others, said = [held_elsewhere("gpu-0"), held_elsewhere("gpu-1")], []

    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            others[1].kill()
            others[1].wait()

    monkeypatch.setattr(gpu_slots.time, "sleep", sleep)
    gpu_slots.wait("gpu", 2, said.append)
    assert said == ["Waiting for the GPU: other gradings need its memory, 6 GiB each."]
    assert len(slept) == 2
    assert gpu_slots.gradings() == 2  # with the one that lives
    others[0].communicate()


def test_a_place_that_is_never_given_back_is_not_waited_for_for_ever(monkeypatch):
    other, said, now = held_elsewhere("gpu-0"), [], iter(range(0, 10**6, 250))
    monkeypatch.setattr(gpu_slots.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(gpu_slots.time, "sleep", lambda seconds: None)
    gpu_slots.wait("gpu", 1, said.append)
    assert len(said) == 1 and gpu_slots.gradings() == 2
    other.communicate()


def test_another_gpu_has_places_of_its_own():
    other = held_elsewhere("gpu-0")
    gpu_slots.wait("another", 1, pytest.fail)
    other.communicate()


class Driver:
    """Of a GPU with 13 GiB; everything succeeds.  contexts: of which devices."""

    def __init__(self):
        self.contexts = []

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, number):
        device._obj.value = 7
        return 0

    def cuDeviceTotalMem_v2(self, total, device):
        total._obj.value = 13 * 2**30
        return 0

    def cuDeviceGetUuid(self, uuid, device):
        uuid[0] = 255
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.contexts.append(device.value)
        return 0


def test_a_place_is_taken_before_the_context_is_made(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(gpu_slots.ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(gpu_slots, "wait",
                        lambda gpu, count, say: say(gpu, count, *driver.contexts))
    said = []
    make_context = gpu_slots.take(lambda *words: said.append(words))
    assert said == [("ff" + 15 * "00", 2)] and driver.contexts == []
    make_context()
    gpu_slots.take(None)()
    assert len(said) == 1 and driver.contexts == [7, 7]


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver")
def test_without_a_driver_nothing_is_taken_and_nothing_said():
    gpu_slots.take(pytest.fail)()
    assert not gpu_slots._others and not os.listdir(gpu_slots.tempfile.gettempdir())


def test_a_small_gpu_has_one_place(monkeypatch):
    driver, said = Driver(), []
    driver.cuDeviceTotalMem_v2 = lambda total, device: setattr(total._obj, "value", 2**30)
    monkeypatch.setattr(gpu_slots.ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(gpu_slots, "wait", lambda gpu, count, say: said.append(count))
    gpu_slots.take(pytest.fail)
    assert said == [1]


def test_a_grading_keeps_one_place_and_no_file_open_for_the_others():
    other = held_elsewhere("gpu-0")
    before = len(os.listdir("/proc/self/fd"))
    gpu_slots.wait("gpu", 5, pytest.fail)
    assert len(os.listdir("/proc/self/fd")) == before + 1 and len(gpu_slots._others) == 4
    other.communicate()


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / gpu_slots.LOCK.format(user=os.geteuid(), name="gpu-0")).symlink_to(
        tmp_path / "another")
    with pytest.raises(OSError):
        gpu_slots.lock("gpu-0")
    assert not (tmp_path / "another").exists()
