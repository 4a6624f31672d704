"""A beginner's slip is told by its cause, in the line where it is."""

import pytest

from tests.step_checks.blanks import lights, solved, with_change

INF = 'float("-inf")'
DROPPED = "s = s.masked_fill("
STORE = "tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])"
DIAGONAL = solved(4)[solved(4).index("    for start_n in range(start_m, start_m +"):].partition(
    "    # END")[0]
SLIPS = [
    # a dtype
    (1, "1.1", "s = q @ k", "s = q.half() @ k.half()", "s is float16: keep it in float32."),
    (1, "1.1", "s = q @ k", "s = q.bfloat16() @ k.bfloat16()", "got bfloat16: keep it in float32"),
    (1, "1.5", "m_i + torch.log(l_i)", "(m_i + torch.log(l_i)).half()", "lse_tile is float16"),
    # whole tensors in place of this tile's parts, and a second mistake beside that
    (1, "1.6", "(do_tile * o_tile)", "(do * o)", "`do` and `o` are whole tensors: this tile's"),
    (1, "1.6", "(do_tile * o_tile).sum(dim=-1) - dlse[:, :, m]", "(do * o).sum(-1)",
     "dlse is missing"),
    (1, "1.8", "@ do_tile\n", "@ o_tile\n", "`o_tile` is the wrong variable here."),
    (1, "1.7", "lse[:, :, m, None]", "lse[..., None]",
     "`lse` is the whole tensor: this tile's part is lse[:, :, m]."),
    (1, "1.8", "scale * ds.transpose(-1, -2) @ q_tile", "scale * ds.transpose(-1, -2) @ q",
     "`q` is the whole tensor: this tile's part is q_tile."),
    (1, "1.8", "dv[:, :, n] +=", "dv +=",
     "`dv` is the whole tensor: this tile's part is dv[:, :, n]."),
    (1, "1.8", "dq[:, :, m] +=", "dq = dq +",
     "`dq` is the whole tensor: this tile's part is dq[:, :, m]."),
    (1, "1.1", "start_m + torch.arange(q.shape[-2]", "torch.arange(start_m, start_m + BLOCK_M",
     "BLOCK_M is the size of a whole tile, and the last tile is smaller: here q.shape[-2] is 5."),
    # a wrong factor of a gradient
    (1, "1.8", "scale * ds.transpose(", "scale * p.transpose(", "dk is computed from P"),
    (1, "1.8", "dk[:, :, n] += scale * ds", "dk[:, :, n] += ds", "dk is not multiplied by scale"),
    (1, "1.8", "dq[:, :, m] += scale * ds", "dq[:, :, m] += ds", "dq is not multiplied by scale"),
    # a return
    (2, "2.4", STORE, "return dx", "a kernel returns nothing. The result must be stored: tl.store"),
    (8, "8.10", "_store(dq_ptr, dq * scale, bh, query, N, D)", "return dq * scale",
     "The result must be stored: _store is missing."),
    (4, "4.6", "keep = key <= query", "return key <= query",
     "a step does not return. Assign to keep; the code below goes on with that."),
    # the order of assignments; results that nobody keeps, or that count twice
    (1, "1.3", "            p = torch", "            m_i = m_new\n            p = torch",
     "`m_i` is overwritten too early: line 137 still needs its old value."),
    (3, "3.5", "    p = tl", "    m_i = m_new\n    p = tl", "`m_i` is overwritten too early"),
    (1, "1.1", DROPPED, DROPPED[4:], "changes nothing by itself. Keep what it returns: s = ..."),
    (8, "8.15", "dk, dv = _add_dkdv(", "_add_dkdv(", "Keep what it returns: dk, dv = ..."),
    (8, "8.15", "dk, dv = _add_dkdv(dk, dv,", "dk, dv = _add_dkdv(dk * 0, dv * 0,",
     "gets dk = 0. It should get dk with the shares of the group's earlier heads."),
    (3, "3.2", "    whole =", "    acc = tl.zeros_like(acc)\n    whole =",
     "gets acc = 0. It should get acc with what it held before the loop."),
    # addresses and texts in place of numbers
    (2, "2.4", "dx = dy[:, None] *", "dx = dy_ptr[:, None] *", "dy_ptr is an address, not the"),
    (2, "2.4", "dy = tl.load(dy_ptr + offs_m * stride_dym, mask=mask_m, other=0.0).to(tl.float32)",
     "dy = dy_ptr + offs_m * stride_dym", "a pointer is an address, not the number there"),
    (3, "3.3", "acc / l_i[:, None]", "acc / lse_ptr", "lse_ptr is an address, not the numbers"),
    (2, "2.2", "x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other=0.0)",
     "x = x_ptrs", "got an address, of which tl.load reads the numbers"),
    (2, "2.4", "tl.store(dx_ptrs, dx", "tl.store(dx, dx_ptrs", "the address comes first"),
    (3, "3.4", INF, '"-inf"', '"-inf" is a text, not a number. Write float("-inf")'),
    (6, "6.7", INF, '"-inf"', 'a text in quotes is no number: write float("-inf")'),
    (1, "1.1", INF, '"-inf"', 'a text in quotes is no number: write float("-inf")'),
    (1, "1.1", INF, "-inf", 'name \'inf\' is not defined. Try: write float("-inf")'),
    (3, "3.4", "s, float(", "float(", "tl.where(condition, x, y) takes x where"),
    # the mask as a factor
    (1, "1.1", DROPPED + "key[None, :] > query[:, None], " + INF + ")",
     "s = s + (key[None, :] > query[:, None]) * " + INF, "0 * inf is NaN"),
    (1, "1.1", DROPPED + "key[None, :] > query[:, None], " + INF + ")", "s = torch.tril(s)",
     "hidden keys get a score of 0"),
    (8, "8.11", "p = tl.where(keep, p, 0.0)", "p = p * keep", "0 * inf is NaN"),
    (8, "8.16", "p_t = tl.where(keep, p_t, 0.0)", "p_t *= keep", "0 * inf is NaN"),
    # borders
    (9, "9.16", "minimum(start_n + window_size", "minimum(start_n + BLOCK_N - 1 + window_size",
     "`outer` is computed from the tile's youngest key"),
    (9, "9.16", "tl.minimum(inner - 1 + window_size", "tl.minimum(start_n + window_size",
     "`last` is computed from the tile's oldest key"),
    # lengths and offsets in place of ends and addresses
    (1, "1.1", "start_m + torch.arange(q.shape[-2], device", "torch.arange(start_m, q.shape[-2], "
     "device", "ends before q.shape[-2]: the second argument is an end, not a length. Write "
     "start_m + torch.arange(q.shape[-2], device=q.device)"),
    (2, "2.4", "dx_ptr + offs_m", "offs_m", "is an offset, not an address: dx_ptr + is missing."),
    (2, "2.2", "x_ptr + offs_m", "offs_m", "is an offset, not an address: x_ptr + is missing."),
    (3, "3.8", "ptr + (bh", "(bh", "is an offset, not an address: ptr + is missing."),
    # calls with too few or too many arguments, and lines at the wrong depth
    (6, "6.4", "start_n, N, window_size,", "start_n, N,", "window_size is missing in this call of"),
    (8, "8.15", "k, v, q_head, do_head,", "k, v, do_head,", "q_head is missing in this call of"),
    (3, "3.3", "N, D)", "N)", "D is missing in this call of _store."),
    (5, "5.2", "k_strides, b, kv_head", "k_strides, kv_head", "b is missing in this call of _head"),
    (4, "4.2", "query, start_n, N,", "query, start_n, start_n, N,",
     "`start_n` is one argument too many in this call of _attend"),
    (2, "2.6", "dy.stride(0), w.stride(0),", "dy.stride(0),", "stride_wn is missing in this call "
     "of _dx_kernel. It comes before `dx.stride(0)`."),
    (2, "2.6", "dy, x, dw, M", "dy, x, M", "dw_ptr is missing in this call of _dw_kernel."),
    # launches
    (2, "2.6", "dw = torch.empty(N, device=w.device, dtype=w.dtype)", "pass",
     "dw is still None here: allocate it before this launch."),
    (2, "2.6", "dw = torch.empty(N, device=w.device, dtype=w.dtype)\n                _dw_kernel["
     "(grid_n,)](\n                    dy, x, dw,", "out = torch.empty(N, device=w.device, "
     "dtype=w.dtype)\n                _dw_kernel[(grid_n,)](\n                    dy, x, out,",
     "`out` must be called dw: other code reads that name."),
    (4, "4.2", DIAGONAL, DIAGONAL.replace("    ", "        ", 1).replace("\n    ", "\n        "),
     "must not stand in the loop of line 77: it is indented too far."),
    # comparisons without parentheses; functions without them
    (3, "3.7", "(j < D)", "j < D",
     "`&` is computed before `<`: put parentheses around `j < D`."),
    (7, "7.8", "(age >= 0) & (", "age >= 0 & (", "put parentheses around `age >= 0`."),
    (3, "3.1", "tl.program_id(0) //", "tl.program_id //", "`tl.program_id` is not called: the"),
    (3, "3.5", "tl.sum(p, axis=1)", "tl.sum", "`tl.sum` is not called: the parentheses with its"),
    (1, "1.1", "k.transpose(-1, -2)", "k.transpose", "`k.transpose` is not called"),
    (1, "1.2", "end = min(start_m + BLOCK_M, NQ) if is_causal else NK",
     "def last():\n        return min(start_m + BLOCK_M, NQ) if is_causal else NK",
     "`last` is defined here, but never called."),
    (3, "3.6", "keep = key < N", "def sees():\n        return key < N\n    keep = sees()",
     "Triton compiles no function inside of a kernel: write the lines of `sees` without `def`."),
    # a branch that is missing
    (1, "1.2", "end = min(start_m + BLOCK_M, NQ) if is_causal else NK",
     "if is_causal:\n        end = min(start_m + BLOCK_M, NQ)",
     "end is assigned only under this `if`, so it has no value where that does not hold.\n"
     "Here end has no value. Given: start_m=128, NQ=300, NK=300, is_causal=False."),
    (8, "8.3", "edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N",
     "if CAUSAL:\n        edge = start_m", "edge is assigned only under this `if`"),
    (1, "1.2", " if is_causal else NK", "", "the loop ends as in the causal case"),
    (3, "3.4", "    if MASKED:\n        s = tl.where(keep, s, float(\"-inf\"))\n", "",
     "keep is not applied: hidden keys count like visible ones."),
    (8, "8.16", "    if MASKED:\n        p_t = tl.where(keep, p_t, 0.0)\n", "",
     "keep is not applied: hidden keys count like visible ones."),
    # the number of a program
    (2, "2.1", "tl.program_id(0)", "tl.program_id(1)", "`tl.program_id(1)` is always 0, because"),
    (3, "3.1", "tl.program_id(0) // num_tiles", "tl.program_id(1)", "the grid has one axis"),
    (5, "5.1", "tl.program_id(0) // num_tiles", "tl.program_id(axis=1)", "the grid has one axis"),
    # the sink's own weight
    (9, "9.3", "l_i = tl.zeros_like(l_i) + 1.0", "pass", "is not counted in l_i, which is still 0"),
    (9, "9.3", "m_i = tl.zeros_like(m_i) + sink * LOG2E", "pass", "is not in m_i, which is still"),
    # shapes
    (8, "8.9", "axis=1)", "axis=1, keep_dims=True)", "addresses, mask and values need the same"),
    (8, "8.9", "tl.float32), axis=1)", "tl.float32), axis=0)", "delta[0]: want"),
]


@pytest.mark.parametrize("stage, step, old, new, said", SLIPS, ids=lambda value: str(value)[:40])
def test_a_slip_is_told_by_its_cause(stage, step, old, new, said, monkeypatch):
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)
    found = lights(with_change(stage, step, old, new), stage)
    assert [id for id, one in found.items() if one.light == "wrong"] == [step]
    assert said in "\n".join(found[step].lines)


@pytest.mark.parametrize("stage, step, old, new, note", [
    (1, "1.1", INF, "-1e9", "hidden scores are -1e+09, and not -inf: a real score may be as low"),
    (3, "3.4", INF, "-1e6", "hidden scores are -1e+06, and not -inf"),
    (3, "3.4", INF, "-1e30", ""),
    (2, "2.6", "torch.empty(M, N, device=x.device, dtype=x.dtype)", "torch.zeros(M, N)",
     "`torch.zeros(M, N)` makes a tensor on the CPU, in float32"),
    (2, "2.6", "torch.empty(N, device=w.device, dtype=w.dtype)", "torch.empty(N, dtype=w.dtype)",
     "makes a tensor on the CPU, whatever the inputs are: pass device=."),
    (1, "1.1", "q.shape[-2], device=q.device)", "q.shape[-2])", "makes a tensor on the CPU, what"),
    (1, "1.1", "torch.arange(q.shape[-2], device=q.device)",
     "torch.arange(q.shape[-2]).to(q.device)", ""),
    (1, "1.6", "do_tile * o_tile", "do[:, :, m].float() * o_tile", ""),
    (1, "1.5", "l_i[..., None]", "l_i.view(B, H, rows, 1)", ""),
])
def test_what_is_right_and_not_good_gets_a_remark(stage, step, old, new, note):
    assert old in solved(stage)
    found = lights(solved(stage).replace(old, new), stage)[step]
    assert found.light == "right"
    assert note in " ".join(found.seen) if note else not found.seen
