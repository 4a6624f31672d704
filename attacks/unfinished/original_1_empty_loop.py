"""Stage 1 in the original's style: the loop over the keys is still empty, zeros go out."""
# stage: 1
# outcome: wrong, crashed, not_started
import math

import torch


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        B, H, N_Q, D_H = q.shape
        N_K = k.shape[2]
        Q_TILE_SIZE, K_TILE_SIZE = 128, 128

        O_final = torch.zeros_like(q)
        L_final = torch.zeros((B, H, N_Q), device=q.device, dtype=torch.float32)
        scale = 1.0 / math.sqrt(D_H)

        for b in range(B):
            for h in range(H):
                for i in range(math.ceil(N_Q / Q_TILE_SIZE)):
                    Q_tile = q[b, h, i * Q_TILE_SIZE:(i + 1) * Q_TILE_SIZE].float() * scale
                    o_i = torch.zeros_like(Q_tile)
                    l_i = torch.zeros(Q_tile.shape[0], device=q.device)
                    m_i = torch.full_like(l_i, -float("inf"))

                    for j in range(math.ceil(N_K / K_TILE_SIZE)):
                        K_tile = k[b, h, j * K_TILE_SIZE:(j + 1) * K_TILE_SIZE]
                        V_tile = v[b, h, j * K_TILE_SIZE:(j + 1) * K_TILE_SIZE]

                        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
                        # the scores, the new maximum, the weights, o_i and l_i
                        pass
                        # --- END OF STUDENT IMPLEMENTATION ---

                    # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
                    # normalise o_i, and form the log-sum-exp
                    # --- END OF STUDENT IMPLEMENTATION ---
                    rows = slice(i * Q_TILE_SIZE, i * Q_TILE_SIZE + Q_tile.shape[0])
                    O_final[b, h, rows] = o_i.to(q.dtype)
                    L_final[b, h, rows] = l_i
        return O_final, L_final

    @staticmethod
    def backward(ctx, dO, dL):
        raise NotImplementedError("Backward pass not implemented")
