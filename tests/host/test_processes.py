"""The fork server finds what the grader found; how a worker ended is said in words."""

import signal
import sys

import pytest

from grader.host import accounts, processes
from grader.host.processes import Ending, ForkServer


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


def test_the_fork_server_is_told_where_the_packages_lie_that_isolation_hides(monkeypatch):
    asked = []
    monkeypatch.setattr(processes, "package_folders", lambda: ["/home/student/.local", "/else"])
    monkeypatch.setattr(processes.subprocess, "Popen",
                        lambda command, **more: asked.append(command))
    ForkServer()
    (command,) = asked
    assert command[0] == sys.executable and "-I" in command
    assert command[-1] == "/home/student/.local:/else"


def test_a_folder_goes_with_this_process_at_whatever_moment_of_its_making(monkeypatch, tmp_path):
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    fork_server, make = ForkServer(), processes.Path.mkdir
    begun, made = fork_server.new_folder(), []

    def interrupted(folder, **mode):
        fork_server.folders.close()  # as when this process ends
        make(folder, **mode)
        made.append(folder)

    (begun / "work").mkdir()
    monkeypatch.setattr(processes.Path, "mkdir", interrupted)
    fork_server.process.send_signal(signal.SIGSTOP)  # before the folder is there
    fork_server.new_folder()
    fork_server.process.send_signal(signal.SIGCONT)
    assert fork_server.process.wait(600) == 0 and len(made) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_process_whose_fork_server_has_ended_still_makes_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    fork_server = ForkServer()
    fork_server.process.kill()
    fork_server.process.wait()
    assert fork_server.has_ended() and fork_server.new_folder().is_dir()


def test_the_folders_are_those_above_the_packages():
    import torch

    assert any(torch.__file__.startswith(folder) for folder in accounts.package_folders())
