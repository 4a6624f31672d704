"""Tasks that share a folder grade a class as one process does: on submitit's local executor, and
on a Slurm of one node where Debian's packages slurm-wlm and munge are installed."""

import argparse
import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from classroom import __main__ as program
from classroom.slurm import cluster_options, command
from grader.assignment.record import ROOT
from tests.classroom.classes import AS, make

submitit = pytest.importorskip("submitit")
CLASS = {"anna": {2: "syntax error"}, "ben": {2: "import nothing_such\n"}, "cleo": {3: "x = 1\n"}}
CONF = """
ClusterName=local
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def asked(tmp_path, *options: str) -> argparse.Namespace:
    return program._parser().parse_args([
        "grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--device", "cpu",
        "--stages", "2-3", "--jobs", "1", *AS, *options])


def table(out) -> list[list[str]]:
    with open(out / "grades.csv", newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What one process says of the class."""
    folder = tmp_path_factory.mktemp("one")
    make(folder / "class", CLASS)
    done = subprocess.run(
        [sys.executable, "-m", "classroom", "grade", str(folder / "class"), "--out",
         str(folder / "out"), "--device", "cpu", "--stages", "2-3", *AS], cwd=ROOT,
        capture_output=True)
    assert done.returncode == 0, done
    found = table(folder / "out")
    assert len(found) == 4 and "crashed" in found[1]
    return found


def test_the_tasks_say_what_one_process_says(tmp_path, expected):
    make(tmp_path / "class", CLASS)
    assert program.spread(asked(tmp_path, "--slurm", "2"), cluster="local") == 0
    assert table(tmp_path / "out") == expected
    assert not (tmp_path / "out/.working").exists()


def test_options_go_to_the_cluster_and_the_others_to_every_task(tmp_path):
    assert cluster_options(["partition=gpu", "--gres=gpu:1", "exclusive", "time=60"]) == {
        "partition": "gpu", "gres": "gpu:1", "exclusive": True, "time": "60"}
    words = command(asked(tmp_path, "--slurm", "4", "--slurm-option", "mem=8G", "--no-benchmark",
                          "--roster", "list.csv", "--policy", "policy.toml", "--seed", "0"))
    own = program._parser().parse_args(words[3:])
    assert own.slurm == 0 and own.slurm_option == [] and own.benchmark is False and own.jobs == 1
    assert own.roster.is_absolute() and own.policy.name == "policy.toml" and own.seed == 0
    assert own.submissions.is_absolute() and own.out.is_absolute() and own.stages == "2-3"


def test_where_there_is_no_slurm_it_says_so(tmp_path, capsys, monkeypatch):
    make(tmp_path / "class", CLASS)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--slurm", "2"]
    assert program.main(words) == 2
    assert "--slurm: " in capsys.readouterr().err


# ------------------------------------------------------------------------ a real one
def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm of this machine alone, for the time of these tests."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to start slurmd")
    for name in ("slurmctld", "slurmd", "munged", "sbatch"):
        if shutil.which(name) is None:
            pytest.skip("needs Debian's packages slurm-wlm and munge")
    # Short, for the path of a socket; open, for the account munge.
    folder = tmp_path_factory.mktemp("slurm")
    for above in (folder, *folder.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    shutil.chown(folder / "munge", "munge", "munge")
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], folder=folder,
                                ports=free_ports(2), cpus=len(os.sched_getaffinity(0))))
    started = []

    def start(*words):
        started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        run = folder / "munge"
        start("runuser", "-u", "munge", "--", "munged", "--foreground", f"--socket={run}/socket",
              f"--pid-file={run}/pid", f"--log-file={run}/log", f"--seed-file={run}/seed")
        start("slurmctld", "-D")
        start("slurmd", "-D")
        try:
            for _ in range(240):
                done = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True)
                if done.stdout.strip() == "idle":
                    break
                time.sleep(0.5)
            else:
                pytest.skip(f"Slurm does not start here: {done.stdout}{done.stderr}")
            yield
        finally:
            subprocess.run(["scancel", "--user", "root"], capture_output=True)
            for process in reversed(started):
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def test_four_tasks_of_a_real_slurm_say_what_one_process_says(slurm, tmp_path, expected):
    make(tmp_path / "class", CLASS)
    assert program.spread(asked(tmp_path, "--slurm", "4", "--slurm-option", "cpus-per-task=1")) == 0
    assert table(tmp_path / "out") == expected


def test_a_task_that_is_cancelled_leaves_its_files_to_the_others(slurm, tmp_path, expected):
    make(tmp_path / "class", CLASS)
    process = subprocess.Popen(
        [sys.executable, "-m", "classroom", "grade", str(tmp_path / "class"), "--out",
         str(tmp_path / "out"), "--device", "cpu", "--stages", "2-3", *AS, "--jobs", "1",
         "--slurm", "2"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list(tmp_path.glob("out/.working/*/1.txt")) and process.poll() is None:
        time.sleep(0.05)
    jobs = subprocess.run(["squeue", "-h", "-r", "-t", "running", "-o", "%i"], capture_output=True,
                          text=True).stdout.split()
    assert jobs
    subprocess.run(["scancel", "--signal=KILL", jobs[0]], check=True)
    output = process.communicate(timeout=300)[0]
    if process.returncode != 0:  # it was the only one that had begun
        done = subprocess.run(process.args[:-2], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, output + done.stdout + done.stderr
    assert table(tmp_path / "out") == expected
