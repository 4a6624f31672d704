"""Stage 8 with one backward kernel: a program owns a key tile and adds to dq with atomics."""
# stage: 8
# base: problem_8.py
# outcome: pass


@triton.jit
def _backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, o_strides, HQ, HKV, N, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """dq is float32, and zero at the start."""
    bkv, start_n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_N
    b, kv = bkv // HKV, bkv % HKV
    key, column = start_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)[None, :]
    k = _load(_head(k_ptr, k_strides, b, kv), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)
    v = _load(_head(v_ptr, v_strides, b, kv), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    group = HQ // HKV
    for h in range(kv * group, kv * group + group):
        row = (b * HQ + h) * N
        q_head, do_head = _head(q_ptr, q_strides, b, h), _head(do_ptr, o_strides, b, h)
        for start_m in range(start_n if CAUSAL else 0, N, BLOCK_M):
            query = start_m + tl.arange(0, BLOCK_M)
            q = _load(q_head, start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
            do = _load(do_head, start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
            lse = _load_row(lse_ptr + row, query, N, float("inf"), RAGGED=True)
            delta = _load_row(delta_ptr + row, query, N, 0.0, RAGGED=True)
            keep = _keep(query[:, None], key[None, :], N, CAUSAL)
            p = tl.where(keep, tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)
            ds = (p * (tl.dot(do, tl.trans(v)) - delta[:, None])).to(q.dtype)
            dv += tl.dot(tl.trans(p.to(do.dtype)), do)
            dk += tl.dot(tl.trans(ds), q)
            tl.atomic_add(dq_ptr + (row + query[:, None]) * D + column, tl.dot(ds, k) * scale,
                          mask=(query[:, None] < N) & (column < D))
    _store(dk_ptr, dk * scale, bkv, key, N, D)
    _store(dv_ptr, dv, bkv, key, N, D)


class _WithAtomics(FlashAttentionGQAFunction):
    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        (B, HQ, N, _), HKV, tiles = q.shape, k.shape[1], _tiles(q)
        tiles["BLOCK_M"] = tiles["BLOCK_N"] = tiles["BLOCK_N"] // 2  # shared memory holds seven
        delta, do = (do.float() * o.float()).sum(-1), do.contiguous()
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        _backward_kernel[(B * HKV, triton.cdiv(N, tiles["BLOCK_N"]))](
            q, k, v, do, lse, delta, dq, dk, dv, q.stride(), k.stride(), v.stride(), do.stride(),
            HQ, HKV, N, ctx.scale, CAUSAL=ctx.is_causal, num_stages=1, **tiles)
        return dq.to(q.dtype), dk, dv, None, None


FlashAttentionGQAFunction = _WithAtomics
