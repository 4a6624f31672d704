"""The made class has every kind of file, and expects of each what the catalogue says."""

import json

from attacks import made_class
from classroom.gather import gather


def test_a_made_class_is_the_same_for_the_same_seed_and_has_every_kind(tmp_path):
    for name in ("one", "two"):
        made_class.main(["make", str(tmp_path / name), "--students", "30", "--device", "cpu"])
    expected = json.loads((tmp_path / "one/expected.json").read_text())
    assert {each["kind"] for each in expected.values()} >= set(made_class.SHARES) - {"hangs"}
    one, two = (gather(tmp_path / name / "class") for name in ("one", "two"))
    assert one == two and len(one) == 30
    for student in one:
        for stage in range(1, 10):
            missing = expected[f"{student.name}/{stage}"]["outcomes"] == ["missing"]
            assert (stage not in student.files) == missing


def test_the_comparison_counts_what_is_not_as_expected(tmp_path, monkeypatch, capsys):
    made_class.main(["make", str(tmp_path / "made"), "--students", "1", "--device", "cpu"])
    expected = json.loads((tmp_path / "made/expected.json").read_text())
    stages = [{"stage": n, "outcome": expected[f"student_000/{n}"]["outcomes"][0], "points": 0.0,
               "sha256": "x", "message": ""} for n in range(1, 10)]
    stages[3]["outcome"] = "grader_fault"
    (tmp_path / "out/students").mkdir(parents=True)
    (tmp_path / "out/students/student_000.json").write_text(
        json.dumps({"student": "student_000", "stages": stages}))
    monkeypatch.setattr(made_class, "grade_alone", lambda folder, stage, results: {
        "outcome": stages[stage - 1]["outcome"], "points": 1.0 if stage == 9 else 0.0})
    assert made_class.main(["compare", str(tmp_path / "made"), str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "student_000/4" in said and "8 of 9 outcomes are as expected" in said
    assert "student_000/9: alone" in said and "8 of 9 verdicts are those" in said
