"""Stage 3 in float32 throughout: q, k, v cast before the kernel, and o cast back after it."""
# stage: 3
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def _update(acc, m, l, s, v):  # noqa: E741
    """The online softmax: one tile of scores and values into the running sums."""
    m_new = tl.maximum(m, tl.max(s, axis=1))
    p = tl.exp(s - m_new[:, None])
    alpha = tl.exp(m - m_new)
    return acc * alpha[:, None] + tl.dot(p, v), m_new, l * alpha + tl.sum(p, axis=1)


@triton.jit
def _kernel(q, k, v, o, N, scale, D: tl.constexpr, DP: tl.constexpr, B: tl.constexpr):
    """Everything is contiguous float32 (heads, N, D)."""
    head = tl.program_id(0).to(tl.int64)
    n, d = tl.arange(0, B), tl.arange(0, DP)
    inner = head * N * D + n[:, None] * D + d[None, :]
    start = tl.program_id(1).to(tl.int64) * B
    q_mask = (start + n < N)[:, None] & (d < D)[None, :]
    q_tile = tl.load(q + inner + start * D, mask=q_mask, other=0.0) * scale
    acc = tl.zeros([B, DP], tl.float32)
    m = tl.zeros([B], tl.float32) - float("inf")
    l = tl.zeros([B], tl.float32)  # noqa: E741
    for j in range(0, N, B):
        mask = (j + n < N)[:, None] & (d < D)[None, :]
        k_tile = tl.load(k + inner + j * D, mask=mask, other=0.0)
        v_tile = tl.load(v + inner + j * D, mask=mask, other=0.0)
        s = tl.where((j + n < N)[None, :], tl.dot(q_tile, tl.trans(k_tile)), float("-inf"))
        acc, m, l = _update(acc, m, l, s, v_tile)  # noqa: E741
    tl.store(o + inner + start * D, acc / l[:, None], mask=q_mask)


def flash_attention_forward(q, k, v, is_causal=False):
    if is_causal:
        raise ValueError("want is_causal=False; got True")
    dtype, (B, H, N, D) = q.dtype, q.shape
    q, k, v = (x.to(torch.float32).contiguous() for x in (q, k, v))
    o = torch.empty_like(q)
    _kernel[(B * H, triton.cdiv(N, 32))](
        q, k, v, o, N, D**-0.5, D=D, DP=max(16, triton.next_power_of_2(D)), B=32)
    return o.to(dtype)
