"""Stage 1 in the original's style: all heads at once, base 2, tiles kept in a list."""
# stage: 1
# outcome: pass
import torch

TILE_M, TILE_N = 128, 128
RCP_LN2 = 1.44269504


class FlashAttention2Function(torch.autograd.Function):

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        assert Q.shape[-1] == K.shape[-1] == V.shape[-1]
        batch, heads, seq_q, d = Q.shape
        seq_k = K.shape[-2]
        qk_scale = d ** -0.5 * RCP_LN2

        outs, lses = [], []
        for lo in range(0, seq_q, TILE_M):
            q = Q[:, :, lo:lo + TILE_M, :].to(torch.float32)
            rows = lo + torch.arange(q.shape[2], device=Q.device)

            m_i = torch.full_like(q[..., :1], float("-inf"))
            l_i = torch.zeros_like(m_i)
            acc = torch.zeros_like(q)

            hi = min(seq_k, lo + TILE_M) if is_causal else seq_k
            for start in range(0, hi, TILE_N):
                k = K[:, :, start:start + TILE_N, :].to(torch.float32)
                v = V[:, :, start:start + TILE_N, :].to(torch.float32)
                qk = torch.einsum("bhmd,bhnd->bhmn", q, k) * qk_scale
                if is_causal:
                    cols = start + torch.arange(k.shape[2], device=Q.device)
                    qk = torch.where(rows[:, None] >= cols[None, :], qk, float("-inf"))

                m_ij = torch.maximum(m_i, qk.amax(dim=-1, keepdim=True))
                p = torch.exp2(qk - m_ij)
                alpha = torch.exp2(m_i - m_ij)
                l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)
                acc = acc * alpha + torch.matmul(p, v)
                m_i = m_ij

            outs.append((acc / l_i).to(Q.dtype))
            lses.append((m_i / RCP_LN2 + torch.log(l_i)).squeeze(-1))

        out = torch.cat(outs, dim=2)
        lse = torch.cat(lses, dim=2)
        ctx.save_for_backward(out, lse)
        return out, lse
