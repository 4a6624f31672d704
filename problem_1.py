"""Problem 1 -- FlashAttention in PyTorch: tiles and the online softmax.

Attention lets every query look at every key:

    S = q k^T / sqrt(D)      P = softmax(S), row by row      o = P v

Written that way, S and P are (NQ, NK) matrices.  At N = 16384 and 16 heads one
of them takes 8 GiB in bfloat16, while q, k, v and o take 32 MiB each (D = 64).
FlashAttention computes the same o and never holds more than one tile of S.

Tiles.  Cut the queries into tiles of BLOCK_M rows and the keys into tiles of
BLOCK_N rows.  One tile of S needs one tile of q and one of k, nothing else:

               keys ->   tile 0   tile 1   tile 2
    queries    tile 0  [   S00      S01      S02  ]  -> one tile of o
               tile 1  [   S10      S11      S12  ]  -> the next tile of o

The obstacle: the softmax divides by a sum over a whole row of S, which we never have.

Online softmax.  While looping over the key tiles, keep these for each query:

    m_i   the largest score so far
    l_i   sum of exp(s - m_i) over the scores so far
    acc   sum of exp(s - m_i) v over the keys so far, not yet divided

When a tile brings a larger maximum m_new, the sums made with the old maximum are
too large by the factor exp(m_new - m_i).  So they are multiplied by alpha:

    alpha = exp(m_i - m_new)            l_i <- alpha l_i + rowsum(p)
    p     = exp(s - m_new)              acc <- alpha acc + p v

After the last tile  o = acc / l_i.  Nothing was approximated: the maximum
cancels in exact arithmetic, and in floating point it keeps exp from overflowing.

Log-sum-exp.  lse = m_i + log(l_i) is all the backward needs of the softmax:
P = exp(S - lse) can be recomputed tile by tile instead of being stored.

Backward.  With the incoming gradients do and dlse, and delta = rowsum(do * o):

    dv = P^T do                 dP = do v^T
    dS = P * (dP - delta + dlse)        (* is elementwise; delta and dlse are columns)
    dq = dS k / sqrt(D)         dk = dS^T q / sqrt(D)

Raise S_k by a small e: P_k rises by e P_k, and through the denominator every P_j of
its row falls by e P_j P_k.  So dS_k = P_k dP_k - sum_j P_j P_k dP_j, which is
P_k (dP_k - rowsum(P * dP)).  That sum seems to need a whole row of P; but it equals
do . (P v) = do . o = delta, which does not.
lse is an output, too, and dlse is its incoming gradient, zero if lse was not used.
d lse / dS = P, row by row, so dlse joins delta inside the parentheses.

Shapes      q, o: (B, H, NQ, D)    k, v: (B, H, NK, D)    lse: (B, H, NQ), natural logarithm
Dtypes      float16, bfloat16, float32.  Scores, statistics and sums run in float32.
Causal      query i sees keys 0 ... i; this needs NQ == NK.  D is at most 128.

Check       python autograder.py --p1
Stuck       python autograder.py --hint 1.1      (any step number)
Guide       "Stage 1" of the companion guide; README.md says where it is
Source      FlashAttention-2, arXiv 2307.08691, Algorithms 1 and 2 (their Br, Bc are
            our BLOCK_M, BLOCK_N); online softmax: arXiv 1805.02867.
"""

import math

import torch

# Each iteration of a Python loop costs time, so tiles are large and iterations few.  The
# size of a tile does not depend on N, so memory stays linear in N.
BLOCK_M = 128
BLOCK_N = 128


# -------------------------------------------------------------------- tiles
def _masked_scores(q: torch.Tensor, k: torch.Tensor, start_m: int, start_n: int, is_causal: bool):
    """A tile of S, float32.  q has BLOCK_M rows, k has BLOCK_N; the last tiles may have fewer."""
    # Step 1.1 -- The scores of this tile, hidden keys at minus infinity.
    #   s: q k^T / sqrt(D).  start_m and start_n are the sequence positions of row 0
    #   and column 0.  Causal: query i sees key j only if j <= i.  Use -inf, not a
    #   large negative number: exp(-inf) is exactly 0 whatever the other scores are.
    # BEGIN SOLUTION 1.1
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        query = start_m + torch.arange(q.shape[-2], device=q.device)
        key = start_n + torch.arange(k.shape[-2], device=q.device)
        s = s.masked_fill(key[None, :] > query[:, None], float("-inf"))
    # END SOLUTION 1.1
    return s


def _key_end(start_m: int, NQ: int, NK: int, is_causal: bool) -> int:
    """First key that no query of the tile at start_m can see."""
    # Step 1.2 -- Where may the loop over the keys stop?
    #   Without a mask: NK.  Causal: the tile's last query sees itself and nothing
    #   later; stopping there saves half the work.  The last tile may have fewer rows.
    # BEGIN SOLUTION 1.2
    end = min(start_m + BLOCK_M, NQ) if is_causal else NK
    # END SOLUTION 1.2
    return end


# ------------------------------------------------------------------ forward
def flash_attention_tiled(q, k, v, is_causal=False):
    """Compute attention tile by tile.

    Args:
        q: (B, H, NQ, D), any strides.
        k, v: (B, H, NK, D), any strides; dtype and device of q.
        is_causal: hide keys after the query.  Needs NQ == NK.

    Returns:
        o: (B, H, NQ, D), contiguous, dtype of q.
        lse: (B, H, NQ), float32, natural logarithm.
    """
    B, H, NQ, D = q.shape
    NK = k.shape[2]
    o = torch.empty(B, H, NQ, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, H, NQ, device=q.device, dtype=torch.float32)

    for start_m in range(0, NQ, BLOCK_M):
        q_tile = q[:, :, start_m : start_m + BLOCK_M].float()
        rows = q_tile.shape[2]  # BLOCK_M, or less in the last tile
        m_i = torch.full((B, H, rows), float("-inf"), device=q.device, dtype=torch.float32)
        l_i = torch.zeros(B, H, rows, device=q.device, dtype=torch.float32)
        acc = torch.zeros(B, H, rows, D, device=q.device, dtype=torch.float32)

        for start_n in range(0, _key_end(start_m, NQ, NK, is_causal), BLOCK_N):
            k_tile = k[:, :, start_n : start_n + BLOCK_N].float()
            v_tile = v[:, :, start_n : start_n + BLOCK_N].float()
            s = _masked_scores(q_tile, k_tile, start_m, start_n, is_causal)

            # Step 1.3 -- The new maximum, the weights, and the factor for what is already summed.
            #   m_new (B, H, rows), p (B, H, rows, BLOCK_N), alpha (B, H, rows).
            #   Every row sees key 0 in the first tile, so m_new is finite from then on.
            # BEGIN SOLUTION 1.3
            m_new = torch.maximum(m_i, s.amax(dim=-1))
            p = torch.exp(s - m_new[..., None])
            alpha = torch.exp(m_i - m_new)
            # END SOLUTION 1.3

            # Step 1.4 -- Bring l_i and acc up to date with the same alpha.
            # BEGIN SOLUTION 1.4
            l_i = alpha * l_i + p.sum(dim=-1)
            acc = alpha[..., None] * acc + p @ v_tile
            # END SOLUTION 1.4
            m_i = m_new

        # Step 1.5 -- Finish the tile: normalise once, and form the log-sum-exp.
        #   o_tile (B, H, rows, D) and lse_tile (B, H, rows), both float32.
        # BEGIN SOLUTION 1.5
        o_tile = acc / l_i[..., None]
        lse_tile = m_i + torch.log(l_i)
        # END SOLUTION 1.5
        o[:, :, start_m : start_m + BLOCK_M] = o_tile.to(q.dtype)
        lse[:, :, start_m : start_m + BLOCK_M] = lse_tile
    return o, lse


# ----------------------------------------------------------------- backward
def flash_attention_tiled_backward(q, k, v, o, lse, do, dlse, is_causal=False):
    """Recompute P tile by tile and return (dq, dk, dv), float32, shapes of q, k, v.

    do (B, H, NQ, D) and dlse (B, H, NQ) are the gradients of the two outputs.
    """
    NQ, D = q.shape[2:]
    NK = k.shape[2]
    scale = 1.0 / math.sqrt(D)
    dq = torch.zeros(q.shape, device=q.device, dtype=torch.float32)
    dk = torch.zeros(k.shape, device=q.device, dtype=torch.float32)
    dv = torch.zeros(v.shape, device=q.device, dtype=torch.float32)

    for start_m in range(0, NQ, BLOCK_M):
        m = slice(start_m, start_m + BLOCK_M)
        q_tile, do_tile, o_tile = q[:, :, m].float(), do[:, :, m].float(), o[:, :, m].float()

        # Step 1.6 -- One number per row, to be subtracted from its dP: rowsum(do * o) - dlse.
        #   shift (B, H, rows).  It depends on the query alone, so it stays outside the inner loop.
        # BEGIN SOLUTION 1.6
        shift = (do_tile * o_tile).sum(dim=-1) - dlse[:, :, m]
        # END SOLUTION 1.6

        for start_n in range(0, _key_end(start_m, NQ, NK, is_causal), BLOCK_N):
            n = slice(start_n, start_n + BLOCK_N)
            k_tile, v_tile = k[:, :, n].float(), v[:, :, n].float()
            s = _masked_scores(q_tile, k_tile, start_m, start_n, is_causal)

            # Step 1.7 -- The weights again, from the saved lse: no maximum, no running sum.
            #   p (B, H, rows, BLOCK_N) is already normalised.
            # BEGIN SOLUTION 1.7
            p = torch.exp(s - lse[:, :, m, None])
            # END SOLUTION 1.7

            # Step 1.8 -- Add this tile's share to dv, dk and dq.
            #   dv and dk add up over query tiles, dq over key tiles.  The formulas are at the top
            #   of the file.
            # BEGIN SOLUTION 1.8
            ds = p * (do_tile @ v_tile.transpose(-1, -2) - shift[..., None])
            dv[:, :, n] += p.transpose(-1, -2) @ do_tile
            dk[:, :, n] += scale * ds.transpose(-1, -2) @ q_tile
            dq[:, :, m] += scale * ds @ k_tile
            # END SOLUTION 1.8
    return dq, dk, dv


# ----------------------------------------------------------------- autograd
class FlashAttention2Function(torch.autograd.Function):
    """Connects the forward and the backward to autograd.  First derivatives only.

    FlashAttention2Function.apply(q, k, v, is_causal=False) -> (o, lse); shapes
    and dtypes as in flash_attention_tiled.  Raises ValueError or TypeError on
    input that breaks the contract at the top of the file.
    """

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        _check(q, k, v, is_causal)
        o, lse = flash_attention_tiled(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        grads = flash_attention_tiled_backward(*ctx.saved_tensors, do, dlse, ctx.is_causal)
        inputs = ctx.saved_tensors[:3]
        dq, dk, dv = (grad.to(x.dtype) for grad, x in zip(grads, inputs, strict=True))
        return dq, dk, dv, None


def _check(q, k, v, is_causal) -> None:
    """Refuse what the contract at the top does not allow."""
    shapes = f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or 0 in (*q.shape, *k.shape):
        raise ValueError(f"want q (B, H, NQ, D), k and v (B, H, NK, D), not empty; got {shapes}")
    if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"want q (B, H, NQ, D), k and v (B, H, NK, D); got {shapes}")
    if q.shape[3] > 128:
        raise ValueError(f"want D <= 128; got {q.shape[3]}")
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"want NQ == NK with is_causal=True; got {q.shape[2]}, {k.shape[2]}")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"want float16, bfloat16 or float32; got {q.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"want one dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"want one device; got {q.device}, {k.device}, {v.device}")


if __name__ == "__main__":  # a look, not a test
    q, k, v = torch.randn(3, 1, 2, 300, 16)
    o, lse = FlashAttention2Function.apply(q, k, v, True)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    print("largest difference from scaled_dot_product_attention:", (o - want).abs().max().item())
