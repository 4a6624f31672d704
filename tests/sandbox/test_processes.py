"""The nursery finds what the grader found; how a worker ended is said in words."""

import sys

import pytest

from grader.sandbox import accounts, processes
from grader.sandbox.processes import Ending, Nursery


@pytest.mark.parametrize("returncode, over, words", [
    (3, "", "ended its own process with exit code 3"),
    (-9, "", "was killed by signal 9 (SIGKILL), probably for want of host memory"),
    (-11, "", "crashed the process with a segmentation fault"),
    (-6, "", "was killed by signal 6 (SIGABRT)"),
    (-40, "", "was killed by signal 40"),  # a real-time signal, which has no name
    (-9, "held too much", "held too much"),
    (None, "", "ended the process that watches over it"),
])
def test_how_a_worker_ended_is_said_in_words(returncode, over, words):
    assert Ending(returncode, over).words() == words


def test_the_nursery_is_told_where_the_packages_lie_that_isolation_hides(monkeypatch):
    asked = []
    monkeypatch.setattr(processes, "package_folders", lambda: ["/home/student/.local", "/else"])
    monkeypatch.setattr(processes.subprocess, "Popen",
                        lambda command, **more: asked.append(command))
    Nursery()
    (command,) = asked
    assert command[0] == sys.executable and "-I" in command
    assert command[-1] == "/home/student/.local:/else"


def test_a_folder_goes_with_the_nursery_at_whatever_moment_of_its_making(monkeypatch, tmp_path):
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    nursery, make = Nursery(), processes.Path.mkdir
    begun, made = nursery.new_folder(False), []

    def interrupted(folder, **mode):
        make(folder, **mode)
        made.append(folder)
        nursery.kill()

    (begun / "work").mkdir()
    monkeypatch.setattr(processes.Path, "mkdir", interrupted)
    nursery.new_folder(True)
    assert nursery.process.wait(600) == -9 and len(made) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_folders_are_those_above_the_packages():
    import torch

    assert any(torch.__file__.startswith(folder) for folder in accounts.package_folders())
