"""The JSON file: in the published format, and whole at every moment."""

import json
import math

import pytest

from grader.host import files
from grader.report import results
from grader.report.results import Check, Run, StageResult


def run() -> Run:
    checks = [Check("robust/HQ8-HKV2-N257-D64-W100", "robust", "wrong",
                    errors={"o": {"fro": math.nan, "fro_limit": 0.006, "row": math.inf,
                                  "row_limit": 0.03}},
                    where="rows 100-256", lines=("o differs", "try: this"))]
    result = StageResult(6, "Sliding window", 50, "wrong", 35.0, "abc", 4.2, checks)
    return Run("cpu", "2.13", "3.7", 1234, "0.2.0+abc", [result])


def test_the_file_has_the_published_fields(tmp_path):
    results.write(run(), tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert data["grader"] == "0.2.0+abc"
    assert {"format", "grader", "device", "torch", "triton", "seed", "stages"} == set(data)
    stage = data["stages"][0]
    assert {"stage", "title", "outcome", "points", "max_points", "sha256", "seconds", "checks",
            "benchmark"} <= set(stage)
    assert set(stage["checks"][0]) == {"name", "group", "outcome", "errors", "where", "diagnosis",
                                       "message"}
    assert stage["checks"][0]["message"] == "o differs\ntry: this"


def test_numbers_json_cannot_say_become_null(tmp_path):
    results.write(run(), tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text("utf-8")
    errors = json.loads(text)["stages"][0]["checks"][0]["errors"]["o"]
    assert errors["fro"] is None and errors["row"] is None and errors["row_limit"] == 0.03
    assert "NaN" not in text and "Infinity" not in text


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    results.write(run(), path)
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.write(Run("x", "x", None, 0, "x"), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
