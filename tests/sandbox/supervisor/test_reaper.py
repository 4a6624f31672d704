"""What a grader leaves behind goes, whoever else was killed with it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grader.assignment.record import ROOT

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="orphans go to no other process there")
PROGRAM = """
import os, sys, time
from grader.sandbox.supervisor import reaper
folders, request = map(int, sys.argv[1:3])
reaper.fork_fork_server(folders, [request])
"""


class Reaper:
    """Its process; the program goes on in the fork_server.  With `gone` closed the grader is
    gone."""

    def __init__(self, fork_server: str, *folders: Path, printed=None):
        announced, named = os.pipe()
        self.request, theirs = os.pipe()
        self.gone = open(named, "wb", buffering=0)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + fork_server, str(announced), str(theirs)],
            cwd=ROOT, pass_fds=(announced, theirs), stdin=subprocess.PIPE, stdout=printed)
        os.close(announced)
        os.close(theirs)
        for folder in folders:
            self.gone.write(os.fsencode(folder) + b"\0")

    def end(self) -> int:
        self.gone.close()
        return self.process.wait(600)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "grader-x"
    (made / "work").mkdir(parents=True)
    return made


@pytest.mark.parametrize("fork_server", [
    "time.sleep(6000)",  # it imports, and no supervisor was asked for
    "os._exit(0)", "os.abort()",  # a fork server without memory, before its supervisor
])
def test_a_folder_goes_with_the_grader_whatever_became_of_the_fork_server(fork_server, folder):
    never_made = folder.with_name("grader-y")
    reaper = Reaper(fork_server, folder, never_made)
    assert folder.exists()
    assert reaper.end() == 0
    assert list(folder.parent.iterdir()) == []


def test_a_path_that_was_not_written_to_its_end_is_no_folder(folder):
    reaper = Reaper("", folder / "work")
    reaper.gone.write(os.fsencode(folder))
    assert reaper.end() == 0
    assert folder.exists() and list(folder.iterdir()) == []


@LINUX
def test_a_supervisor_is_waited_for_and_keeps_its_folder_until_then(folder):
    supervisor = f"""
if os.fork() == 0:
    os.setsid()
    os.write(request, b"here")
    sys.stdin.read()
    os.rename({str(folder)!r}, {str(folder)!r} + "-seen")
    os._exit(0)
time.sleep(6000)
"""
    reaper = Reaper(supervisor, folder)
    assert os.read(reaper.request, 4) == b"here"
    reaper.gone.close()
    reaper.process.stdin.close()
    assert reaper.process.wait(600) == 0
    assert [path.name for path in folder.parent.iterdir()] == ["grader-x-seen"]


@LINUX
def test_signals_to_all_processes_of_this_machine_leave_it_at_its_work(folder):
    reaper = Reaper("os.write(request, b'here'); time.sleep(6000)", folder)
    assert os.read(reaper.request, 4) == b"here"
    status = Path(f"/proc/{reaper.process.pid}/status")
    ignored = 0
    while not ignored >> signal.SIGCHLD - 1 & 1:  # the last one that it sees to
        ignored = int(re.search(r"SigIgn:\s*(\w+)", status.read_text())[1], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        reaper.process.send_signal(number)
    assert reaper.end() == 0
    assert list(folder.parent.iterdir()) == []


def test_who_reads_what_the_fork_server_prints_waits_for_nobody_else(folder):
    reaper = Reaper("print('said', flush=True); os._exit(0)", folder,
                    printed=subprocess.PIPE)
    assert reaper.process.stdout.read() == b"said\n"  # to its end, while the grader lives
    assert reaper.end() == 0
