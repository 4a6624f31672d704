"""The measurement of the naming: what counts as right, and that an interrupted run goes on."""

import json
import re

from attacks import named
from attacks.catalogue import Attack
from grader.assignment.record import ROOT
from grader.diagnosis.describe import PATTERNS
from grader.diagnosis.isolating import THINGS
from grader.step_checks.mistakes import known, plain

ROW = {"mutant": "stage_3/no_scale", "stage": 3, "want": ["no-scale"], "got": [],
       "verdict": "none", "seconds": 1.0, "said": "pattern"}


def test_one_id_too_many_is_wrong_and_no_id_is_none():
    assert named.compare([], ["a"]) == "none"
    assert named.compare(["a"], ["a", "b"]) == "rightly"
    assert named.compare(["a", "c"], ["a", "b"]) == "wrongly"
    assert named.compare(["c/a"], ["a"]) == "rightly"  # c or else a
    assert named.compare(["c/d"], ["a"]) == "wrongly"
    assert named.compare(["wrong-comparison"], ["a"]) == "placed"


def test_the_newest_line_of_a_mutant_counts(tmp_path):
    path = tmp_path / "results.jsonl"
    assert named.read(path) == []
    path.write_text("".join(json.dumps(row) + "\n" for row in (
        ROW, {**ROW, "mutant": "stage_3/other"}, {**ROW, "verdict": "rightly"})))
    assert {row["mutant"]: row["verdict"] for row in named.read(path)} == {
        "stage_3/no_scale": "rightly", "stage_3/other": "none"}


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    chosen = [Attack("mutants", f"m{i}", 3, "", b"", ("wrong",)) for i in range(5)]
    monkeypatch.setattr(named, "entries", lambda kind: chosen)
    asked = []

    def result(attack, want, kind):
        asked.append(attack.id)
        return {**ROW, "mutant": attack.name, "verdict": "none" if attack.id == "m3" else "rightly"}
    monkeypatch.setattr(named, "result", result)

    def run(*words):
        asked.clear()
        monkeypatch.setattr("sys.argv", ["named", *words, "--results", str(tmp_path / "r")])
        assert named.main() == 0
        return asked[:]
    assert run("--share", "2/2") == ["m1", "m3"]
    assert run() == ["m0", "m2", "m4"]
    assert run("--again", "none") == ["m3"]
    assert "5        4        0        0        1     80%" in capsys.readouterr().out


def test_every_id_that_is_wanted_can_be_said():
    expected = named.tomllib.loads((named.HERE / "names.toml").read_text("utf-8"))
    text = "".join(path.read_text("utf-8") for path in (ROOT / "grader").rglob("*.py"))
    said = {*known(), *re.findall(r'"((?:\w+-)+\w+)"', text), *(f"only-{t.id}" for t in THINGS),
            *(f"pattern-{id}" for id in PATTERNS)}
    for table in expected.values():
        for names in table.values():
            for name in [names] if isinstance(names, str) else names:
                assert name in said or plain(name) in said, name
