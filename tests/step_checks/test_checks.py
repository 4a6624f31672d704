"""StepChecks: green for what is right, in any arrangement; red for the step that is wrong,
alone."""

import contextlib
import io
import json
import time
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
from grader.report import overview
from grader.report.results import StepCheck
from grader.report.screen import Reporter
from grader.sandbox.wire import OBSERVED
from grader.sandbox.worker import run_step
from grader.starter import blank
from grader.step_checks import blanks, earlier, edits, named, one_step, repair
from grader.step_checks.checks import Runner, StepChecks, changed
from grader.step_checks.examples import LOG2E, Example, Observed, StepSpec, factor
from grader.step_checks.table import entry
from tests.commands import grader
from tests.step_checks.blanks import lights, runner, solved, submitted
from tests.step_checks.rearranged import REARRANGED

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


@pytest.fixture(autouse=True)
def without_changes(monkeypatch):
    """No change of a step's text is tried: hundreds take seconds, and few tests are about them."""
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)


@pytest.fixture
def with_changes(without_changes, monkeypatch):
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 3)


def colours(found, light: str) -> list[str]:
    return [id for id, one in found.items() if one.light == light]


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


FIRST_SLIPS = [
    (1, "1.1", " / math.sqrt(q.shape[-1])", "", "no-scale"),
    (1, "1.1", "math.sqrt(q.shape[-1])", "q.shape[-1]", "scale-twice"),
    (1, "1.1", "query = start_m + torch", "query = torch", "query-positions-of-the-tile"),
    (1, "1.1", "key = start_n + torch", "key = torch", "key-positions-of-the-tile"),
    (1, "1.1", "k.transpose(-1, -2)", "k.reshape(*k.shape[:2], -1, k.shape[2])", "k-reshaped"),
    (3, "3.4", "tl.trans(k)", "tl.reshape(k, (k.shape[1], k.shape[0]))", "k-reshaped"),
    (1, "1.6", " - dlse[:, :, m]", "", "dlse-left-out"),
    (2, "2.1", "tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)\n    mask_m = offs_m < M\n"
     "    # END", "tl.arange(0, BLOCK_M)\n    mask_m = offs_m < M\n    # END", "programs-alike"),
    (2, "2.2", "offs_m[:, None] * stride_xm + offs_n[None, :] * stride_xn\n        x = tl.load("
     "x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other=0.0)\n        w", "offs_m[:, None] * N "
     "+ offs_n[None, :]\n        x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other="
     "0.0)\n        w", "row-stride-ignored"),
    (3, "3.7", "(i * stride_n + j * stride_d)", "(i * D + j)", "row-stride-ignored"),
    (3, "3.7", "mask=inside, other=0.0)", "mask=inside)", "load-without-other"),
    (3, "3.4", 's = tl.where(keep, s, float("-inf"))', 's = s * keep + (keep == 0) * float("-inf")',
     "zero-times-inf"),
    (3, "3.4", 's = tl.where(keep, s, float("-inf"))', "s = s * keep", "hidden-scores-zero"),
    (4, "4.2", """\
    for start_n in range(0, start_m, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N,""", """\
    for start_m in range(0, start_m, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_m, N,""",
     "loop-variable-taken"),
    (6, "6.7", """\
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
""", """\
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
""", "no-pivot"),
    (1, "1.2", "start_m + BLOCK_M, NQ) if is_causal else NK", "start_m + BLOCK_M, NK)",
     "end-always-causal"),
    (1, "1.2", "min(start_m + BLOCK_M, NQ) if", "start_m if", "end-before-the-diagonal"),
    (1, "1.3", "torch.exp(m_i - m_new)", "torch.exp(m_i) / torch.exp(m_new)",
     "exponentials-divided"),
    (1, "1.3", "torch.exp(s - m_new[..., None])", "torch.softmax(s, dim=-1)",
     "softmax-of-the-tile"),
    (1, "1.4", "alpha * l_i + p.sum(", "alpha * l_i + p.mean(", "weights-averaged"),
    (1, "1.4", "alpha * l_i + p.sum(", "l_i + alpha * p.sum(", "alpha-on-the-new-sum"),
    (1, "1.5", "m_i + torch.log(l_i)", "torch.log(m_i + l_i)", "lse-log-of-both"),
    (1, "1.6", "(do_tile * o_tile).sum", "(do_tile @ o_tile.mT).sum", "delta-of-all-rows"),
    (1, "1.7", "lse[:, :, m, None]", "lse[:, :, None]", "lse-of-the-keys"),
    (1, "1.7", "lse[:, :, m, None]", "lse[:, :, :s.shape[2], None]", "lse-of-the-first-rows"),
    (1, "1.7", "torch.exp(s - lse[:, :, m, None])", "torch.exp(s) / lse[:, :, m, None]",
     "backward-divided-by-lse"),
    (1, "1.7", "torch.exp(s - lse[:, :, m, None])", "torch.exp(s)", "backward-without-lse"),
    (1, "1.7", "torch.exp(s - lse[:, :, m, None])", "torch.softmax(s, dim=-1)",
     "backward-softmax-of-the-tile"),
    (1, "1.8", "ds = p * (do_tile", "ds = (do_tile", "ds-without-p"),
    (1, "1.8", " - shift[..., None])", ")", "no-delta"),
    (2, "2.3", "x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1)",
     "x.to(tl.float32), axis=1) * tl.sum(w.to(tl.float32))", "sums-multiplied"),
    (2, "2.4", "offs_m[:, None] * stride_dxm + offs_n[None, :] * stride_dxn",
     "offs_m[:, None] * N + offs_n[None, :]", "row-stride-ignored"),
    (3, "3.2", "range(0, whole, BLOCK_N)", "range(whole // BLOCK_N)", "walk-in-tiles"),
    (3, "3.5", "tl.math.exp2(s * scale_log2e - m_new[:, None])",
     "tl.math.exp2((s - m_new[:, None]) * scale_log2e)", "max-scaled-twice"),
    (3, "3.5", "tl.max(s, axis=1) * scale_log2e)", "tl.max(s, axis=1)) * scale_log2e",
     "max-scaled-twice"),
    (4, "4.2", "range(0, start_m, BLOCK_N)", "range(start_m // BLOCK_N)", "walk-in-tiles"),
    (4, "4.2", "range(start_m, start_m + BLOCK_M, BLOCK_N)",
     "range(start_m, start_m + BLOCK_N, BLOCK_N)", "diagonal-cut-short"),
    (8, "8.3", "edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N", "edge = start_m",
     "end-always-causal"),
    (8, "8.3", "edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N",
     "edge = N // BLOCK_N * BLOCK_N", "end-never-causal"),
    (9, "9.3", "tl.zeros_like(l_i) + 1.0", "tl.zeros_like(l_i) + tl.exp(sink)",
     "sink-logit-wrong"),
    (9, "9.11", "tl.math.exp2(sink * LOG2E - lse_log2)", "tl.math.exp2(sink * LOG2E)",
     "backward-without-lse"),
    (3, "3.8", "    tl.store(ptrs, tile.to(ptr.dtype.element_ty), "
     "mask=(rows[:, None] < N) & (j < D))\n", "", "nothing-stored"),
]


SEEN = "nothing-stored", "programs-alike"  # these say themselves what is wrong


@pytest.mark.parametrize("stage, step, old, new, id", FIRST_SLIPS, ids=[
    f"{step} {id}" for _, step, *_, id in FIRST_SLIPS])
def test_a_first_slip_has_its_name(stage, step, old, new, id):
    assert old in solved(stage)
    found = lights(solved(stage).replace(old, new, 1), stage)
    assert colours(found, "wrong") == [step] and found[step].mistake == id
    assert found[step].says or found[step].change or id in SEEN


@pytest.mark.parametrize("stage, step, old, new, said", [
    (2, "2.6", "_dx_kernel[(grid_m * grid_n,)]", "_dx_kernel[(grid_m, grid_n)]",
     "_dx_kernel is launched on (2, 3) programs, want (6,)"),
    (2, "2.6", "_dw_kernel[(grid_n,)]", "_dw_kernel[(grid_m,)]", "on (2,) programs, want (3,)"),
    (2, "2.6", "dx, M, N, dy.stride(0), w.stride(0), dx", "dx, M, N, dy.stride(0), 1, dx",
     "handed stride_wn=1, and along that axis w has the stride 3"),
    (2, "2.6", "x.stride(0), x.stride(1),\n                    BLOCK_M", "x.stride(0), 1,\n"
     "                    BLOCK_M", "handed stride_xn=1, and along that axis x has the stride 20"),
    *((2, "2.6", "_dw_kernel[(grid_n,)]", f"_dw_kernel{grid}", said) for grid, said in (
        ("", "launched with a grid before its arguments: _dw_kernel[grid](...)"),
        ("[grid_n]", "the grid must be a tuple of one to three whole numbers, as in _dw_kernel["
         "(programs,)](...); got 3: without a comma, brackets make no tuple"),
        ("[lambda meta: triton.cdiv(N, meta['BLOCK_N'])]", "got 3: without a comma"),
        ("['grid_n']", "got 'grid_n'"), ("[(N / BLOCK_N,)]", "got (2.34375,)"))),
    (2, "2.6", "_dw_kernel[(grid_n,)](", "(lambda *all, **more: _dw_kernel[grid_n])(",
     "_dw_kernel is not launched"),
    (2, "2.6", "_dw_kernel[(grid_n,)]", "dw = _dw_kernel[(grid_n,)]",
     "`dw =` must not stand before a launch, which returns nothing: the result is in the tensor "
     "that the kernel is handed, dw."),
    (2, "2.6", "dy, x, dw, M, N,", "dy, x, dw, N, M,", "handed M=300, N=20 and as dy a tensor of"),
    (2, "2.5", "offs_m = start_m + tl.arange", "offs_m = start_m + tl.program_id(0) * BLOCK_M + "
     "tl.arange", "the rows do not begin at start_m"),
    (2, "2.5", "offs_m = start_m + tl.arange", "offs_m = tl.program_id(0) * BLOCK_M + tl.arange",
     "the rows do not begin at start_m"),
    (1, "1.1", "s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])", "q /= q.shape[-1] ** 0.5; "
     "s = q @ k.transpose(-1, -2)", "q itself is changed in place, and the next tile gets"),
    (3, "3.2", "    for start_n in range(0, whole, BLOCK_N):\n", "    start_n = 0\n"
     "    while start_n < whole:\n", "always for the same tile: start_n never grows"),
    (6, "6.4", "start_n, N, window_size,", "start_n, N,",
     "window_size is missing in this call of _attend. It comes before `scale * LOG2E`."),
])
def test_a_launch_and_a_loop_are_told_by_what_is_wrong_with_them(stage, step, old, new, said):
    assert old in solved(stage)
    found = lights(solved(stage).replace(old, new, 1), stage)
    assert colours(found, "wrong") == [step] and said in " ".join(found[step].lines)


@pytest.mark.parametrize("grid, note", [
    ("lambda meta: (triton.cdiv(N, meta['BLOCK_N']),)", ""), ("[grid_n]", ""), ("grid_n, 1", ""),
    ("(N,)", "_dw_kernel is launched on 300 programs, and 3 are enough")])
def test_a_grid_that_triton_takes_is_right(grid, note):
    found = lights(solved(2).replace("_dw_kernel[(grid_n,)]", f"_dw_kernel[{grid}]"), 2)["2.6"]
    assert found.light == "right" and (note in " ".join(found.seen) if note else not found.seen)


def test_a_walk_that_goes_on_in_vain_is_right_with_both_walks_beside_each_other():
    found = lights(solved(4).replace("range(start_m, start_m + BLOCK_M, BLOCK_N)",
                                     "range(start_m, N, BLOCK_N)"), 4)["4.2"]
    assert found.light == "right"
    assert "your loop visits tiles 0 16 32 48 64* 80* 96*, it should" in found.lines[0]


@pytest.mark.parametrize("old, new, said", [
    ("    # END SOLUTION 3.4\n", "", "`# END SOLUTION 3.4` is missing or moved"),
    ("    # BEGIN SOLUTION 3.4\n", "", "`# BEGIN SOLUTION 3.4` is missing or moved"),
    ("    # END SOLUTION 3.8\n", "", "`# END SOLUTION 3.8` is missing or moved"),
    ("SOLUTION", "", ""),
])
def test_a_missing_marker_is_said_with_its_step(tmp_path, old, new, said):
    (tmp_path / "problem_3.py").write_text(solved(3).replace(old, new), "utf-8")
    file = submission.read(tmp_path, "problem_3.py", "flash_attention_forward")
    with StepChecks(STAGES[3], Options(tmp_path, "cpu", 1, 60.0), file) as found:
        assert found.result() == [] and said in found.why and bool(said) == bool(found.why)


DIAGONAL = """\
    for start_n in range(start_m, start_m + BLOCK_M, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, """
INTERIOR = """\
    for start_n in range(inner, start_m, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                sink_size, scale * LOG2E, D, BLOCK_N, MASKED=False)
"""


@pytest.mark.parametrize("stage, old, new, id", [
    (1, "alpha = torch.exp(m_i - m_new)", "alpha = torch.exp(m_new - m_i)", "alpha-inverted"),
    (2, " * w.to(tl.float32)[None, :], axis=1", ", axis=1", "w-ignored"),
    (3, "alpha = tl.math.exp2(m_i - m_new)", "alpha = tl.math.exp2(m_new - m_i)",
     "alpha-inverted"),
    (4, "keep = key <= query", "keep = key < query", "strictly-causal"),
    (5, "h // (HQ // HKV)", "h // HKV", "heads-divided-by-hkv"),
    (6, "age < window_size", "age <= window_size", "window-plus-one"),
    (6, "age < window_size", "age > window_size", "window-inverted"),
    *((stage, "tl.max(s, axis=1) * scale_log2e", "tl.max(s, axis=1)", "max-not-scaled")
      for stage in (3, 4, 6, 7)),
    (2, "x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1", "x * w[None, :], axis=1",
     "tile-sum-in-16-bits"),
    (2, "x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1",
     "(x * w[None, :]).to(tl.float32), axis=1", "product-in-16-bits"),
    (3, "whole = N // BLOCK_N * BLOCK_N", "whole = N // BLOCK_N", "walk-in-tiles"),
    (4, "range(0, start_m, BLOCK_N)", "range(0, start_m - BLOCK_N, BLOCK_N)",
     "last-full-tile-skipped"),
    (4, "tl.dot(p.to(v.dtype), v, acc * alpha[:, None])",
     "tl.dot((p / l_i[:, None]).to(v.dtype), v, acc)", "normalised-each-tile"),
    (7, DIAGONAL + "window_size,", DIAGONAL + "N,", "diagonal-without-window"),
    (9, "dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, edge, N, window_size,",
     "dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, edge, N, N,",
     "dq-diagonal-without-window"),
    (7, INTERIOR + "    for start_n in range(first, inner, BLOCK_N):",
     "    for start_n in range(tl.maximum(start_m - window_size, 0), start_m, BLOCK_N):",
     "window-into-the-diagonal"),
    (8, "tl.dot(q, tl.trans(k)) * scale_log2e - lse_log2",
     "tl.dot(q, tl.trans((k * scale_log2e).to(k.dtype))) - lse_log2", "scaled-in-16-bits"),
    (8, "tl.dot(k, tl.trans(q)) * scale_log2e - lse_log2",
     "tl.dot(k, tl.trans((q * scale_log2e).to(q.dtype))) - lse_log2", "scaled-in-16-bits"),
    (8, "keep = key <= query if CAUSAL else key < N", "keep = key <= query", "always-causal"),
    (5, "h // (HQ // HKV)", "h", "heads-not-mapped"),
    (5, "h // (HQ // HKV)", "0", "one-kv-head-for-all"),
    (9, "tl.zeros_like(l_i) + 1.0", "tl.zeros_like(l_i)", "sink-logit-wrong"),
    (9, "tl.zeros_like(m_i) + sink * LOG2E", "m_i", "sink-logit-wrong"),
    (9, "m_i = tl.zeros_like(m_i) + sink * LOG2E\n        l_i = tl.zeros_like(l_i) + 1.0",
     "m_i = m_i + 0.0", "sink-logits-ignored"),
    (9, "tl.zeros_like(m_i) + sink * LOG2E", "tl.zeros_like(m_i) + sink", "sink-logit-wrong"),
])
def test_a_mistake_has_the_name_that_the_table_of_mistakes_has_for_it(stage, old, new, id):
    assert old in solved(stage)
    found = lights(solved(stage).replace(old, new, 1), stage)
    assert [light.mistake for light in found.values() if light.light == "wrong"] == [id]


def test_where_the_interpreter_cannot_run_one_line_says_so(monkeypatch):
    versions = {"triton": "3.6.0", "numpy": "2.5.2"}
    monkeypatch.setattr(stages.metadata, "version", versions.get)
    stage = StepChecks(STAGES[3], Options(ROOT, "cpu", 1, 60.0), submitted(solved(3), 3))
    with stage:
        assert stage.result() == [] and "does not work with numpy 2.5.2" in stage.why
    versions["numpy"] = "2.3.5"
    assert stages.interpreter_fault() == ""


def test_an_error_of_the_machine_makes_no_step_red(monkeypatch):
    def step(session, request):
        raise SubmissionError("skipped", "the interpreter does not work here")
    monkeypatch.setattr(Session, "step", step)
    found = _asked(solved(3))
    assert colours(found, "none") == list(found)
    assert found["3.6"].lines == ("the interpreter does not work here.",)


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
    found = _asked(solved(1).replace("m_i + torch.log(l_i)", "torch.log(l_i)"), 1)
    assert colours(found, "none") == ["1.5"] and len(colours(found, "right")) == 7
    assert "RuntimeError: of the grader" in found["1.5"].lines[0]


def test_a_fault_in_the_search_for_a_mistake_leaves_the_step_red(with_changes, monkeypatch):
    monkeypatch.setattr(repair, "find", fail)
    found = lights(solved(1).replace("m_i + torch.log(l_i)", "m_i + 2 * torch.log(l_i)"), 1)
    assert colours(found, "wrong") == ["1.5"]


@pytest.mark.parametrize("broken", ["damaged", "Blanks", "Runner.check_steps"])
def test_a_fault_around_the_checks_is_said_and_ends_nothing(broken, monkeypatch):
    monkeypatch.setattr(f"grader.step_checks.checks.{broken}", fail)
    with StepChecks(STAGES[1], Options(ROOT, "cpu", 1, 60.0), submitted(solved(1), 1)) as stage:
        assert stage.result() == []
        assert stage.why == "the steps could not be run on their own (RuntimeError: of the grader)"


def test_a_name_that_is_thrown_away_belongs_to_no_step():
    maximum = "m_new = torch.maximum(m_i, s.amax(dim=-1))"
    assert maximum in solved(1)
    found = lights(solved(1).replace(
        maximum, "tile_max, _ = s.max(dim=-1)\n            m_new = torch.maximum(m_i, tile_max)"),
        1)
    assert {id: light.lines for id, light in found.items() if light.light != "right"} == {}


def test_a_step_in_changed_surroundings_has_no_light():
    call = "keep = _keep(query[:, None], key[None, :], N)"
    source = solved(3).replace(call, call.replace("N)", "N + 0)"))
    found = lights(source, 3)
    asked = {id: one.light for id, one in _asked(source).items()}
    assert asked["3.4"] == asked["3.5"] == "none"
    assert asked["3.1"] == asked["3.6"] == "right"
    assert found.keys() == asked.keys()


def test_a_step_that_uses_what_another_makes_has_no_light():
    source = solved(3).replace("    whole = N", "    _ = num_tiles\n    whole = N")
    found = lights(source, 3)
    assert found["3.2"].light == "none"
    assert "num_tiles" in found["3.2"].lines[0]


def test_a_step_that_uses_what_is_not_promised_is_told_that_name():
    found = lights(solved(3).replace("acc = tl.dot(p.to(v.dtype), v,",
                                     "acc = tl.dot(p.to(v.dtype), k,"), 3)
    assert colours(found, "wrong") == ["3.5"]
    assert found["3.5"].seen == (
        "This step uses k, which is not among the values it is given.",)


@pytest.mark.parametrize("id, above, line", [
    ("3.4", "    s = tl.dot(q,", "tl.static_assert(BLOCK_N >= 64)"),
    ("3.2", "    whole = N //", "assert BLOCK_M == BLOCK_N, f'{BLOCK_M} is not {BLOCK_N}'"),
    ("3.2", "    whole = N //", "assert BLOCK_M == BLOCK_N"),
])
def test_a_step_that_asserts_what_only_its_small_tiles_break_has_no_light(id, above, line):
    found = lights(solved(3).replace(above, f"    {line}\n{above}"), 3)
    assert colours(found, "wrong") == []
    assert found[id].light == "none" and "does not hold for the small tiles" in found[id].lines[0]


def test_a_step_that_reads_strides_by_the_names_of_a_named_tuple_has_no_light():
    found = lights(solved(5).replace("_head(k_ptr, k_strides, b, kv_head), ", (
        "(k_ptr + b * k_strides.b + kv_head * k_strides.h, k_strides.n, k_strides.d), ")), 5)
    assert colours(found, "wrong") == [] and found["5.2"].light == "none"


def test_a_step_that_uses_a_constant_of_its_function_has_no_light():
    source = solved(3).replace("    b, h = bh // HQ,",
                               "    tl.static_assert(D >= 16)\n    b, h = bh // HQ,")
    found = lights(source, 3)
    assert found["3.1"].light == "none" and "it uses D" in found["3.1"].lines[0]


def _asked(source: str, stage: int = 3):
    one = runner(stage)
    one.blanks = blanks.Blanks(source, submitted(source, stage).steps)
    return {light.id: light for light in one.lights()}


def test_a_comment_or_another_layout_does_not_change_the_surroundings():
    source = solved(3)
    given = blanks.skeletons(source, tuple(submission.steps(source)))
    other = source.replace("    keep = _keep(query[:, None], key[None, :], N)\n",
                           "    keep = _keep(query[:, None],\n        key[None, :], N)  # mine\n\n")
    assert other != source
    assert blanks.skeletons(other, tuple(submission.steps(other))) == given


@pytest.mark.parametrize("old, new, said", [
    ("scale,\n    D: tl.constexpr, BLOCK_D", "scale, D: tl.constexpr, BLOCK",
     "You changed line 68, `def _fwd_kernel(`"),
    ("    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)", "    acc = tl.zeros([BLOCK_M, BLOCK_D])",
     "You changed line 90, `acc = tl.zeros([BLOCK_M, BLOCK_D])`: it was `acc = tl.zeros("
     "[BLOCK_M, BLOCK_D], tl.float32)`"),
    ("_head(v_ptr, v_strides, b, h)", "_head(v_ptr, k_strides, b, h)",  # past column 60
     "You changed line 88, `k_head, v_head = _head(k_ptr, k_strides, b, h), _head(v_ptr, "
     "k_strides, b, h)`: it was `k_head, v_head = "),
    ("    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)\n", "",
     'A given line is missing above line 90, `l_i, m_i = tl.zeros(')])
def test_what_was_changed_around_a_step_is_said(old, new, said):
    source = solved(3).replace(old, new, 1)
    assert source != solved(3)
    found = blanks.Blanks(source, submitted(source, 3).steps)
    assert found.changed("3.2").startswith(said) and not found.changed("3.5")


def test_the_starter_has_the_surroundings_of_the_solved_file():
    for stage in range(1, 10):
        texts = solved(stage), blank(solved(stage))
        first, second = (blanks.skeletons(text, tuple(submission.steps(text)))
                         for text in texts)
        assert first == second


def test_the_record_of_the_surroundings_is_that_of_the_problem_files():
    assert blanks.RECORD.read_text("utf-8") == blanks.record(ROOT), \
        "python -m grader.step_checks.blanks writes it anew"
    assert blanks.LINES.read_text("utf-8") == blanks.record_lines(ROOT)
    assert not any("BEGIN SOLUTION" in line for line in blanks.given_lines().values())


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


@pytest.mark.parametrize(("id", "said"), [
    ("delta-added", "delta is added instead of subtracted: dS = P * (dP + delta)"),
    ("ds-without-p", "dS is not multiplied by P"),
    ("backward-without-lse", "P is computed without subtracting lse"),
    ("dq-heads-divided-by-hkv", "query head h reads key/value head h // HKV")])
def test_a_name_is_said_without_what_no_search_has_tried(id, said):
    assert named.words(id)[0] == said


# A mistake, and the line of the step in which it stands.
PLACES = [
    (1, "l_i = alpha * l_i + p.sum(dim=-1)", "l_i = alpha * l_i + p.sum(dim=-2)",
     "shapes-do-not-broadcast"),
    (3, "b, h = bh // HQ, bh % HQ", "h, b = bh // HQ, bh % HQ", "names-exchanged"),
    (3, "lse, mask=query < N)", "lse)", "wrong-argument"),
    (3, "acc / l_i[:, None], bh", "acc, bh", "one-missing"),
    (3, "    keep = key < N", "    keep = key <= N", "wrong-comparison"),
]


@pytest.mark.usefixtures("with_changes")
@pytest.mark.parametrize("stage, old, new, id", PLACES)
def test_a_mistake_without_a_name_has_its_line_and_never_its_remedy(stage, old, new, id):
    assert old in solved(stage)
    source = solved(stage).replace(old, new, 1)
    light, = (light for light in lights(source, stage).values() if light.light == "wrong")
    assert light.mistake == id
    line = next(number for number, rows in enumerate(zip(
        source.splitlines(), solved(stage).splitlines(), strict=True), 1) if rows[0] != rows[1])
    assert light.lines[0] == f"problem_{stage}.py:{line}: {light.change}"
    assert old not in light.change


@pytest.mark.usefixtures("with_changes")
@pytest.mark.parametrize("stage, old, new, id", [
    (3, 's = tl.where(keep, s, float("-inf"))', "s = tl.where(keep, s, 0.0)",
     "hidden-scores-zero"),
    (4, "range(0, start_m, BLOCK_N)", "range(0, start_m - BLOCK_N, BLOCK_N)",
     "last-full-tile-skipped"),
    (8, "tl.dot(do, tl.trans(v)) - delta[:, None]", "tl.dot(do, tl.trans(v)) + delta[:, None]",
     "delta-added"),
    (1, "alpha = torch.exp(m_i - m_new)", "alpha = torch.exp(m_i - s.amax(dim=-1))",
     "max-not-running"),
    (1, "acc = alpha[..., None] * acc + p @ v_tile", "acc = acc + p @ v_tile", "acc-not-rescaled"),
    (6, "kv_head = h // (HQ // HKV)", "kv_head = h % HKV", "heads-interleaved")])
def test_a_mistake_with_a_name_has_its_line_and_its_names_words(
        stage, old, new, id):
    assert old in solved(stage)
    source = solved(stage).replace(old, new, 1)
    light, = (light for light in lights(source, stage).values() if light.light == "wrong")
    line = next(number for number, row in enumerate(source.splitlines(), 1) if new in row)
    assert (light.mistake, light.place, light.change) == (id, f"problem_{stage}.py:{line}", "")
    assert light.lines[0] == f"problem_{stage}.py:{line}: {light.says}."


def test_a_mistake_with_a_name_has_no_line_if_two_may_be_wrong(with_changes, monkeypatch):
    monkeypatch.setattr(repair, "find", lambda *_: (repair.Change(
        repair.PLACE, "problem_3.py", 1, "", "", "", (0, 0), 0, "", is_elsewhere_too=True), False))
    source = solved(3).replace('s = tl.where(keep, s, float("-inf"))', "s = s * keep")
    assert lights(source, 3)["3.4"].place == ""


@pytest.mark.parametrize("stage, old, new, said", [
    (3, "% num_tiles * BLOCK_M", "% num_tiles * BLOCK_M + 1", "`+ 1` should not be there."),
    (8, "s = tl.dot(q, tl.trans(k))\n", "s = tl.dot(q, tl.trans(k)) * scale_log2e\n",
     "`* scale_log2e` should not be there."),
    (3, "acc / l_i[:, None]", "acc / (l_i[:, None] + 1.0)", "`+ 1.0` should not be there."),
    (3, "tl.dot(p.to(v.dtype), v, acc * alpha[:, None])",
     "acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, acc)", "`acc` should not be there."),
    (6, "(num_tiles - 1 - tl", "(num_tiles - tl", "`- 1` is missing."),
    (1, "key[None, :] > query[:, None]", "(key[None, :] >= query[:, None]) & (query[:, None] > 0)",
     "problem_1.py:84: The mistake is in this line, or in line 82."),
    (7, "start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N", "start_m - window_size + 1, 0)",
     "This value must be rounded to whole tiles."),
    (3, "query = start_m + tl", "query = tl", "`tl.arange(0, BLOCK_M)`. start_m is missing."),
    (3, "query = start_m + tl.arange(0, BLOCK_M)", "query = start_m + tl.arange(0, BLOCK_N)",
     "`BLOCK_N` is the wrong variable here."),
    (3, "b, h = bh // HQ, bh % HQ", "b, h = bh // N, bh % N", "`N` is the wrong variable here."),
    (3, "lse_ptr + bh * N + query", "lse_ptr + bh + query", "N is missing."),
    (1, "key[None, :] > query[:, None]", "key > query",
     "The axes are wrong in this line, or in line 84."),
    (1, " - shift[..., None])", " - shift)", "`shift` needs a new axis here."),
    (1, " - shift[..., None])", " - shift[:, None])",
     "The new axis of `shift[:, None]` is in the wrong place."),
    (1, "alpha * l_i + p.sum(dim=-1)", "alpha * l_i + p",
     "`alpha * l_i + p`. `p` has one axis too many: its sum is missing."),
    (1, "torch.maximum(m_i, s.amax(dim=-1))", "torch.maximum(m_i, s)",
     "`s` has one axis too many: its maximum is missing."),
    (2, "tl.sum(dy.to(tl.float32)[:, None] * x.to(tl.float32), axis=0)",
     "dy.to(tl.float32)[:, None] * x.to(tl.float32)",
     "This has one axis too many: its sum is missing."),
    (1, "p.sum(dim=-1)", "p.sum(dim=-2)", "`dim=-2` is the wrong axis."),
    (2, "offs_m[:, None] * stride_xm + offs_n[None, :]",
     "offs_m[None, :] * stride_xm + offs_n[:, None]", "[:, None] and [None, :] are swapped."),
    (3, "alpha = tl.math.exp2(m_i - m_new)", "alpha = m_i - m_new", "`exp2` is missing."),
    (9, "-tl.sum(tl.math.exp2(sink * LOG2E - lse_log2) * delta)",
     "-(tl.math.exp2(sink * LOG2E - lse_log2) * delta)",
     "This has one axis too many: its sum is missing."),
    (1, "torch.exp(m_i - m_new)", "torch.exp(m_i - m_new[..., None])",
     "`[..., None]` should not be there."),
    (1, "p = torch.exp(s - m_new[..., None])", "p = torch.exp(s) - m_new[..., None]",
     "`- m_new[..., None]` belongs inside of `torch.exp`."),
    (1, "(do_tile * o_tile)", "(do_tile + o_tile)", "`+` is the wrong operator."),
    (2, "dy, x, dw, M", "dy, w, dw, M", "`w` is the wrong variable here."),
    (3, "b, h = bh // HQ, bh % HQ", "b, h = bh // HQ, bh", "HQ is missing."),
    (8, "dv = tl.dot(p_t.to(do.dtype), do, dv)", "dv = tl.dot(tl.trans(p_t).to(do.dtype), do, dv)",
     "`p_t` must not be transposed here."),
    (8, "dk = tl.dot(ds_t.to(q.dtype), q, dk)", "dk = tl.dot(tl.trans(ds_t.to(q.dtype)), q, dk)",
     "`ds_t.to(q.dtype)` must not be transposed here."),
    (3, "s = tl.dot(q, tl.trans(k))", "s = tl.dot(q, k)", "`k` must be transposed here."),
    (1, "s = q @ k.transpose(-1, -2)", "s = q @ k", "`k` must be transposed here."),
    (1, "(do_tile @ v_tile.tr", "(do_tile * v_tile.tr", "`*` is the wrong operator."),
    (3, "tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)",
     "tl.load(ptrs)", "mask= is missing."),
    (3, "element_ty), mask=(rows[:, None] < N) & (j < D))", "element_ty))",
     "mask= is missing."),
    (3, "element_ty), mask=(rows[:, None] < N) & (j < D))", "element_ty), mask=j < D)",
     "The mask lacks a condition."),
    (2, "mask=mask_m[:, None] & mask_n[None, :], other", "mask=mask_m[:, None], other",
     "The mask lacks a condition."),
    (3, "(start + i < N) & (j < D)", "j < D", "`j < D`. A condition is missing in `inside`."),
    (3, "(start + i < N) & (j < D)", "start + i < N", "A condition is missing in `inside`."),
    (4, "range(start_m, start_m + BLOCK_M,", "range(start_m, BLOCK_M,", "start_m is missing."),
    (2, "offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)", "offs_m = tl.program_id(0)",
     "offs_m is one number here, not a tile: tl.arange is missing."),
    (3, "tl.program_id(0) % num_tiles * BLOCK_M", "tl.program_id(0) % num_tiles",
     "BLOCK_M is missing."),
    (3, "tl.program_id(0) % num_tiles * BLOCK_M", "tl.program_id(0) * BLOCK_M",
     "num_tiles is missing."),
    (3, "bh = tl.program_id(0) // num_tiles\n    b, h = bh // HQ, bh % HQ\n    start_m = "
     "tl.program_id(0) %", "bh = tl.program_id(0) % num_tiles\n    b, h = bh // HQ, bh % HQ\n    "
     "start_m = tl.program_id(0) //", "`//` and `%` are swapped, here and in line 82."),
    (3, "tl.math.log2(l_i)) * LN2", "tl.math.log2(l_i)) * LOG2E",
     "`LOG2E` is the wrong variable here."),
    (3, "tl.math.log2(l_i)) * LN2", "tl.math.log2(l_i)) / LN2", "`/` is the wrong operator."),
    (6, "range(first, inner, BLOCK_N)", "range(first, start_m, BLOCK_N)",
     "`start_m` is the wrong variable here."),
    (6, "start_m + BLOCK_M - window_size", "start_m - window_size",
     "`start_m - window_size`. BLOCK_M is missing."),
    (8, "bh // HKV, bh % HKV", "bh // HQ, bh % HQ", "`HQ` is the wrong variable here."),
    (8, "inner = start_n + BLOCK_N if", "inner = start_n if", "BLOCK_N is missing."),
    (8, "dk = tl.dot(ds_t.to(q.dtype), q, dk)", "dk = tl.dot(ds_t.to(q.dtype), k, dk)",
     "`k` is the wrong variable here."),
    (1, " - dlse[:, :, m]", " - dlse",
     "`dlse` is the whole tensor: this tile's part is dlse[:, :, m]."),
    (1, "lse[:, :, m, None]", "lse[:, :, None, m]",
     "The new axis of `lse[:, :, None, m]` is in the wrong place."),
    (8, "_store(dq_ptr, dq * scale,", "_store(dq_ptr, dq * scale * LOG2E,",
     "`* LOG2E` should not be there."),
    (3, "(start + i < N)", "(i < N)", "`i < N`. start is missing."),
    (6, "start_m - window_size + 1", "start_m - window_size + 2",
     "`2` is the wrong value here."),
    (3, "(bh * N + rows)[:, None] * D", "(bh * N + rows)[:, None] * N",
     "`N` is the wrong variable here."),
    (6, "    inner = tl.minimum(inner, start_m)\n", "    pass\n",
     "This value must not exceed start_m."),
    (5, "b, h = bh // HQ, bh % HQ", "b, h = bh // HKV, bh % HKV",
     "`HKV` is the wrong variable here."),
    (1, "p.sum(dim=-1)\n            a", "p.sum()\n            a", "`p.sum()`. dim= is missing."),
    (8, "_store(dq_ptr, dq * scale,", "_store(dq_ptr, dq * scale * scale,",
     "`* scale` is there once too often."),
    (3, "range(0, whole, BLOCK_N)", "range(0, whole)",
     "`range(0, whole)`. The argument step is missing."),
    (3, "N:\n        acc, l_i, m_i = _attend", "N:\n        _attend",
     "`acc, l_i, m_i =` is missing."),
    (3, "BLOCK_N):\n        acc, l_i, m_i = _attend", "BLOCK_N):\n        _attend",
     "`acc, l_i, m_i =` is missing."),
    (7, "acc / l_i[:, None], bh", "acc.to(o_ptr.dtype.element_ty) / l_i[:, None], bh",
     "`acc.to(o_ptr.dtype.element_ty)`. A dtype is wrong here."),
    (3, "p = tl.math.exp2(s", "p = tl.exp(s", "`exp` is the wrong function."),
    (7, "sink_end = tl.minimum(sink_size, first)",
     "sink_end = tl.minimum(sink_size, first) // BLOCK_N * BLOCK_N",
     "first) // BLOCK_N * BLOCK_N`. `//` rounds down, but this must be rounded up."),
    (6, "tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N",
     "tl.cdiv(tl.maximum(start_m - window_size + 1, 0), BLOCK_N) * BLOCK_N",
     "BLOCK_N) * BLOCK_N`. `tl.cdiv` rounds up, but this must be rounded down."),
    (8, "p_t * (tl.dot(v, tl.trans(do)) - delta[None, :])",
     "p_t * tl.dot(v, tl.trans(do)) - delta[None, :]",
     "`- delta[None, :]` must be computed before `p_t *`."),
    (4, "tl.sum(p, axis=1)", "tl.sum(p, axis=0)",
     "`tl.sum(p, axis=0)`. `axis=0` is the wrong axis."),
    (4, "scale_log2e - m_new[:, None]", "scale_log2e - m_new[None, :]",
     "`m_new[None, :]` is a row, but a column is needed."),
    (8, "scale_log2e - lse_log2[None, :]", "scale_log2e - lse_log2[:, None]",
     "`lse_log2[:, None]` is a column, but a row is needed."),
])
@pytest.mark.usefixtures("with_changes")
def test_the_piece_that_is_changed_is_named(stage, old, new, said, monkeypatch):
    monkeypatch.setattr(repair, "OTHERS", 30)  # a quarter of the time; other tests keep all
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert f"{light.place}: {light.change}".endswith(said)
    assert light.change in "\n".join(light.lines)
    assert light.lines[0].startswith(f"problem_{stage}.py:")


@pytest.mark.parametrize("stage, old, new, said", [
    (8, "outer = tl.maximum(N // BLOCK_M * BLOCK_M, inner)", "outer = tl.maximum(N, inner)",
     "outer is 70 and should be 64; first=0, inner=16 are right. "),
    (6, "    inner = tl.minimum(inner, start_m)\n", "    pass\n",
     "inner is 80 and should be 64; first="),
    (4, "range(0, start_m, BLOCK_N)", "range(0, start_m + BLOCK_N, BLOCK_N)",
     "The tile at 64 is visited twice; it should be visited once."),
    (7, "range(0, sink_end, BLOCK_N)", "range(0, 0, BLOCK_N)", "tiles   0* 16* 32* 48* 64* 80*"),
    (8, "lse_ptr + row", "lse_ptr", "want lse_ptr + row; got lse_ptr."),
    (3, "tl.math.exp2(m_i - m_new)", "tl.exp(m_i - m_new)", "use the same base for both"),
    (3, "p = tl.math.exp2(s", "p = tl.exp(s", "alpha and the weights use different bases."),
    (1, "torch.maximum(m_i, s.amax(dim=-1))", "torch.maximum(m_i, s.max(dim=-1))",
     "values and indices; x.amax(dim=...) "),
    (1, "m_new = torch.maximum(m_i, s.amax(dim=-1))", "m_new = s.max(dim=-1)",
     "values and indices; x.amax(dim=...) "),
    (1, "p = torch.exp(s - lse[:, :, m, None])", "p = torch.softmax(s)",
     "Try: say along which axis"),
])
def test_what_was_wanted_is_said_beside_what_came(stage, old, new, said):
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert any(said in line for line in light.lines), light.lines


BESIDE = """
@triton.jit
def step(x, y, z):
    first = x - y
    keep = first - y
    _leave(locals())
"""


@pytest.mark.parametrize("right, id, said", [
    (["first = z - y"], "wrong-name", "4: `x - y`. `x` is the wrong variable here."),
    (["first = 0 - y"], "wrong-number", "4: `x - y`. `x` is the wrong value here."),
    (["first = z - y", "first = 0 - y"], repair.PLACE, "4: `x - y`. `x` is wrong here."),
    (["first = z - y", "first = x - z"], repair.PLACE, "4: The mistake is in this line."),
    (["first = z - y", "keep = first - z"], repair.PLACE,
     "4: The mistake is in this line, or in line 5."),
    (["first = x + y", "first = z - y"], "wrong-operator",
     "4: `x - y`. `-` is the wrong operator."),
    (["first = (x + 1) - y", "first = (x - y) + 1"], "one-missing",
     "4: `x - y`. `+ 1` is missing."),
])
def test_of_several_changes_that_repair_a_step_only_what_all_share_is_said(right, id, said):
    given = {"x": 1, "y": 2, "z": 3}
    asked = StepSpec(("keep",), lambda: [Example("", given, lambda left: None)])

    def ask(texts, examples):
        return [[frozenset() if any(one in text for one in right) else frozenset(["keep"])]
                for text in texts]

    change, _ = repair.find(
        BESIDE, asked, "problem_3.py", [], (0, Observed([given], [], {}), "keep"),
        [frozenset(["keep"])], ask, lambda tried: False)
    assert (change.id, f"{change.line}: {change.words}") == (id, said)


@pytest.mark.usefixtures("with_changes")
@pytest.mark.parametrize("stage, old, new, said", [
    (3, "if RAGGED or BLOCK_D != D else", "if RAGGED else",
     "`RAGGED`. The condition is too narrow."),
    (7, "range(0, sink_end, BLOCK_N)", "range(sink_size, sink_end, BLOCK_N)",
     "`sink_size` is the wrong value here."),
    (3, "lse_ptr + bh * N + query", "lse_ptr + h * N + query", "`h` is the wrong variable here."),
    (8, "dv = tl.dot(p_t.to(do.dtype), do, dv)", "dv = tl.dot(p_t.to(do.dtype), q, dv)",
     "`q` is the wrong variable here."),
    (9, "tl.math.exp2(sink * LOG2E - lse_log2)", "tl.math.exp2(sink - lse_log2)",
     "LOG2E is missing."),
])
def test_a_change_that_may_be_another_is_not_told_as_one_of_names(stage, old, new, said):
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert light.change.endswith(said), light.lines


@pytest.mark.usefixtures("with_changes")
def test_flags_that_are_all_wrong_are_told_together():
    source = solved(4).replace("MASKED=False)", "MASKED=None)").replace(
        "MASKED=True)", "MASKED=False)").replace("MASKED=None)", "MASKED=True)")
    light, = (light for light in lights(source, 4).values() if light.light == "wrong")
    assert light.mistake == "wrong-flag"
    assert "MASKED= has the wrong value, here and in line " in light.change


@pytest.mark.parametrize("stage, id, other, of, said", [
    (4, "4.2", "3.2", 3, "this is step 3.2 unchanged; here the keys after the query are hidden"),
    (4, "4.6", "3.6", 3, "this is step 3.6 unchanged; here the keys after the query are hidden"),
    (6, "6.4", "4.2", 4, "this is step 4.2 unchanged; here the window ends on the left, too"),
    (6, "6.7", "3.5", 3, "this is step 3.5 unchanged; here a row may not have seen a key yet"),
    (6, "6.8", "4.6", 4, "this is step 4.6 unchanged; here the keys before the window are hidden"),
    (7, "7.8", "6.8", 6, "this is step 6.8 unchanged; here the sinks are visible, too"),
    (8, "8.18", "4.6", 4, "this is step 4.6 unchanged; here CAUSAL may be False"),
])
def test_an_earlier_step_that_should_have_changed_is_recognised(stage, id, other, of, said):
    rows, theirs = submission.lines(solved(stage)), submission.lines(solved(of))
    step = next(one for one in submission.steps(solved(stage)) if one.id == id)
    source = next(one for one in submission.steps(solved(of)) if one.id == other)
    rows[step.first_line:step.last_line - 1] = [
        *theirs[source.first_line:source.last_line - 1], "    # as before\n"]
    light = lights("".join(rows), stage)[id]
    assert light.light == "wrong" and light.mistake
    assert light.says.startswith(said), light


def test_what_does_as_the_earlier_step_did_is_told_though_its_text_is_another():
    source = solved(4)
    step = next(one for one in submission.steps(source) if one.id == "4.2")
    rows = submission.lines(source)
    rows[step.first_line:step.last_line - 1] = [
        "    for start_n in range(0, N, BLOCK_N):\n"
        "        last = start_n + BLOCK_N > N\n"
        "        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N,\n"
        "                                scale * LOG2E, D, BLOCK_N, MASKED=last)\n"]
    light = lights("".join(rows), 4)["4.2"]
    assert light.mistake == earlier.ID
    other = lights(solved(4).replace("start_m + BLOCK_M, BLOCK_N)", "BLOCK_M + BLOCK_N, BLOCK_N)"),
                   4)["4.2"]
    assert "step 3.2" not in " ".join(other.lines)
    assert light.says.startswith("this does what step 3.2 does; here the keys")


def test_every_step_that_differs_from_an_earlier_one_is_run_on_its_own():
    assert all(entry(id) and entry(other) for id, (other, _) in earlier.CHANGES.items())


def test_what_a_step_keeps_on_the_class_of_its_ctx_is_no_error_in_it():
    old = "dw = torch.empty(N, "
    assert old in solved(2)
    assert lights(solved(2).replace(old, "dw = type(ctx).dw = torch.empty(N, ", 1), 2)[
        "2.6"].light == "right"


@pytest.mark.parametrize("stage, id, old, new, said", [
    (1, "1.1", "math.sqrt(q.shape[-1])", "math.isqrt(q.shape[-1])", "sqrt(D) is rounded down"),
    (1, "1.5", "acc / l_i[..., None]", "acc / l_i[..., None] * 1.5",
     "Every wrong element of o_tile is 1.5 times the right one."),
    (3, "3.4", "s = tl.dot(q, tl.trans(k))\n", "s = tl.dot(q, tl.trans(k)) * D**-0.5\n",
     "Every wrong element of s is 0.25 times the right one."),
    (8, "8.9", "delta_ptr + bh * N + query", "delta_ptr + query",
     "The rows of head 1 are stored in head 0 of delta_ptr: the head in the address is missing or"),
    (3, "3.3", "lse_ptr + bh * N + query", "lse_ptr + query",
     "The rows of head 1 are stored in head 0 of lse: the head in the address is missing or"),
    (3, "3.3", "lse_ptr + bh * N + query", "lse_ptr + h * N + query",
     "The rows of head 2 are stored in head 0"),
    (3, "3.2", "whole = N // BLOCK_N * BLOCK_N", "whole = N // BLOCK_M * BLOCK_M",
     "Query 0 never reaches key 48"),
    (4, "4.6", "keep = key <= query", "keep = key[None, :] <= query[:, None]",
     "query and key have two axes each already"),
    (2, "2.2", "x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other=0.0)\n        w",
     "x = tl.trans(tl.load(x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other=0.0))\n        w",
     "want shape (16, 32); got (32, 16), its transpose"),
    (2, "2.3", "acc += tl.sum(x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1)",
     "acc = x * w[None, :]", "want shape (16,); got (16, 32): the last axis is not summed"),
    (1, "1.3", "m_new[..., None])\n            alpha", "m_new[..., None]).bfloat16().float()\n"
     "            alpha", "An error this small usually comes from rounding to 16 bits"),
    (1, "1.5", "torch.log(l_i)", "torch.log(l_i + 1e-5)", "(30 of 30 are wrong). Given: "),
    (8, "8.10", "_store(dq_ptr, dq * scale,", "_store(dq_ptr, dq * scale * LOG2E,",
     "is 1.4427 (log2(e)) times the right one."),
])
def test_what_a_wrong_number_means_is_said(stage, id, old, new, said):
    assert old in solved(stage)
    light = lights(solved(stage).replace(old, new, 1), stage)[id]
    assert light.light == "wrong" and said in " ".join(light.lines), light.lines


@pytest.mark.parametrize("ratio, names, said", [
    (1.5**0.5, {}, "1.2247 (sqrt(1.5))"), (LOG2E, {}, "1.4427 (log2(e))"), (-2.0, {"N": 2}, "-2"),
    (0.36, {"scale_log2e": 0.36}, "0.36 (scale_log2e)"), (0.36, {"a": 0.36, "b": 0.36}, "0.36"),
    (40.0, {"N": 40}, "40"),
    (11**-0.5, {"D": 11}, "0.30151 (1 / sqrt(D))"), (0.777, {}, "0.777")])
def test_a_factor_has_a_name_where_it_is_that_of_a_constant(ratio, names, said):
    assert factor(ratio, names) == said


def test_what_is_special_about_the_row_that_is_shown_is_said():
    right = "m_new = torch.maximum(m_i, s.amax(dim=-1))"
    assert right in solved(1)
    found = lights(solved(1).replace(right, "m_new = s.amax(dim=-1)"), 1)["1.3"]
    assert "In this row the maximum does not change" in found.lines[1], found.lines


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


# A mistake in one part of a loop; its id, and what is said of the part.
PARTS = [
    (3, "if whole < N:", "if whole < N - 1:",
     "phase-too-short", "the loop over the ragged last tile ends too early"),
    (3, "range(0, whole, BLOCK_N)", "range(BLOCK_N, whole, BLOCK_N)",
     "phase-too-late", "the loop over the full tiles begins too late"),
    (6, "range(inner, start_m, BLOCK_N)", "range(first, start_m, BLOCK_N)",
     "phase-too-early", "the loop over the interior begins too early"),
    (7, "sink_end = tl.minimum(sink_size, first)", "sink_end = sink_size",
     "phase-too-long", "the loop over the sinks before the window runs too far"),
    (7, "range(0, sink_end, BLOCK_N)", "range(0, 0, BLOCK_N)",
     "phase-left-out", "the loop over the sinks before the window is missing or empty"),
    (9, "range(outer, last, BLOCK_M)", "range(last, last, BLOCK_M)",
     "dkdv-phase-left-out", "the loop over the right edge is missing or empty"),
    (9, "tl.maximum(outer // BLOCK_M * BLOCK_M, inner)", "outer // BLOCK_M * BLOCK_M",
     "border-wrong", "outer is 80 and should be 96; first=80, inner=96, last=98 are right. The "
     "tile at 80 is visited twice; it should be visited once"),
    (6, "start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N",
     "start_m - window_size + 1, 0) // BLOCK_N", "border-wrong",
     "`first` counts tiles instead of rows"),
    (6, "tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N",
     "start_m - window_size + 1", "border-wrong", "`first` must not be below 0, and must be "
     "rounded down to whole tiles"),
    (6, "tl.minimum(inner, start_m)", "tl.minimum(inner, start_m) - BLOCK_N", "border-wrong",
     "`inner` is one tile too small"),
]


@pytest.mark.parametrize("stage, old, new, id, said", PARTS)
def test_a_wrong_part_of_a_walk_has_its_name(stage, old, new, id, said):
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert light.mistake == id
    assert said in light.lines[0]
    assert light.lines[-1].startswith("it should visit tiles")


@pytest.mark.usefixtures("with_changes")
def test_the_line_of_a_wrong_part_is_said_in_the_place_of_the_rule():
    stage, old, new, id, _ = PARTS[0]
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert light.mistake == id and not light.rule
    assert light.lines[0].startswith("problem_3.py:")


def test_a_maximum_never_below_0_is_not_said_to_be_taken_before_the_mask():
    right = "m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)"
    source = solved(6).replace(right, f"{right}\n    m_new = tl.maximum(m_new, 0.0)")
    light = lights(source, 6)["6.7"]
    assert light.mistake == "blind-row-max" and "m_new[2] is 0" in light.lines[0]
    assert not light.says


def test_what_no_single_change_mends_is_told_as_it_was_seen(with_changes, monkeypatch):
    monkeypatch.setattr(repair, "MOST", 20)
    source = solved(3).replace("p = tl.math.exp2(s * scale_log2e - m_new[:, None])",
                               "p = tl.cos(s) * 0.3 + 0.1")
    light = lights(source, 3)["3.5"]
    assert (light.light, light.mistake) == ("wrong", None)
    assert light.lines[-2].startswith("l_i[") and light.lines[-1] == (
        "The search for the cause ended early. To search 10 times longer: "
        f"{overview.alone('3.5', runner(3).options.directory)}")


def test_a_search_that_tried_everything_does_not_say_that_more_exists(with_changes):
    light = lights(solved(4).replace("keep = key <= query", "keep = key < key"), 4)["4.6"]
    assert light.light == "wrong" and not light.says and not light.untried


def test_under_a_cause_that_is_told_no_search_is_offered(with_changes):
    source = solved(2).replace("(grid_m * grid_n,)", "(grid_m, grid_n)")
    said = lights(source, 2)["2.6"].lines
    assert "numbered along one axis" in said[0] and len(said) == 1


def test_step_searches_longer_than_a_run_of_the_stage(with_changes, monkeypatch):
    monkeypatch.setattr(repair, "MOST", 8)
    source = solved(3).replace("(start + i < N)", "(i < N)")
    assert lights(source, 3)["3.7"].untried
    one = Runner(STAGES[3], Options(ROOT, "cpu", 1, 60.0), submitted(source, 3), thorough=True)
    one.times = 100
    with contextlib.closing(one):
        light = next(light for light in one.lights("3.7") if light.id == "3.7")
    assert light.change == "`i < N`. start is missing." and not light.untried


def test_a_busy_machine_changes_nothing_of_what_a_search_finds(with_changes, monkeypatch):
    source = solved(4).replace("num_tiles - 1 - tl", "num_tiles - tl")
    idle = lights(source, 4)["4.1"]
    step = Session.step

    def late(session, request):  # each request waits as it would beside many other processes
        time.sleep(0.1)
        return step(session, request)
    monkeypatch.setattr(Session, "step", late)
    assert idle.change and lights(source, 4)["4.1"] == idle


def test_of_two_mistakes_one_is_placed_where_it_alone_makes_a_name_right(
        with_changes, monkeypatch):
    monkeypatch.setattr(repair, "MOST", 100)  # it goes on for one that makes all right
    right = "    lse = (m_i + tl.math.log2(l_i)) * LN2"
    source = solved(3).replace(right, f"{right} + 1.0")
    light = lights(source.replace("acc / l_i[:, None], bh", "acc, bh"), 3)["3.3"]
    assert light.seen[0].startswith("o, row 16 of head 1, column 0: want ")
    line = 2 + source.splitlines().index(f"{right} + 1.0")  # what stores o
    assert light.place == f"problem_3.py:{line}"
    assert light.change.endswith("l_i is missing. Fixing that makes o right.")


def test_every_kind_of_change_is_said_in_words_and_has_its_turn():
    assert repair.WORDS.keys() == edits.RANKS.keys()


@pytest.mark.parametrize("stage, old, new, said", [
    (2, "mask_m[:, None] & mask_n[None, :]", "mask_m[:, None] and mask_n[None, :]", "`and` does"),
    (4, "keep = key <= query", "keep = not key > query", "`not` asks"),
    (6, "(age >= 0) & (age < window_size)", "0 <= age < window_size", "a chain of comparisons"),
    (3, "(start + i < N) & (j < D)", "start + i < N & j < D", "a chain"),
    (3, "    keep = key < N", "    keep = (key <= N) and (key < N + 1)", "`and` does not")])
def test_tiles_that_are_joined_by_words_are_named_whatever_else_is_wrong(stage, old, new, said):
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert light.mistake == "truth-of-a-tile"
    assert said in light.change and light.lines[0].startswith(f"problem_{stage}.py:")


def test_the_steps_that_changed_since_the_last_save_are_checked_first(monkeypatch):
    before, source = solved(3), solved(3).replace("keep = key < N", "keep = key <= N")
    assert changed(submitted(source, 3), None) == set()
    one = Runner(STAGES[3], Options(ROOT, "cpu", 1, 60.0), submitted(source, 3))
    one.first, asked = changed(submitted(source, 3), before.encode()), []
    monkeypatch.setattr(one, "light", lambda id, *more: asked.append(id) or StepCheck(id, "right"))
    assert [check.id for check in one.check_steps()] == list(one.blanks.steps)
    assert (asked[:2], one.first) == (["3.6", "3.1"], {"3.6"})
