"""After a wrong answer: the mistake is named, with the step that it stands in."""

import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attacks.catalogue import mutants
from grader.course.cases import Case
from grader.course.correctness import answer
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.diagnosis import follow_up
from grader.diagnosis.samples import Sample
from grader.host.options import Options
from grader.host.processes import confinement
from grader.judge.grade import grade_stage
from grader.report.screen import Reporter

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_change_is_tried(monkeypatch):
    """Which takes a second or more for every red step without a name, and is tested elsewhere."""
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)


@pytest.mark.parametrize("wrong, told", [
    ("acc)", "look at step 5.6, copied from 3.5; more: python autograder.py "
     "--hint 3.5"),
    ("acc * alpha[:, None, None, None])", "where: step 5.6, copied from step 3.5."),
])
def test_a_mistake_in_a_copied_step_is_told_with_its_origin(wrong, told, tmp_path):
    result, _ = graded(tmp_path, 5, "acc * alpha[:, None])", wrong)
    lines = next(check.lines for check in result.checks if check.outcome != "pass")
    assert told in lines, lines


def without_markers(text: str) -> str:
    """As the original assignment's files are: nothing is known of their steps."""
    return re.sub("# (BEGIN|END) SOLUTION", "#", text)


def graded(folder, number: int, old: str, new: str, change=str):
    """-> the result of a stage whose solved file has new in the place of old, and the report.

    change: made of the whole text then.
    """
    source = (ROOT / f"problem_{number}.py").read_text("utf-8")
    assert old in source
    (folder / f"problem_{number}.py").write_text(change(source.replace(old, new)), "utf-8")
    report = io.StringIO()
    options = Options(folder, "cpu", 1, 60.0, benchmark=False, quick=True, stop_early=True)
    return grade_stage(STAGES[number], options, Reporter(report)), report.getvalue()


def test_a_file_with_a_red_light_is_told_the_step(tmp_path):
    result, said = graded(tmp_path, 3, "tl.dot(p.to(v.dtype), v, acc * alpha[:, None])",
                          "tl.dot(p.to(v.dtype), (v * 0.7 + 0.5).to(v.dtype), "
                          "acc * alpha[:, None])")
    check = next(check for check in result.checks if check.outcome != "pass")
    assert (check.diagnosis["kind"], check.diagnosis["step"]) == ("step", "3.5")
    assert check.diagnosis["text"].startswith("acc[")  # what was seen: it has no name
    assert "look at step 3.5" in check.message
    assert "✗ step 3.5: " in said and "steps  ✗ 3.5   ✓ 3.1-3.4, 3.6-3.8\n" in said


def test_an_output_with_the_strides_of_q_is_told_as_such(tmp_path):
    source = (ROOT / "problem_7.py").read_text("utf-8").replace(
        "torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)", "torch.empty_like(q)")
    (tmp_path / "problem_7.py").write_text(source, "utf-8")
    options = Options(tmp_path, "cpu", 1, 60.0, benchmark=False,
                      case="robust/H2-N127-D128-W1000-S70-float16-transposed")
    check, = grade_stage(STAGES[7], options, Reporter(io.StringIO())).checks
    assert check.diagnosis["id"] == "pattern-stored-otherwise"
    assert "tip: was it allocated with an input's strides" in check.message
    assert "strides of every axis" not in check.message


def test_gradients_in_another_order_are_told_as_such(tmp_path):
    result, _ = graded(tmp_path, 8, "return dq, dk, dv, None", "return dq, dv, dk, None")
    check = next(check for check in result.checks if check.outcome != "pass")
    assert check.diagnosis["id"] == "pattern-another-tensor"
    assert "These are the right values of v.grad: it is returned, or stored, in the place of " \
        "k.grad." in check.lines and "look at step" not in check.message


def test_what_no_case_reaches_and_no_compiler_takes_is_said_in_every_case(tmp_path):
    right = 's = tl.where(keep, s, float("-inf"))'
    result, _ = graded(tmp_path, 3, right, 's = s.masked_fill(keep, float("-inf"))')
    source = (ROOT / "problem_3.py").read_text("utf-8")
    line = 1 + source[:source.index(right)].count("\n")
    assert {check.outcome for check in result.checks} == {"crashed"}
    assert {check.message for check in result.checks} == {
        f"problem_3.py:{line}, in _attend, reads .masked_fill, which a tile does not have: "
        "the kernel does not compile."}


def test_what_has_no_name_is_told_as_it_was_seen_and_points_at_no_step(tmp_path):
    result, _ = graded(tmp_path, 3, "tl.dot(p.to(v.dtype), v, acc * alpha[:, None])",
                       "tl.dot(p.to(v.dtype), (v * 0.7 + 0.5).to(v.dtype), "
                       "acc * alpha[:, None])", change=without_markers)
    check = next(check for check in result.checks if check.outcome != "pass")
    assert check.diagnosis["kind"] == "seen" and check.diagnosis["step"] is None
    said = " ".join(" ".join(check.lines).split())
    assert "In a small case (H=3, L=90, D=16), the weights are wrong from query 0 on" in said
    assert "look at" not in said and "try:" not in said
    assert "Add --show to see the weights drawn." in said


def test_a_mistake_that_gradients_tell_is_not_said_of_the_weights(tmp_path):
    result, _ = graded(tmp_path, 8, "p_t = tl.math.exp2(", "p_t = tl.exp(", change=without_markers)
    check = next(check for check in result.checks if check.outcome != "pass")
    assert check.diagnosis["id"] == "dkdv-backward-in-two-bases"
    assert check.lines[0].startswith("In the code that computes dk and dv, P is computed with exp")
    assert "on purpose" not in check.message


def test_memory_that_is_never_stored_points_at_what_stores_it(tmp_path):
    """Half of every row."""
    result, _ = graded(tmp_path, 3, "(rows[:, None] < N) & (j < D))",
                       "(rows[:, None] < N) & (j < D) & (j * (rows[:, None] % 3) < 9))",
                       change=without_markers)
    check = next(check for check in result.checks if check.outcome != "pass")
    assert check.diagnosis["id"] == "pattern-never-stored"
    assert "never wrote these elements" in check.message


class Asked:
    """As much of Samples as a matrix is drawn of: its answers, some of them wrong."""

    def __init__(self, failing: Case, *further: Case):
        self.wrong, *others = (
            Sample.of(built, {"o": answer(built, "cpu").truth["o"] * (1 + (case.N != 64))}, "cpu")
            for case in (failing, *further) for built in [build(case, 0)])
        self.answers = {sample.built.case: sample for sample in others}
        self.names = ["o"]


@pytest.mark.parametrize("shows_from, drawn", [(0, 90), (100, 128)])
def test_the_smallest_wrong_case_in_which_the_mistake_shows_is_drawn(shows_from, drawn):
    case = Case(4, "standard", 300, D=16, HQ=2, HKV=2, is_causal=True)

    def ask(built):
        exact = answer(built, "cpu").truth["o"]
        return {"o": exact * 0.5 if built.case.N > shows_from else exact}
    samples = Asked(case, replace(case, N=64), replace(case, N=90), replace(case, N=257))
    samples.ask = ask
    assert follow_up._matrix(samples).case.N == drawn


def test_only_the_search_for_a_mistake_has_a_shorter_timeout():
    session = SimpleNamespace(timeout=60.0)
    with follow_up._patience(session):
        assert session.timeout == follow_up.PROBE_SECONDS
    assert session.timeout == 60.0


def test_a_blank_step_ends_its_stage_without_a_traceback(tmp_path):
    result, said = graded(tmp_path, 4, "    keep = key <= query\n",
                          '    raise NotImplementedError("step 4.6")\n')
    assert (result.outcome, result.points, len(result.checks)) == ("crashed", 0, 1)
    assert "· 4.6" in said and "cases wait for step 4.6." in said
    assert "   | " not in said


def test_an_empty_step_is_said_to_be_empty_where_the_answer_is_wrong(tmp_path):
    source = (ROOT / "problem_4.py").read_text("utf-8")
    store = source.split("# BEGIN SOLUTION 4.8\n")[1].split("    # END SOLUTION 4.8")[0]
    result, said = graded(tmp_path, 4, store, "")
    assert "Step 4.8 is still empty." in said and "look at step" not in said
    assert result.to_fix == "write step 4.8"
    assert result.checks[0].diagnosis["id"] == "step-empty"


def test_several_empty_steps_are_all_said_to_be_empty(tmp_path):
    source = (ROOT / "problem_4.py").read_text("utf-8")
    last, store = (source.split(f"# BEGIN SOLUTION {step}\n")[1].split(
        f"    # END SOLUTION {step}")[0] for step in ("4.3", "4.8"))
    result, said = graded(tmp_path, 4, store, "", lambda text: text.replace(last, ""))
    assert "Steps 4.3 and 4.8 are still empty." in said and said.count("4.8") == 2  # and its sign
    assert result.to_fix == "write step 4.3"


def test_a_name_that_a_step_should_have_made_is_told_with_the_step(tmp_path):
    result, said = graded(tmp_path, 4, "    keep = key <= query\n", "    mask = key <= query\n")
    assert "name 'keep' is not defined" in result.checks[0].message
    assert "tip: should step 4.6, above, define it?" in result.checks[0].message
    assert "keep is not assigned here, but the code below needs it." in said


def test_warnings_of_triton_itself_are_not_shown(tmp_path):
    result, said = graded(tmp_path, 3, "m_new = tl.maximum(",
                          "m_new = float('-inf') + 0 * tl.maximum(")
    assert result.outcome == "wrong" and "Warning" not in said


def test_a_wrong_file_is_told_its_mistake_and_the_command(tmp_path):
    mutant = next(m for m in mutants(6) if m.id == "window_plus_one")
    (tmp_path / "problem_6.py").write_bytes(mutant.source)
    options = Options(tmp_path, "cpu", 1, 60.0, quick=True, benchmark=False, show=True,
                            stop_early=True, confinement=confinement((ROOT, tmp_path)))
    report = io.StringIO()
    result = grade_stage(STAGES[6], options, Reporter(report))
    check = result.checks[0]
    assert check.diagnosis["id"] == "window-plus-one" and check.diagnosis["kind"] == "step"
    assert check.diagnosis["text"] == "the window is one key too wide: query i sees W + 1 keys"
    assert len(check.lines) <= 12 and check.lines[-1].endswith("--case " + check.name)
    said = report.getvalue()
    assert re.search(r"✗ step 6.8: (problem_6.py:\d+: )?the window is one key too wide", said)
    assert "Attention matrix of head" in said and "\x1b" not in said
    again = grade_stage(STAGES[6], replace(options, case=check.name, show=False),
                              Reporter(io.StringIO()))
    assert [one.name for one in again.checks] == [check.name] and again.points == 0


@pytest.mark.parametrize(("name", "heads", "drawn"), [("o", 6, 4), ("d_k", 2, 3)])
def test_the_head_that_is_drawn_reads_what_is_most_wrong(name, heads, drawn):
    """Of three query heads a key/value head, the first one."""
    truth = torch.zeros(1, heads, 5, 4)
    got = truth.clone()
    got[0, drawn if heads == 6 else 1, 2] = 1.0
    case = Case(5, "robust", 5, D=4, HQ=6, HKV=2, is_causal=True)
    sample = SimpleNamespace(got={name: got}, truth=lambda name: truth,
                             built=SimpleNamespace(case=case))
    assert follow_up._head(sample, name) == drawn


@pytest.mark.parametrize(("id", "words", "rule", "said"), [
    ("sinks-of", "16 sinks stay visible beyond the window, but sink_size is 5", "a rule",
     "In a small case (N=90), 16 sinks stay visible beyond the window, but sink_size is 5. The "
     "grader made this mistake on purpose in that case and got exactly your attention weights."),
    ("no-max", "no maximum is subtracted before exp", "a rule",
     "No maximum is subtracted before exp. The grader made this mistake on purpose in a small case "
     "(N=90) and got exactly your attention weights."),
    ("no-max", "k is read twice, or the loop ends early", "",
     "k is read twice, or the loop ends early. The grader made each of these mistakes on purpose "
     "in a small case (N=90) and got exactly your attention weights.")])
def test_what_shows_a_mistake_is_said_of_the_case_that_shows_it(id, words, rule, said):
    matrix = SimpleNamespace(label="N=90", backward=False)
    assert " ".join(follow_up._proved(id, words, rule, matrix, "a small case")) == (
        said + " Add --show to see them drawn.")


@pytest.mark.parametrize("N, said", [(128, "a small case"), (65, "another case"),
                                     (90, "a case of the same length")])
def test_only_a_case_smaller_than_the_wrong_one_is_called_small(N, said):
    matrix = SimpleNamespace(case=Case(4, "probe", 90, D=16, HQ=3, HKV=3, is_causal=True))
    assert follow_up._which(matrix, replace(matrix.case, N=N)) == said


def test_another_case_is_told_in_one_line_with_the_line_of_the_file(tmp_path):
    result, _ = graded(tmp_path, 4, "tl.program_id(0) % num_tiles", "tl.program_id(0)",
                       change=without_markers)
    check = next(check for check in result.checks if check.outcome != "pass")
    said = next(line for line in check.lines if line.startswith("In another case (B=2, H=3,"))
    assert "): problem_4.py:" in said and " at q_ptr: " in said and ". They are in rows " in said
