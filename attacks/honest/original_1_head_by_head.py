"""Stage 1 in the original's style: a loop over batch, heads and tiles, no backward."""
# stage: 1
# outcome: pass
import math

import torch


class FlashAttention2Function(torch.autograd.Function):
    """FlashAttention-2 forward in plain PyTorch."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        B, H, N_Q, D_H = q.shape
        N_K = k.shape[2]

        Q_TILE_SIZE = 128
        K_TILE_SIZE = 128
        N_Q_tiles = math.ceil(N_Q / Q_TILE_SIZE)
        N_K_tiles = math.ceil(N_K / K_TILE_SIZE)
        scale = 1.0 / math.sqrt(D_H)

        O_final = torch.zeros_like(q)
        L_final = torch.zeros((B, H, N_Q), device=q.device, dtype=torch.float32)

        for b in range(B):
            for h in range(H):
                Q_bh = q[b, h].float()
                K_bh = k[b, h].float()
                V_bh = v[b, h].float()

                for i in range(N_Q_tiles):
                    q_start = i * Q_TILE_SIZE
                    q_end = min(q_start + Q_TILE_SIZE, N_Q)
                    Q_tile = Q_bh[q_start:q_end] * scale

                    o_i = torch.zeros_like(Q_tile)
                    l_i = torch.zeros(q_end - q_start, device=q.device)
                    m_i = torch.full((q_end - q_start,), -float("inf"), device=q.device)

                    for j in range(N_K_tiles):
                        k_start = j * K_TILE_SIZE
                        k_end = min(k_start + K_TILE_SIZE, N_K)
                        if is_causal and k_start >= q_end:
                            break  # everything from here on lies in the future

                        S_ij = Q_tile @ K_bh[k_start:k_end].transpose(0, 1)
                        if is_causal:
                            q_idx = torch.arange(q_start, q_end, device=q.device)[:, None]
                            k_idx = torch.arange(k_start, k_end, device=q.device)[None, :]
                            S_ij = S_ij.masked_fill(k_idx > q_idx, -float("inf"))

                        m_new = torch.maximum(m_i, S_ij.max(dim=1).values)
                        rescale = torch.exp(m_i - m_new)
                        P_tilde = torch.exp(S_ij - m_new[:, None])
                        l_i = rescale * l_i + P_tilde.sum(dim=1)
                        o_i = rescale[:, None] * o_i + P_tilde @ V_bh[k_start:k_end]
                        m_i = m_new

                    O_final[b, h, q_start:q_end] = (o_i / l_i[:, None]).to(q.dtype)
                    L_final[b, h, q_start:q_end] = m_i + torch.log(l_i)

        ctx.save_for_backward(q, k, v, O_final, L_final)
        ctx.is_causal = is_causal
        return O_final, L_final

    @staticmethod
    def backward(ctx, grad_out, grad_L):
        raise NotImplementedError("Backward pass not implemented")
