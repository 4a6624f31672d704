"""Stage 1 as plain Python loops: batch entry, head, query tile, key tile."""
# stage: 1
# outcome: pass
import math

import torch

Br, Bc = 96, 64


def one_head(q, k, v, is_causal):
    """q (NQ, D), k and v (NK, D), float32 -> o (NQ, D), lse (NQ,)."""
    o_rows, lse_rows = [], []
    for i in range(0, q.size(0), Br):
        Qi = q[i:i + Br] / math.sqrt(q.size(1))
        n = Qi.size(0)
        Oi = torch.zeros_like(Qi)
        li = torch.zeros(n, 1, device=q.device)
        mi = torch.full((n, 1), -math.inf, device=q.device)
        for j in range(0, k.size(0), Bc):
            if is_causal and j > i + n - 1:
                break
            Kj, Vj = k[j:j + Bc], v[j:j + Bc]
            Sij = Qi.mm(Kj.t())
            if is_causal:
                # Entry (r, c) is query i + r and key j + c, hidden where c - r > i - j.
                hidden = torch.ones(Sij.shape, dtype=torch.bool, device=q.device).triu(i - j + 1)
                Sij.masked_fill_(hidden, -math.inf)
            # Subtract nothing from a row that has not seen a key yet.
            m_new = torch.max(mi, Sij.amax(1, keepdim=True))
            pivot = m_new.masked_fill(m_new == -math.inf, 0.0)
            Pij = (Sij - pivot).exp()
            scale = (mi - pivot).exp()
            li = li * scale + Pij.sum(1, keepdim=True)
            Oi = Oi * scale + Pij.mm(Vj)
            mi = m_new
        o_rows.append(Oi / li)
        lse_rows.append((mi + li.log()).squeeze(1))
    return torch.cat(o_rows), torch.cat(lse_rows)


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                head = q[b, h].float(), k[b, h].float(), v[b, h].float()
                o[b, h], lse[b, h] = one_head(*head, is_causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = (torch.zeros(x.shape, device=x.device) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[3])
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                Q, K, V = q[b, h].float(), k[b, h].float(), v[b, h].float()
                dO = do[b, h].float()
                D = (dO * o[b, h].float()).sum(1) - dlse[b, h]
                for i in range(0, len(Q), Br):
                    I = slice(i, i + Br)  # noqa: E741
                    for j in range(0, len(K), Bc):
                        J = slice(j, j + Bc)
                        P = (Q[I] @ K[J].T * scale - lse[b, h, I, None]).exp()
                        if ctx.is_causal:
                            P = P.tril(i - j)
                        dS = P * (dO[I] @ V[J].T - D[I, None]) * scale
                        dv[b, h, J] += P.T @ dO[I]
                        dk[b, h, J] += dS.T @ Q[I]
                        dq[b, h, I] += dS @ K[J]
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None
