"""Stage 9 with the long walks of sink tiles cut into parts, which PyTorch adds up; products come
before weights, and dk and dv only where somebody wants one of them."""
# stage: 9
# base: problem_9.py
# outcome: pass


@triton.jit
def _add_dkdv(
    dk, dv, k, v, q_head, do_head, lse_ptr, delta_ptr, key, start_m, N,
    window_size, sink_size, scale_log2e,
    D: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):
    """The products of the scores first; dP^T - delta in one go, from an accumulator of -delta."""
    q = _load(q_head, start_m, N, D, k.shape[1], BLOCK_M, RAGGED=MASKED)
    do = _load(do_head, start_m, N, D, k.shape[1], BLOCK_M, RAGGED=MASKED)
    query = start_m + tl.arange(0, BLOCK_M)
    s_t = tl.dot(k, tl.trans(q))
    delta = _load_row(delta_ptr, query, N, 0.0, RAGGED=MASKED)
    ds_t = tl.dot(v, tl.trans(do), tl.zeros_like(s_t) - delta[None, :])
    lse_log2 = _load_row(lse_ptr, query, N, float("inf"), RAGGED=MASKED) * LOG2E
    p_t = tl.math.exp2(s_t * scale_log2e - lse_log2[None, :])
    if MASKED:
        keep = _keep(query[None, :], key[:, None], N, window_size, sink_size, CAUSAL)
        p_t = tl.where(keep, p_t, 0.0)
    ds_t *= p_t
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    dk = tl.dot(ds_t.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def _parts_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, o_strides, HQ, HKV, N, window_size, sink_size, scale,
    first_tile, num_tiles, rows_out,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One part of the walk of one key tile from first_tile on.  Grid: (tiles and heads, parts)."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    bh = (tl.program_id(0) // num_tiles).to(tl.int64)
    b, kv_head = bh // HKV, bh % HKV
    start_n = (first_tile + tl.program_id(0) % num_tiles) * BLOCK_N
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load(_head(k_ptr, k_strides, b, kv_head), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)
    v = _load(_head(v_ptr, v_strides, b, kv_head), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)
    first, last = 0, N
    if CAUSAL:
        first = start_n
        if start_n >= sink_size:
            last = tl.minimum(start_n + BLOCK_N - 1 + window_size, N)
    group, tiles = HQ // HKV, tl.cdiv(last - first, BLOCK_M)
    steps = group * tiles  # one loop for all heads of the group
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for t in range(part * steps // parts, (part + 1) * steps // parts):
        h = kv_head * group + t // tiles
        row = (b * HQ + h) * N
        dk, dv = _add_dkdv(
            dk, dv, k, v, _head(q_ptr, q_strides, b, h), _head(do_ptr, o_strides, b, h),
            lse_ptr + row, delta_ptr + row, key, first + t % tiles * BLOCK_M, N,
            window_size, sink_size, scale * LOG2E, D, BLOCK_M, CAUSAL, MASKED=True)
    slot = part * (tl.num_programs(0) // num_tiles) + bh
    _store(dk_ptr, dk * scale, slot, key - first_tile * BLOCK_N, rows_out, D)
    _store(dv_ptr, dv, slot, key - first_tile * BLOCK_N, rows_out, D)


class _InParts(FlashSWDAWithSinkFunction):
    @staticmethod
    def backward(ctx, do):
        q, k, v, sink_logits, o, lse = ctx.saved_tensors
        window_size, sink_size, scale, is_causal = ctx.options
        (B, HQ, N, D), HKV = q.shape, k.shape[1]
        do, tiles = do.contiguous(), _tiles(q)
        dq, delta, dk, dv, dsink = torch.empty_like(o), torch.empty_like(lse), None, None, None
        strides = q.stride(), k.stride(), v.stride(), o.stride()
        rest = HQ, HKV, N, window_size, sink_size, scale
        options = dict(CAUSAL=is_causal, num_stages=2, **tiles)
        rows = triton.cdiv(N, tiles["BLOCK_M"])
        if sink_logits is not None:
            dsink = torch.empty(B, HQ, rows, device=q.device, dtype=torch.float32)
        with torch.cuda.device(q.get_device()):
            _dq_kernel[(rows * B * HQ,)](
                q, k, v, sink_logits, o, do, lse, delta, dq, dsink, *strides, *rest, **options)
            if any(ctx.needs_input_grad[1:3]):
                columns = triton.cdiv(N, tiles["BLOCK_N"])
                sinks = triton.cdiv(sink_size, tiles["BLOCK_N"]) if is_causal else 0
                made = torch.empty(2, B, HKV, N, D, device=q.device, dtype=q.dtype)
                for first, count, parts in ((0, sinks, 3), (sinks, columns - sinks, 1)):
                    if count == 0:
                        continue
                    length = min(count * tiles["BLOCK_N"], N - first * tiles["BLOCK_N"])
                    sums = torch.empty(2, parts, B, HKV, length, D, device=q.device,
                                       dtype=torch.float32)
                    _parts_kernel[(count * B * HKV, parts)](
                        q, k, v, do, lse, delta, *sums.unbind(), *strides, *rest,
                        first, count, length, **options)
                    start = first * tiles["BLOCK_N"]
                    made[:, :, :, start:start + length] = sums.sum(1)
                dk, dv = made.unbind()
        if dsink is not None:
            dsink = dsink.sum(dim=(0, 2)).to(sink_logits.dtype)
        return dq, dk, dv, None, None, None, None, dsink


FlashSWDAWithSinkFunction = _InParts
