"""Stage 3 without tl.dot: a program walks the keys one by one, and both products are plain sums."""
# stage: 3
# outcome: pass
# options: --timeout 240
import torch
import triton
import triton.language as tl


@triton.jit
def walk_keys(
    q_ptr, k_ptr, v_ptr, o_ptr, n_heads, length, width, root,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):
    batch = tl.program_id(0).to(tl.int64) // n_heads
    head = tl.program_id(0).to(tl.int64) % n_heads
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDTH)
    inside = (rows[:, None] < length) & (cols[None, :] < width)
    q_base = q_ptr + batch * q_batch + head * q_head
    q = tl.load(q_base + rows[:, None] * q_row + cols[None, :] * q_col, mask=inside, other=0.0)
    q = q.to(tl.float32) / root
    k_at = k_ptr + batch * k_batch + head * k_head + cols * k_col
    v_at = v_ptr + batch * v_batch + head * v_head + cols * v_col
    maximum = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    denominator = tl.zeros([ROWS], dtype=tl.float32)
    numerator = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for _ in range(length):
        k = tl.load(k_at, mask=cols < width, other=0.0).to(tl.float32)
        v = tl.load(v_at, mask=cols < width, other=0.0).to(tl.float32)
        score = tl.sum(q * k[None, :], axis=1)
        larger = tl.maximum(maximum, score)
        weight = tl.exp(score - larger)
        keep = tl.exp(maximum - larger)
        denominator = denominator * keep + weight
        numerator = numerator * keep[:, None] + weight[:, None] * v[None, :]
        maximum = larger
        k_at += k_row
        v_at += v_row
    o = numerator / denominator[:, None]
    o_at = o_ptr + (tl.program_id(0).to(tl.int64) * length + rows[:, None]) * width + cols[None, :]
    tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=inside)


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    width = triton.next_power_of_2(D)  # without tl.dot even D = 1 is a legal tile
    rows = min(4096 // width, 256)
    walk_keys[(B * H, triton.cdiv(N, rows))](
        q, k, v, o, H, N, D, D**0.5, *q.stride(), *k.stride(), *v.stride(),
        ROWS=rows, WIDTH=width)
    return o
