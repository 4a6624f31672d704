"""Step checks: green for what is right, in any arrangement; red for the step that is wrong,
alone."""

import io
import json
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from attacks.catalogue import UNSEEN, attacks, changed_step, mutants
from grader.assignment import submission
from grader.assignment.record import ROOT
from grader.course import stages
from grader.course.calls import SubmissionError
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.host.session import Session
from grader.report.results import StepCheck
from grader.report.screen import Reporter
from grader.sandbox.wire import OBSERVED
from grader.sandbox.worker import run_step
from grader.step_checks import earlier, named, one_step
from grader.step_checks.checks import Runner, StepChecks, changed
from grader.step_checks.table import entry
from tests.commands import grader
from tests.step_checks.blanks import colours, lights, run_anew, solved, submitted
from tests.step_checks.rearranged import REARRANGED

pytestmark = pytest.mark.usefixtures("no_search")

LIT = sorted({int(step.id.partition(".")[0]) for stage in range(1, 10)
              for step in submission.steps(solved(stage)) if entry(step.id)})
NAMES = tomllib.loads((ROOT / "attacks/names.toml").read_text("utf-8"))
# Two mistakes in one, of which the lights name the other; a mask that a walk's borders narrow.
ALSO = {(1, "max_of_the_tile_no_rescale"),
        *((stage, "window_lower_bound_per_tile") for stage in (6, 7, 9))}
# Names that the step's own words give, whatever the mistake is called in the whole computation.
NEW = [kernel + id for id in named.SAID for kernel in ("", "dq-", "dkdv-")]
SAID_ALIKE = ("programs-alike", "zero-times-inf", "row-stride-ignored", "handed-wrongly",
              "result-dropped", "begins-again", "added-twice", "overwritten-early", "whole-tensor",
              "step-returns", "nothing-stored", "blind-row-max",
              "load-without-other", "lse-in-base-2", "wrong-head", earlier.ID, *OBSERVED)


@pytest.mark.parametrize("stage", LIT)
def test_every_step_of_a_solved_file_is_right(stage):
    found = lights(solved(stage), stage)
    assert {id: one.lines for id, one in found.items() if one.light != "right"} == {}


@pytest.mark.parametrize("stage", LIT)
def test_a_blank_step_is_blank_and_the_others_keep_their_lights(stage):
    for step in submission.steps(solved(stage)):
        rows = submission.lines(solved(stage))
        rows[step.first_line:step.last_line - 1] = [
            rows[step.first_line].replace(rows[step.first_line].strip(), "pass")]
        found = lights("".join(rows), stage)
        assert colours(found, "blank") == [step.id]
        assert colours(found, "wrong") == []


@pytest.mark.filterwarnings("error")
def test_scores_in_float16_are_told_by_what_is_wrong_without_a_warning():
    scores = "s = tl.dot(q, tl.trans(k))"
    found = lights(solved(4).replace(scores, f"{scores}.to(tl.float16)"), 4)
    assert colours(found, "wrong") == ["4.4"]
    assert "-inf" not in " ".join(found["4.4"].lines)


# Some of each stage's; `python -m attacks --kind mutants` asks them all.
STEPWISE = [(mutant, step) for stage in LIT for mutant in [
    one for one in mutants(stage) if not one.id.endswith(UNSEEN)][stage % 8::8]
    if (step := changed_step(mutant))]


@pytest.mark.parametrize("mutant, step", STEPWISE, ids=lambda value: getattr(value, "name", value))
def test_a_mistake_in_one_step_makes_that_light_red_and_no_other(mutant, step):
    found = lights(mutant.source.decode(), mutant.stage)
    red, name = colours(found, "wrong"), found[step].mistake
    assert red == [step] or red == [] and mutant.outcomes == ("pass",)
    own = NAMES.get(f"stage_{mutant.stage}", {})
    known = own.get(mutant.id) or NAMES["any"].get(mutant.id, [])
    known = [known] if isinstance(known, str) else known
    assert not name or name in {*SAID_ALIKE, *known, *NEW} or (mutant.stage, mutant.id) in ALSO


def test_those_mistakes_are_in_steps_of_every_stage():
    assert len(STEPWISE) > 60 and {mutant.stage for mutant, _ in STEPWISE} == set(LIT)


@pytest.mark.parametrize("stage, steps", REARRANGED, ids=lambda value: str(value)[:60])
def test_what_is_right_in_another_arrangement_is_not_red(stage, steps):
    source = solved(stage)
    for step in reversed(submission.steps(source)):
        if step.id in steps:
            rows = submission.lines(source)
            indent = " " * (len(rows[step.first_line]) - len(rows[step.first_line].lstrip()))
            rows[step.first_line:step.last_line - 1] = [
                indent + row + "\n" for row in steps[step.id].strip("\n").split("\n")]
            source = "".join(rows)
    found = lights(source, stage)
    assert {id: one.lines for id, one in found.items() if one.light == "wrong"} == {}
    assert colours(found, "right") == [step.id for step in submission.steps(source)]


@pytest.mark.parametrize("file", [one for one in attacks(("honest",)) if one.stage in LIT
                                  and b"BEGIN SOLUTION" in one.source], ids=lambda one: one.id)
def test_an_honest_file_with_markers_has_no_red_light(file):
    try:
        found = lights(file.source.decode(), file.stage)
    except ValueError:  # it moved the markers about
        return
    assert colours(found, "wrong") == []
    assert not any("on the CPU" in line or "-inf" in line for one in found.values()
                   if one.light == "right" for line in one.seen)


@pytest.mark.parametrize("text, says", [
    ("while True:\n    pass", "did not end"),
    ("j = 0\nwhile j < N:\n    keep = key < N", "its loop goes on while j < N, and changes none"),
    ("keep = key < N\nimport os; os._exit(0)", "ended"),
    ("keep = key < M", "name 'M' is not defined"),
    ("kept = key < N", "keep is not assigned here"),
    ("return key < N", "a step does not return. Assign to keep"),
])
def test_a_step_that_hangs_or_crashes_is_red_and_the_others_are_asked(
        text, says, monkeypatch):
    monkeypatch.setattr("grader.step_checks.checks.SECONDS", 0.2)
    source = solved(3)
    rows = text.replace("\n", "\n    ")
    found = lights(source.replace("keep = key < N", rows), 3)
    assert colours(found, "wrong") == ["3.6"]
    assert says in " ".join(found["3.6"].lines)
    if "name" in says or "did not end" in says:
        step = next(step for step in submission.steps(source) if step.id == "3.6")
        assert f"problem_3.py:{step.first_line + 1}" in " ".join(found["3.6"].lines)
    assert len(colours(found, "right")) == 7


def test_where_the_interpreter_cannot_run_one_line_says_so(monkeypatch):
    versions = {"triton": "3.6.0", "numpy": "2.5.2"}
    monkeypatch.setattr(stages.metadata, "version", versions.get)
    stage = StepChecks(STAGES[3], Options(ROOT, "cpu", 1, 60.0), submitted(solved(3), 3))
    with stage:
        assert stage.result() == [] and "does not work with numpy 2.5.2" in stage.why
    versions["numpy"] = "2.3.5"
    assert stages.interpreter_fault() == ""


@pytest.mark.parametrize("error, said", [
    (SubmissionError("skipped", "nothing runs here"), "nothing runs here."),
    (SubmissionError("timeout", "no answer within 10 s", waited_for_cpu=True),
     "other processes kept it waiting for a CPU.")])
def test_an_error_of_the_machine_makes_no_step_red(monkeypatch, error, said):
    def step(session, request):
        raise error
    monkeypatch.setattr(Session, "step", step)
    found = run_anew(solved(3))
    assert colours(found, "none") == list(found)
    assert found["3.6"].lines == (said,)


@pytest.mark.parametrize("old", [True, False])
def test_a_worker_passes_an_error_of_the_machine_on(monkeypatch, tmp_path, old):
    monkeypatch.setattr(run_step.crashes, "_old_interpreter", lambda: old)
    text = "def step():\n    raise TypeError('only 0-dimensional arrays can be converted')\n"
    request = {"texts": [text], "seconds": 5.0, "kernel": False, "asked": [], "fakes": {},
               "explains": True,
               "examples": [{"given": {}, "memory": {}, "programs": 1, "read": []}]}
    (tmp_path / "problem_1.py").write_text(text, "utf-8")
    worker = SimpleNamespace(module=SimpleNamespace(), path=str(tmp_path / "problem_1.py"),
                             replaying=None)
    if old:
        with pytest.raises(TypeError, match="only 0-dimensional"):
            run_step.run(worker, request)
    else:
        assert "error" in run_step.run(worker, request)[0][0]


def test_a_step_that_leaves_the_unexpected_puts_out_no_other_light():
    source = solved(3).replace("b, h = bh // HQ, bh % HQ", "b, h = (bh, bh), (HQ, HQ)")
    found = lights(source, 3)
    assert found["3.1"].light in ("wrong", "none")
    assert len(colours(found, "right")) == 7


def fail(*arguments):
    raise RuntimeError("of the grader")


@pytest.mark.parametrize("broken", ["examples", "check", "variants"])
def test_a_fault_in_the_check_of_one_step_leaves_the_other_lights(broken, monkeypatch):
    def entry_of(id):
        asked = entry(id)
        if id != "1.5":
            return asked
        return replace(asked, examples=fail if broken == "examples" else lambda: [
            replace(one, **{broken: fail}) for one in asked.examples()])
    monkeypatch.setattr("grader.step_checks.checks.entry", entry_of)
    # A mistake is looked for where the step is wrong.
    found = run_anew(solved(1).replace("m_i + torch.log(l_i)", "torch.log(l_i)"), 1)
    assert colours(found, "none") == ["1.5"] and len(colours(found, "right")) == 7
    assert "RuntimeError: of the grader" in found["1.5"].lines[0]


@pytest.mark.parametrize("broken", ["damaged", "Blanks", "Runner.check_steps"])
def test_a_fault_around_the_checks_is_said_and_ends_nothing(broken, monkeypatch):
    monkeypatch.setattr(f"grader.step_checks.checks.{broken}", fail)
    with StepChecks(STAGES[1], Options(ROOT, "cpu", 1, 60.0), submitted(solved(1), 1)) as stage:
        assert stage.result() == []
        assert stage.why == "the steps could not be run on their own (RuntimeError: of the grader)"


def test_one_step_is_asked_alone_and_the_json_holds_all_lights(tmp_path):
    source = solved(3).replace("whole = N // BLOCK_N * BLOCK_N", "whole = N // BLOCK_N")
    source = source.replace("    keep = key < N\n", "    raise NotImplementedError('step 3.6')\n")
    (tmp_path / "problem_3.py").write_text(source, "utf-8")

    done = grader("--submission", tmp_path, "--step", "3.2")
    assert done.returncode == 1
    assert "your loop visits tiles  0 2*\n" in done.stdout
    assert "it should visit tiles   0 16 32*" in done.stdout
    path = tmp_path / "problem_3.py"
    options, reporter = Options(tmp_path, "cpu", 1, 60.0), Reporter(io.StringIO())
    assert one_step.ask(STAGES[3], "3.1", options, reporter)
    with pytest.raises(ValueError, match="got 3.9"):
        one_step.ask(STAGES[3], "3.9", options, reporter)
    path.write_text(source.replace("    # END SOLUTION 3.4\n", ""), "utf-8")
    with pytest.raises(ValueError, match="the line `# END SOLUTION 3.4` is missing or moved"):
        one_step.ask(STAGES[3], "3.2", options, reporter)
    path.write_text(source, "utf-8")
    whole = grader("--submission", tmp_path, "--p3", "--quick", "--json", tmp_path / "out.json")
    first = whole.stdout.partition("Triton ---\n")[2].splitlines()[0]
    assert first == "steps  ✗ 3.2   ✓ 3.1, 3.3-3.5, 3.7-3.8   · 3.6"
    steps = json.loads((tmp_path / "out.json").read_text())["stages"][0]["steps"]
    assert [step["light"] for step in steps] == [
        "right", "wrong", "right", "right", "right", "blank", "right", "right"]
    assert "it should visit tiles   0 16 32*" in steps[1]["text"]


def test_a_raise_left_behind_a_solution_is_the_next_thing_to_do(tmp_path):
    source = solved(3).replace("    # END SOLUTION 3.2", "    raise NotImplementedError('step 3.2')"
                               "  # TODO: your code here\n    # END SOLUTION 3.2")
    source = source.replace("    keep = key < N\n", "    raise NotImplementedError('step 3.6')\n")
    line = source.splitlines().index("    # END SOLUTION 3.2")
    (tmp_path / "problem_3.py").write_text(source, "utf-8")
    said = f"step 3.2: your code is there; delete line {line}, raise NotImplementedError."
    for arguments in (["--step", "3.2"], ["--p3", "--quick"]):
        done = grader("--submission", tmp_path, *arguments)
        assert said in done.stdout and done.returncode == 1
    assert "unfinished" in done.stdout and "Next: fix step 3.2, then run python" in done.stdout


def test_an_endless_loop_is_known_by_its_light_before_a_case_has_taken_its_time(tmp_path):
    loop = "    start_n = 0\n    while start_n < whole:\n"
    source = solved(3).replace("    for start_n in range(0, whole, BLOCK_N):\n", loop)
    (tmp_path / "problem_3.py").write_text(source, "utf-8")
    file = submission.read(tmp_path, "problem_3.py", "flash_attention_forward")
    with StepChecks(STAGES[3], Options(tmp_path, "cpu", 1, 60.0), file) as lights:
        lights.result()
        assert lights.endless()
    (tmp_path / "problem_3.py").write_text(solved(3), "utf-8")
    file = submission.read(tmp_path, "problem_3.py", "flash_attention_forward")
    with StepChecks(STAGES[3], Options(tmp_path, "cpu", 1, 60.0), file) as lights:
        lights.result()
        assert not lights.endless()


def test_what_a_step_keeps_on_the_class_of_its_ctx_is_no_error_in_it():
    old = "dw = torch.empty(N, "
    assert old in solved(2)
    assert lights(solved(2).replace(old, "dw = type(ctx).dw = torch.empty(N, ", 1), 2)[
        "2.6"].light == "right"


@pytest.mark.parametrize("stage, old, new, said", [
    (4, "MASKED=False)", "MASKED=True)", "the tile at 0 needs no mask, and MASKED=False is faster"),
    (6, "MASKED=False)", "MASKED=True)", "needs no mask, and MASKED=False is faster there"),
])
def test_more_masks_than_needed_are_right_and_advice_says_so(stage, old, new, said):
    assert old in solved(stage)
    step = {4: "4.2", 6: "6.4"}[stage]
    light = lights(solved(stage).replace(old, new), stage)[step]
    assert light.light == "right" and said in light.lines[0], light.lines


@pytest.mark.parametrize("stage, id, old, new, said", [
    (2, "2.2", "stride_wn, mask=mask_n, other=0.0)\n", "stride_wn, mask=mask_n)\n",
     "so this may cost no points"),
    (2, "2.6", "if ctx.needs_input_grad[0]:", "if True:", "This is advice, and costs no points"),
])
def test_a_red_step_that_costs_no_points_says_so(stage, id, old, new, said):
    assert old in solved(stage)
    light = lights(solved(stage).replace(old, new, 1), stage)[id]
    assert light.light == "wrong" and said in " ".join(light.lines), light.lines


def test_the_steps_that_changed_since_the_last_save_are_checked_first(monkeypatch):
    before, source = solved(3), solved(3).replace("keep = key < N", "keep = key <= N")
    assert changed(submitted(source, 3), None) == set()
    one = Runner(STAGES[3], Options(ROOT, "cpu", 1, 60.0), submitted(source, 3))
    one.first, asked = changed(submitted(source, 3), before.encode()), []
    monkeypatch.setattr(one, "light", lambda id, *more: asked.append(id) or StepCheck(id, "right"))
    assert [check.id for check in one.check_steps()] == list(one.blanks.steps)
    assert (asked[:2], one.first) == (["3.6", "3.1"], {"3.6"})
