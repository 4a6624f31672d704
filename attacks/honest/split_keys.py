"""Stage 3 with the keys split over several programs, and a second kernel that combines them."""
# stage: 3
# outcome: pass
import torch
import triton
import triton.language as tl

SPLITS = 4
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def part_kernel(
    q_ptr, k_ptr, v_ptr, part_ptr, lse_ptr, H, N, keys_a_split, scale,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):
    """One query tile over one part of the keys: its own o, normalised, and its base-2 lse."""
    bh, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    b, h = bh // H, bh % H
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, BLOCK_D)
    in_d = col[None, :] < D
    at = q_ptr + b * sqb + h * sqh + row[:, None].to(tl.int64) * sqn + col[None, :] * sqd
    q = tl.load(at, mask=(row[:, None] < N) & in_d, other=0.0)
    first = split * keys_a_split
    last = tl.minimum(first + keys_a_split, N)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    for start in range(first, last, BLOCK):
        key = start + tl.arange(0, BLOCK)
        seen = (key[:, None] < last) & in_d
        far = key[:, None].to(tl.int64)
        k = tl.load(k_ptr + b * skb + h * skh + far * skn + col[None, :] * skd, seen, 0.0)
        v = tl.load(v_ptr + b * svb + h * svh + far * svn + col[None, :] * svd, seen, 0.0)
        s = tl.dot(q, tl.trans(k)) * scale * LOG2E
        s = tl.where(key[None, :] < last, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        old = tl.exp2(top - new)
        total = total * old + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * old[:, None])
        top = new
    # A part without keys has lse = -inf and so no weight; its o is zero, not 0 / 0.
    some = tl.where(total > 0, total, 1.0)
    slot = (bh * SPLITS + split) * N + row
    tl.store(lse_ptr + slot, top + tl.log2(some), mask=row < N)
    tl.store(part_ptr + slot[:, None] * D + col[None, :], acc / some[:, None],
             mask=(row[:, None] < N) & in_d)


@triton.jit
def combine_kernel(part_ptr, lse_ptr, o_ptr, N, D: tl.constexpr, BLOCK_D: tl.constexpr,
                   SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    bh = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, BLOCK_D)
    inside = (row[:, None] < N) & (col[None, :] < D)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        slot = (bh * SPLITS + split) * N + row
        top = tl.maximum(top, tl.load(lse_ptr + slot, mask=row < N, other=0.0))
    weights = tl.zeros([BLOCK], tl.float32)
    o = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    for split in tl.static_range(SPLITS):
        slot = (bh * SPLITS + split) * N + row
        weight = tl.exp2(tl.load(lse_ptr + slot, mask=row < N, other=0.0) - top)
        part = tl.load(part_ptr + slot[:, None] * D + col[None, :], mask=inside, other=0.0)
        weights += weight
        o += part * weight[:, None]
    o = (o / weights[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + (bh * N + row[:, None]) * D + col[None, :], o, mask=inside)


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    BLOCK, BLOCK_D = 32, max(16, triton.next_power_of_2(D))
    keys_a_split = triton.cdiv(triton.cdiv(N, BLOCK), SPLITS) * BLOCK
    part = torch.empty((B, H, SPLITS, N, D), dtype=torch.float32, device=q.device)
    lse = torch.empty((B, H, SPLITS, N), dtype=torch.float32, device=q.device)
    o = torch.empty((B, H, N, D), dtype=q.dtype, device=q.device)
    tiles = triton.cdiv(N, BLOCK)
    part_kernel[(B * H, tiles, SPLITS)](
        q, k, v, part, lse, H, N, keys_a_split, D**-0.5, *q.stride(), *k.stride(), *v.stride(),
        D, BLOCK_D, SPLITS, BLOCK)
    combine_kernel[(B * H, tiles)](part, lse, o, N, D, BLOCK_D, SPLITS, BLOCK)
    return o
