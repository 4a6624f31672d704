"""Stage 6 as a torch.library.custom_op, with @triton.heuristics and a while loop in the kernel."""
# stage: 6
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.heuristics({
    "BLOCK_D": lambda args: max(16, triton.next_power_of_2(args["D"])),
    "EVEN": lambda args: args["N"] % args["BLOCK"] == 0 and args["D"] in (16, 32, 64, 128),
})
@triton.jit
def windowed(
    q, k, v, o, HQ, HKV, N, W, scale,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, EVEN: tl.constexpr,
):
    bh = tl.program_id(0).to(tl.int64)
    b, h, start = bh // HQ, bh % HQ, tl.program_id(1) * BLOCK
    i, d = start + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    q_at = q + b * q_b + h * q_h + i[:, None].to(tl.int64) * q_n + d[None, :] * q_d
    k_at = k + b * k_b + h // (HQ // HKV) * k_h + d[None, :] * k_d
    v_at = v + b * v_b + h // (HQ // HKV) * v_h + d[None, :] * v_d
    if EVEN:
        q_tile = tl.load(q_at)
    else:
        q_tile = tl.load(q_at, mask=(i[:, None] < N) & (d[None, :] < D), other=0.0)
    m_i = tl.full([BLOCK], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    # Backwards from the diagonal, whose tile has a visible key for every row.
    n0 = start
    while n0 > start - W - BLOCK + 1 and n0 >= 0:
        j = n0 + tl.arange(0, BLOCK)
        j64 = j[:, None].to(tl.int64)
        if EVEN:
            k_tile, v_tile = tl.load(k_at + j64 * k_n), tl.load(v_at + j64 * v_n)
        else:
            real = (j[:, None] < N) & (d[None, :] < D)
            k_tile = tl.load(k_at + j64 * k_n, mask=real, other=0.0)
            v_tile = tl.load(v_at + j64 * v_n, mask=real, other=0.0)
        age = i[:, None] - j[None, :]
        s = tl.dot(q_tile, tl.trans(k_tile)) * scale
        s = tl.where((age >= 0) & (age < W), s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p, alpha = tl.exp(s - m_new[:, None]), tl.exp(m_i - m_new)
        acc = acc * alpha[:, None] + tl.dot(p.to(v_tile.dtype), v_tile)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
        n0 -= BLOCK
    o_at = o + (bh * N + i[:, None]) * D + d[None, :]
    tl.store(o_at, (acc / l_i[:, None]).to(o.dtype.element_ty),
             mask=(i[:, None] < N) & (d[None, :] < D))


@torch.library.custom_op("course::windowed_attention", mutates_args=())
def windowed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window_size: int
) -> torch.Tensor:
    B, HQ, N, D = q.shape
    o = torch.empty(B, HQ, N, D, dtype=q.dtype, device=q.device)
    windowed[(B * HQ, triton.cdiv(N, 32))](
        q, k, v, o, HQ, k.shape[1], N, min(window_size, N), D**-0.5,
        *q.stride(), *k.stride(), *v.stride(), D=D, BLOCK=32)
    return o


@windowed_attention.register_fake
def _(q, k, v, window_size):
    return q.new_empty(q.shape)


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    if not is_causal or window_size < 1:
        raise ValueError(f"want a causal mask, window_size >= 1; got {is_causal}, {window_size}")
    return windowed_attention(q, k, v, window_size)
