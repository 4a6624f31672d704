"""The mistake in a wrong step has its name, and what is said of it is true of it."""

import numpy as np
import pytest

from grader.assignment import submission
from grader.step_checks import earlier, named
from grader.step_checks.examples import LOG2E, Observed, factor
from grader.step_checks.table import entry
from tests.step_checks.blanks import colours, lights, solved

pytestmark = pytest.mark.usefixtures("no_search")

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
     "_dx_kernel is launched with the grid (2, 3); it should be (6,), because"),
    (2, "2.6", "_dw_kernel[(grid_n,)]", "_dw_kernel[(grid_m,)]",
     "with the grid (2,); it should be (3,)"),
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
    ("(N,)", "_dw_kernel is launched with 300 programs; 3 are enough")])
def test_a_grid_that_triton_takes_is_right(grid, note):
    found = lights(solved(2).replace("_dw_kernel[(grid_n,)]", f"_dw_kernel[{grid}]"), 2)["2.6"]
    assert found.light == "right" and (note in " ".join(found.seen) if note else not found.seen)


def test_a_walk_that_goes_on_in_vain_is_right_with_both_walks_beside_each_other():
    found = lights(solved(4).replace("range(start_m, start_m + BLOCK_M, BLOCK_N)",
                                     "range(start_m, N, BLOCK_N)"), 4)["4.2"]
    assert found.light == "right"
    assert "your loop visits tiles 0 16 32 48 64* 80* 96*, it should" in found.lines[0]


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


@pytest.mark.parametrize(("id", "said"), [
    ("delta-added", "delta is added instead of subtracted: dS = P * (dP + delta)"),
    ("ds-without-p", "dS is not multiplied by P"),
    ("backward-without-lse", "P is computed without subtracting lse"),
    ("dq-heads-divided-by-hkv", "query head h reads key/value head h // HKV")])
def test_a_name_is_said_without_what_no_search_has_tried(id, said):
    assert named.words(id)[0] == said


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
    (3, "keep = key < N", "keep = ...", "keep: want booleans; got `...`, which writes nothing."),
    (9, "tl.minimum(inner - 1 + window_size, N))\n        outer = tl.where(inner <= sink_size, N, "
     "tl.minimum(start_n + window_size, N))", "N)\n        outer = N",
     "outer is 96 and should be 48; first=32, inner=48 are right. "),
])
def test_what_was_wanted_is_said_beside_what_came(stage, old, new, said):
    assert old in solved(stage)
    light, = (light for light in lights(solved(stage).replace(old, new, 1), stage).values()
              if light.light == "wrong")
    assert any(said in line for line in light.lines), light.lines


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
    (2, "2.3", "x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1", "x * w[None, :], axis=1",
     "(15 of 16 are wrong). Given: x of shape"),  # its name says that 16 bits are too few
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
    assert "In this row m_i stays the maximum" in found.lines[1], found.lines


# A mistake in one part of a loop; its id, and what is said of the part.
PARTS = [
    (3, "if whole < N:", "if whole < N - 1:",
     "phase-too-short", "the loop over the ragged last tile ends too early"),
    (3, "range(0, whole, BLOCK_N)", "range(BLOCK_N, whole, BLOCK_N)",
     "phase-too-late", "the loop over the whole tiles begins too late"),
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


def test_a_maximum_never_below_0_is_not_said_to_be_taken_before_the_mask():
    right = "m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)"
    source = solved(6).replace(right, f"{right}\n    m_new = tl.maximum(m_new, 0.0)")
    light = lights(source, 6)["6.7"]
    assert light.mistake == "blind-row-max" and "m_new[2] is 0" in light.lines[0]
    assert not light.says


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


@pytest.mark.parametrize("row, fits", [([-np.inf, np.inf], True), ([np.inf, 1.0], True),
                                       ([np.nan, 2.0], False), ([0.0, 1.0], False)])
def test_which_numbers_of_a_row_overflow_is_up_to_the_processor(row, fits):
    left = Observed([{"acc": np.float32([row])}], [], {})
    assert named.leaves(acc=np.float32([[np.nan, 1.0]]))(left) is fits
