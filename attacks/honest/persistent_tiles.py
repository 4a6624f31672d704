"""Stage 4 with a fixed grid that loops over tiles; o lies as (B, N, H, D) and comes back a view."""
# stage: 4
# outcome: pass
import torch
import triton
import triton.language as tl

PROGRAMS = 12  # any number is right


@triton.jit
def one_tile(
    q_ptr, k_ptr, v_ptr, o_ptr, start, N, scale, q_row, q_col, k_row, k_col, v_row, v_col, o_row,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
):
    """Rows start ... start + TILE - 1 of one head."""
    row = start + tl.arange(0, TILE)
    col = tl.arange(0, BLOCK_D)
    real = (row < N)[:, None] & (col < D)[None, :]
    q = tl.load(q_ptr + row[:, None].to(tl.int64) * q_row + col[None, :] * q_col, real, 0.0)
    m_i = tl.full((TILE,), float("-inf"), tl.float32)
    l_i = tl.full((TILE,), 0.0, tl.float32)
    acc = tl.full((TILE, BLOCK_D), 0.0, tl.float32)
    key = tl.arange(0, TILE)
    for _ in range(0, start + TILE, TILE):
        seen = (key < N)[:, None] & (col < D)[None, :]
        k = tl.load(k_ptr + key[:, None].to(tl.int64) * k_row + col[None, :] * k_col, seen, 0.0)
        v = tl.load(v_ptr + key[:, None].to(tl.int64) * v_row + col[None, :] * v_col, seen, 0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where(row[:, None] >= key[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
        key += TILE
    o = (acc / l_i[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + row[:, None].to(tl.int64) * o_row + col[None, :], o, real)


@triton.jit
def persistent_kernel(
    q, k, v, o, B, H, N, scale, qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
):
    tiles = tl.cdiv(N, TILE)
    for job in range(tl.program_id(0), B * H * tiles, tl.num_programs(0)):
        # In the interpreter a loop variable is a Python int, which has no .to().
        head = tl.cast(job // tiles, tl.int64)
        b, h = head // H, head % H
        one_tile(
            q + b * qb + h * qh, k + b * kb + h * kh, v + b * vb + h * vh, o + (b * N * H + h) * D,
            job % tiles * TILE, N, scale, qn, qd, kn, kd, vn, vd, H * D, D, BLOCK_D, TILE)


def flash_attention_forward(q, k, v, is_causal=True):
    if not is_causal:
        raise ValueError("want is_causal=True; got False")
    B, H, N, D = q.shape
    o = torch.empty(B, N, H, D, dtype=q.dtype, device=q.device)
    persistent_kernel[(PROGRAMS,)](
        q, k, v, o, B, H, N, D**-0.5, *q.stride(), *k.stride(), *v.stride(),
        D=D, BLOCK_D=max(16, triton.next_power_of_2(D)), TILE=32)
    return o.transpose(1, 2)
