"""A mistake is told by its cause, which running the changed step, or a kernel's strides, proves."""

import contextlib
import time

import pytest

from grader.assignment.record import ROOT
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.host.session import Session
from grader.report import overview
from grader.report.results import StepCheck
from grader.step_checks import edits, repair
from grader.step_checks.checks import Runner
from grader.step_checks.examples import Example, Observed, StepSpec
from tests.step_checks.blanks import colours, lights, runner, solved, submitted, with_change


def light(stage: int, step: str, old: str, new: str) -> StepCheck:
    """Of the solved step with this change."""
    return lights(with_change(stage, step, old, new), stage)[step]


@pytest.mark.parametrize("stage, step, old, new, said", [
    (1, "1.1", "start_m + torch.arange(q.shape[-2]", "torch.arange(start_m, start_m + BLOCK_M",
     "BLOCK_M is the size of a whole tile, and the last tile is smaller: here q.shape[-2] is 5."),
    # the strides of x, which has gaps, for a dx that has none
    (2, "2.6", """\
torch.empty(M, N, device=x.device, dtype=x.dtype)
                _dx_kernel[(grid_m * grid_n,)](
                    dy, w, dx, M, N, dy.stride(0), w.stride(0), dx.""", """\
torch.empty_like(x)
                _dx_kernel[(grid_m * grid_n,)](
                    dy, w, dx, M, N, dy.stride(0), w.stride(0), x.""",
     "is handed stride_dxm=600, and along that axis dx has the stride 300."),
    # vectors in place of matrices; widths; a row that counts twice
    (2, "2.4", "dy[:, None] * w[None, :]", "dy @ w",
     "dy and w are vectors, and @ multiplies matrices. An outer product is a column times a row"),
    (2, "2.4", "dy[:, None] * w[None, :]", "tl.dot(dy, w)", "and tl.dot multiplies matrices."),
    (3, "3.7", "tl.arange(0, BLOCK_D)", "tl.arange(0, D)", "has BLOCK_D columns, not D."),
    (3, "3.8", "tile.shape[1]", "D", "The tile has tile.shape[1] columns, not D."),
    (3, "3.8", "tile.shape[1]", "BLOCK_D", "The tile has tile.shape[1] columns, not BLOCK_D."),
    (3, "3.7", """\
tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N)""", """\
start + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (i < N)""", "start is counted twice: ptr is already the address of row start."),
], ids=lambda value: str(value)[:40])
@pytest.mark.usefixtures("no_search")
def test_a_mistake_is_named_without_a_search(stage, step, old, new, said):
    found = light(stage, step, old, new)
    assert found.light == "wrong" and said in found.lines[0], found.lines


@pytest.mark.parametrize("step, old, new, said", [
    ("1.7", "lse[:, :, m, None]", "lse", "`s - lse[:, :, m]`. `lse[:, :, m]` needs a new axis"),
    ("1.8", "dv[:, :, n] += p.transpose(-1, -2)", "dv += p", "`p` must be transposed here.")])
def test_a_second_mistake_beside_a_whole_tensor_is_found(step, old, new, said):
    found = light(1, step, old, new)
    assert found.mistake == "whole-tensor" and "is the whole tensor" in found.lines[0]
    assert said in found.lines[-1], found.lines


def test_a_fault_in_the_search_for_a_mistake_leaves_the_step_red(monkeypatch):
    monkeypatch.setattr(repair, "find", lambda *_: 1 / 0)
    found = lights(solved(1).replace("m_i + torch.log(l_i)", "m_i + 2 * torch.log(l_i)"), 1)
    assert colours(found, "wrong") == ["1.5"]


# A mistake, and the line of the step in which it stands.
PLACES = [
    (1, "l_i = alpha * l_i + p.sum(dim=-1)", "l_i = alpha * l_i + p.sum(dim=-2)",
     "shapes-do-not-broadcast"),
    (3, "b, h = bh // HQ, bh % HQ", "h, b = bh // HQ, bh % HQ", "names-exchanged"),
    (3, "lse, mask=query < N)", "lse)", "wrong-argument"),
    (3, "acc / l_i[:, None], bh", "acc, bh", "one-missing"),
    (3, "    keep = key < N", "    keep = key <= N", "wrong-comparison"),
]


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


def test_a_mistake_with_a_name_has_no_line_if_two_may_be_wrong(monkeypatch):
    monkeypatch.setattr(repair, "find", lambda *_: (repair.Change(
        repair.PLACE, "problem_3.py", 1, "", "", "", (0, 0), 0, "", is_elsewhere_too=True), False))
    source = solved(3).replace('s = tl.where(keep, s, float("-inf"))', "s = s * keep")
    assert lights(source, 3)["3.4"].place == ""


@pytest.mark.parametrize("stage, old, new, said", [
    (3, "% num_tiles * BLOCK_M", "% num_tiles * BLOCK_M + 1", "`+ 1` should not be there."),
    (8, "s = tl.dot(q, tl.trans(k))\n", "s = tl.dot(q, tl.trans(k)) * scale_log2e\n",
     "`* scale_log2e` should not be there."),
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
    (1, "key[None, :] > query[:, None]", "key > query",
     "The axes are wrong in this line, or in line 84."),
    (1, " - shift[..., None])", " - shift)", "`shift` needs a new axis here."),
    (1, " - shift[..., None])", " - shift[:, None])",
     "The new axis of `shift[:, None]` is in the wrong place."),
    (1, "alpha * l_i + p.sum(dim=-1)", "alpha * l_i + p",
     "`alpha * l_i + p`. `p` has one axis too many: its sum is missing."),
    (1, "torch.maximum(m_i, s.amax(dim=-1))", "torch.maximum(m_i, s)",
     "`s` has one axis too many: its maximum is missing."),
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
    (3, "s = tl.dot(q, tl.trans(k))", "s = tl.dot(q, k)", "`k` must be transposed here."),
    (3, "tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)",
     "tl.load(ptrs)", "mask= is missing."),
    (3, "element_ty), mask=(rows[:, None] < N) & (j < D))", "element_ty), mask=j < D)",
     "The mask lacks a condition."),
    (3, "(start + i < N) & (j < D)", "j < D", "`j < D`. A condition is missing in `inside`."),
    (2, "offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)", "offs_m = tl.program_id(0)",
     "offs_m is one number here, not a tile: tl.arange is missing."),
    (3, "tl.program_id(0) % num_tiles * BLOCK_M", "tl.program_id(0) % num_tiles",
     "BLOCK_M is missing."),
    (3, "bh = tl.program_id(0) // num_tiles\n    b, h = bh // HQ, bh % HQ\n    start_m = "
     "tl.program_id(0) %", "bh = tl.program_id(0) % num_tiles\n    b, h = bh // HQ, bh % HQ\n    "
     "start_m = tl.program_id(0) //", "`//` and `%` are swapped, here and in line 82."),
    (6, "range(first, inner, BLOCK_N)", "range(first, start_m, BLOCK_N)",
     "`start_m` is the wrong variable here."),
    (6, "start_m + BLOCK_M - window_size", "start_m - window_size",
     "`start_m - window_size`. BLOCK_M is missing."),
    (1, " - dlse[:, :, m]", " - dlse",
     "`dlse` is the whole tensor: this tile's part is dlse[:, :, m]."),
    (6, "start_m - window_size + 1", "start_m - window_size + 2",
     "`2` is the wrong value here."),
    (6, "    inner = tl.minimum(inner, start_m)\n", "    pass\n",
     "This value must not exceed start_m."),
    (1, "p.sum(dim=-1)\n            a", "p.sum()\n            a", "`p.sum()`. dim= is missing."),
    (8, "_store(dq_ptr, dq * scale,", "_store(dq_ptr, dq * scale * scale,",
     "`* scale` is there once too often."),
    (3, "range(0, whole, BLOCK_N)", "range(0, whole)",
     "`range(0, whole)`. The argument step is missing."),
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
    (4, "scale_log2e - m_new[:, None]", "scale_log2e - m_new[None, :]",
     "`m_new[None, :]` is a row, but a column is needed."),
    (8, "scale_log2e - lse_log2[None, :]", "scale_log2e - lse_log2[:, None]",
     "`lse_log2[:, None]` is a column, but a row is needed."),
])
def test_the_piece_that_is_changed_is_named(stage, old, new, said, monkeypatch):
    monkeypatch.setattr(repair, "OTHERS", 30)  # a quarter of the time; other tests keep all
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert f"{light.place}: {light.change}".endswith(said)
    assert light.change in "\n".join(light.lines)
    assert light.lines[0].startswith(f"problem_{stage}.py:")


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


def test_flags_that_are_all_wrong_are_told_together():
    source = solved(4).replace("MASKED=False)", "MASKED=None)").replace(
        "MASKED=True)", "MASKED=False)").replace("MASKED=None)", "MASKED=True)")
    light, = (light for light in lights(source, 4).values() if light.light == "wrong")
    assert light.mistake == "wrong-flag"
    assert "MASKED= has the wrong value, here and in line " in light.change


def test_the_line_of_a_wrong_part_is_said_in_the_place_of_the_rule():
    found = light(3, "3.2", "if whole < N:", "if whole < N - 1:")
    assert found.mistake == "phase-too-short" and not found.rule
    assert found.lines[0].startswith("problem_3.py:")


def test_what_no_single_change_mends_is_told_as_it_was_seen(monkeypatch):
    monkeypatch.setattr(repair, "MOST", 20)
    source = solved(3).replace("p = tl.math.exp2(s * scale_log2e - m_new[:, None])",
                               "p = tl.cos(s) * 0.3 + 0.1")
    light = lights(source, 3)["3.5"]
    assert (light.light, light.mistake) == ("wrong", None)
    assert light.lines[-2].startswith("l_i[") and light.lines[-1] == (
        "The search for the cause ended early. To search 10 times longer: "
        f"{overview.alone('3.5', runner(3).options.directory)}")


def test_a_search_that_tried_everything_does_not_say_that_more_exists():
    light = lights(solved(4).replace("keep = key <= query", "keep = key < key"), 4)["4.6"]
    assert light.light == "wrong" and not light.says and not light.untried


def test_under_a_cause_that_is_told_no_search_is_offered():
    source = solved(2).replace("(grid_m * grid_n,)", "(grid_m, grid_n)")
    said = lights(source, 2)["2.6"].lines
    assert "numbered along one axis" in said[0] and len(said) == 1


def test_step_searches_longer_than_a_run_of_the_stage(monkeypatch):
    monkeypatch.setattr(repair, "MOST", 8)
    source = solved(3).replace("(start + i < N)", "(i < N)")
    assert lights(source, 3)["3.7"].untried
    one = Runner(STAGES[3], Options(ROOT, "cpu", 1, 60.0), submitted(source, 3), thorough=True)
    one.times = 100
    with contextlib.closing(one):
        light = next(light for light in one.lights("3.7") if light.id == "3.7")
    assert light.change == "`i < N`. start is missing." and not light.untried


def test_a_busy_machine_changes_nothing_of_what_a_search_finds(monkeypatch):
    source = solved(4).replace("num_tiles - 1 - tl", "num_tiles - tl")
    idle = lights(source, 4)["4.1"]
    step = Session.step

    def late(session, request):  # each request waits as it would beside many other processes
        time.sleep(0.1)
        return step(session, request)
    monkeypatch.setattr(Session, "step", late)
    assert idle.change and lights(source, 4)["4.1"] == idle


def test_of_two_mistakes_one_is_placed_where_it_alone_makes_a_name_right(monkeypatch):
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
