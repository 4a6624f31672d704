"""Gradings side by side take turns where the GPU has no memory for all of them."""

import os
import subprocess
import sys

import pytest

from grader.assignment import ROOT
from grader.sandbox import places


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(places, "_taken", [])


def held_elsewhere(*names) -> subprocess.Popen:
    """Another process, which holds these; it says so before it waits to be killed."""
    code = (f"import sys; from grader.sandbox import places; places.tempfile.tempdir = "
            f"{places.tempfile.gettempdir()!r}; print([places.is_mine(places.lock(n)) for n in "
            f"{names!r}], flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == f"{[True for _ in names]}\n"
    return other


def test_the_first_has_the_gpu_to_itself_and_the_second_shares_it():
    places.wait("gpu", 2, pytest.fail)
    assert not places.is_shared()
    places.wait("gpu", 2, pytest.fail)  # as another process would
    assert places.is_shared()


def test_one_too_many_waits_until_another_process_has_ended_however_it_ended(monkeypatch):
    others, said = [held_elsewhere("gpu-0"), held_elsewhere("gpu-1")], []

    def sleep(seconds):
        others[1].kill()
        others[1].wait()

    monkeypatch.setattr(places.time, "sleep", sleep)
    places.wait("gpu", 2, said.append)
    assert said == ["Waiting: 2 gradings are under way, which the GPU has memory for."]
    assert places.is_shared()  # with the one that lives
    others[0].communicate()


def test_another_gpu_has_places_of_its_own():
    other = held_elsewhere("gpu-0")
    places.wait("another", 1, pytest.fail)
    other.communicate()


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver")
def test_without_a_driver_nothing_is_taken_and_nothing_said():
    places.take(pytest.fail)
    assert not places._taken and not os.listdir(places.tempfile.gettempdir())
