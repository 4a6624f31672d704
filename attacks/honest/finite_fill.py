"""Stage 6 with -1e30 for hidden scores instead of minus infinity, and their weights set to 0."""
# stage: 6
# outcome: pass
import torch
import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)


@triton.jit
def visible(query, key, window):
    return (key[None, :] <= query[:, None]) & (query[:, None] - key[None, :] < window)


@triton.jit
def swa_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, heads, group, length, window, scale,
    D: tl.constexpr, BD: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):
    """All tensors contiguous: (B, heads, length, D), k and v with heads // group heads."""
    bh, start_q = tl.program_id(0).to(tl.int64), tl.program_id(1) * BQ
    row = start_q + tl.arange(0, BQ)
    kv = bh // heads * (heads // group) + bh % heads // group
    col = tl.arange(0, BD)
    ok_col = col[None, :] < D
    q = tl.load(q_ptr + (bh * length + row[:, None]) * D + col[None, :],
                mask=(row[:, None] < length) & ok_col, other=0.0)
    m = tl.full([BQ], HIDDEN, tl.float32)
    norm = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, BD], tl.float32)
    first = tl.maximum(start_q - window + 1, 0)
    for start in range(first, tl.minimum(start_q + BQ, length), BK):
        key = start + tl.arange(0, BK)
        at = (kv * length + key[:, None]) * D + col[None, :]
        k = tl.load(k_ptr + at, mask=(key[:, None] < length) & ok_col, other=0.0)
        v = tl.load(v_ptr + at, mask=(key[:, None] < length) & ok_col, other=0.0)
        keep = visible(row, key, window)
        s = tl.where(keep, tl.dot(q, tl.trans(k)) * scale, HIDDEN)
        new = tl.maximum(m, tl.max(s, 1))
        # In a row without a visible key so far, s - new is 0: the weight must not be 1.
        p = tl.where(keep, tl.exp(s - new[:, None]), 0.0)
        alpha = tl.exp(m - new)
        norm = norm * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m = new
    tl.store(o_ptr + (bh * length + row[:, None]) * D + col[None, :],
             (acc / norm[:, None]).to(o_ptr.dtype.element_ty),
             mask=(row[:, None] < length) & ok_col)
    tl.store(lse_ptr + bh * length + row, m + tl.log(norm), mask=row < length)


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    B, HQ, N, D = q.shape
    if not is_causal or window_size < 1 or HQ % k.shape[1]:
        raise ValueError("want a causal mask, window_size >= 1 and HQ a multiple of HKV")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o, lse = torch.empty_like(q), torch.empty(B, HQ, N, dtype=torch.float32, device=q.device)
    swa_kernel[(B * HQ, triton.cdiv(N, 64))](
        q, k, v, o, lse, HQ, HQ // k.shape[1], N, min(window_size, N), D**-0.5,
        D, max(16, triton.next_power_of_2(D)), 64, 32, num_stages=2)
    return o, lse
