"""An instructor's own cases: within what a stage promises, or refused with what is wanted."""

import json

import pytest
import torch

from grader.assignment.record import ROOT
from grader.course import own_cases
from grader.course.inputs import build
from tests.commands import grader

GOOD = """
[[case]]
stage = 2
M = 37
N = 333
family = "needles"
[[case]]
stage = 4
N = 333
HQ = 3
D = 64
dtype = "float32"
[[case]]
stage = 7
N = 211
HQ = 4
window = 65
[[case]]
stage = 8
N = 99
HQ = 4
HKV = 2
is_causal = false
scale = 0.5
"""


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        (tmp_path / "cases.toml").write_text(text, "utf-8")
        return tmp_path / "cases.toml"
    return write


def test_cases_are_read_with_what_their_stage_has(written):
    two, four, seven, eight = own_cases.read(written(GOOD))
    assert two.name == "robust/M37-N333-float16-needles"
    assert (four.is_causal, four.HKV, four.dtype) == (True, 3, torch.float32)
    assert (seven.HKV, seven.sinks) == (1, 0)
    assert eight.grads == ("q", "k", "v") and not eight.is_causal
    for case in (two, four, seven, eight):
        assert case.group == "robust" and build(case, 7).tensors


@pytest.mark.parametrize(("text", "says"), [
    ("case = ", r"want TOML"), ("", r"want \[\[case\]\] and nothing else; got nothing"),
    ("stage = 4", "nothing else; got stage"), ("case = 4", r"want \[\[case\]\]"),
    ("[[case]]\nN = 5", "want a stage of 1-9; got None, in case 1"),
    ("[[case]]\nstage = 10\nN = 5", "a stage of 1-9; got 10"),
    ("[[case]]\nstage = 4", "want N for stage 4; got none"),
    ("[[case]]\nstage = 2\nN = 5", "want M for stage 2"),
    ("[[case]]\nstage = 6\nN = 5", "want window for stage 6"),
    ("[[case]]\nstage = 4\nN = 5\nM = 5", "want for stage 4 B, D, .*; got M"),
    ("[[case]]\nstage = 4\nN = 5\nwindow = 5", "got window"),
    ("[[case]]\nstage = 6\nN = 5\nwindow = 5\nsinks = 1", "got sinks"),
    ("[[case]]\nstage = 4\nN = 5\ngrads = ['q']", "got grads"),
    ("[[case]]\nstage = 4\nN = 5\nis_causal = false", "want is_causal of True; got False"),
    ("[[case]]\nstage = 4\nN = 0", "want N of 1 to 8192; got 0"),
    ("[[case]]\nstage = 4\nN = 5.0", "want N of 1 to 8192; got 5.0"),
    ("[[case]]\nstage = 4\nN = true", "got True"),
    ("[[case]]\nstage = 6\nN = 5\nwindow = 0", "want window of 1 to"),
    ("[[case]]\nstage = 4\nN = 5\nD = 40", "want D of 16, 32, 64, 128; got 40"),
    ("[[case]]\nstage = 4\nN = 5\nD = 128\ndtype = 'float32'", "want D of 16, 32, 64; got 128"),
    ("[[case]]\nstage = 4\nN = 5\ndtype = ['int8']", "want dtype of float16, float32; got .'int8'"),
    ("[[case]]\nstage = 4\nN = 5\nfamily = 'odd'", "want family of randn, "),
    ("[[case]]\nstage = 4\nN = 5\nlayout = ['dense']", "want layout of dense, "),
    ("[[case]]\nstage = 4\nN = 5\nHQ = 4\nHKV = 2", "want as many query heads; got HQ = 4"),
    ("[[case]]\nstage = 5\nN = 5\nHQ = 3\nHKV = 2", "want a multiple of HKV query heads"),
    ("[[case]]\nstage = 1\nN = 5\nNK = 9\nis_causal = true", "want NK without a causal mask"),
    ("[[case]]\nstage = 8\nN = 5\nscale = 0.0", "want a scale of"),
    ("[[case]]\nstage = 8\nN = 5\nis_causal = 1", "want is_causal of False, True; got 1"),
    ("[[case]]\nstage = 4\nN = 5\n" * 2, "want each case once; got robust/H1-N5-D16-float16 twice"),
    ("[[case]]\nstage = 3\nN = 200\nfamily = 'cancel'\nHQ = 2\ndtype = 'float16'",
     "want a case that is not asked anyway"),
])
def test_what_is_none_is_refused_with_what_is_wanted(written, text, says):
    with pytest.raises(ValueError, match=f"--cases: .*{says}"):
        own_cases.read(written(text))


def test_the_program_refuses_a_file_that_is_none(written, tmp_path):
    for path in (written("[[case]]\nstage = 4"), tmp_path / "gone"):
        done = grader("--p4", "--cases", path)
        assert done.returncode == 2 and "--cases: want" in done.stderr


@pytest.mark.interpreter
def test_a_mistake_in_an_own_case_is_found_and_no_student_told_to_ask_it(written,
                                                                                  tmp_path):
    text = (ROOT / "problem_2.py").read_text("utf-8")
    source = text + ("\n_right = weighted_row_sum_forward\n\n\ndef weighted_row_sum_forward(x, w):"
                     "\n    y = _right(x, w)\n    return y * 1.5 if x.shape[1] == 333 else y\n")
    (tmp_path / "problem_2.py").write_text(source, "utf-8")
    done = grader("--p2", "--submission", tmp_path, "--device", "cpu", "--json",
                  tmp_path / "out.json", "--cases", written(GOOD))
    checks = json.loads((tmp_path / "out.json").read_text())["stages"][0]["checks"]
    assert [check["name"] for check in checks if check["outcome"] == "wrong"] == [
        "robust/M37-N333-float16-needles"]
    assert "--case" not in done.stdout
