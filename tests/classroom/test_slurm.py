"""Tasks that share a folder grade a class as one process does, on submitit's local executor."""

import argparse
import csv

import pytest

from classroom import __main__ as program
from classroom.slurm import cluster_options, command
from tests.classroom.classes import AS, make

submitit = pytest.importorskip("submitit")
CLASS = {"anna": {2: "syntax error"}, "cleo": {2: "another one", 3: "a third"}}


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
    assert program.main(["grade", str(folder / "class"), "--out", str(folder / "out"), "--device",
                         "cpu", "--stages", "2-3", *AS]) == 0
    found = table(folder / "out")
    assert len(found) == 3 and "crashed" in found[1]
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
