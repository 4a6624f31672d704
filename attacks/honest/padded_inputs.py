"""Stage 4 on padded inputs: PyTorch pads rows and columns, so the kernel needs no border masks."""
# stage: 4
# outcome: pass
import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def causal_kernel(q, k, v, o, rows, scale, D: tl.constexpr, T: tl.constexpr):
    """q, k, v, o: contiguous (heads, rows, D), rows a multiple of T, D a power of two.

    The zero rows at the end come after every real query, so the causal mask hides them.
    """
    tiles = rows // T
    mine = tl.program_id(0) % tiles
    base = (tl.program_id(0) // tiles).to(tl.int64) * rows * D
    n, d = tl.arange(0, T), tl.arange(0, D)
    tile = base + n[:, None] * D + d[None, :]
    queries = tl.load(q + tile + mine * T * D)
    m = tl.full([T], float("-inf"), tl.float32)
    norm = tl.zeros([T], tl.float32)
    acc = tl.zeros([T, D], tl.float32)
    for j in range(0, mine):  # tiles wholly before the diagonal
        keys = tl.load(k + tile + j * T * D)
        s = tl.dot(queries, keys.trans()) * scale
        m_new = tl.maximum(m, tl.max(s, 1))
        p, alpha = tl.exp(s - m_new[:, None]), tl.exp(m - m_new)
        values = tl.load(v + tile + j * T * D)
        acc = acc * alpha[:, None] + tl.dot(p.to(values.dtype), values)
        norm = norm * alpha + tl.sum(p, 1)
        m = m_new
    # The tile on the diagonal.
    keys = tl.load(k + tile + mine * T * D)
    s = tl.where(n[:, None] >= n[None, :], tl.dot(queries, keys.trans()) * scale, float("-inf"))
    last = tl.maximum(m, tl.max(s, 1))
    p, alpha = tl.exp(s - last[:, None]), tl.exp(m - last)
    values = tl.load(v + tile + mine * T * D)
    acc = acc * alpha[:, None] + tl.dot(p.to(values.dtype), values)
    norm = norm * alpha + tl.sum(p, 1)
    tl.store(o + tile + mine * T * D, (acc / norm[:, None]).to(o.dtype.element_ty))


def flash_attention_forward(q, k, v, is_causal=True):
    if not is_causal:
        raise ValueError("want is_causal=True; got False")
    B, H, N, D = q.shape
    tile, width = 32, max(16, triton.next_power_of_2(D))
    extra = -N % tile
    q, k, v = (F.pad(x, (0, width - D, 0, extra)).contiguous() for x in (q, k, v))
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    causal_kernel[((N + extra) // tile * B * H,)](q, k, v, o, N + extra, D**-0.5, D=width, T=tile)
    return o[:, :, :N, :D]
