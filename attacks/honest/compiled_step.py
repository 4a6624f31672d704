"""Stage 1 with torch.compile round one step of the walk, in a backend that needs no compiler."""
# stage: 1
# outcome: pass
import torch

QUERIES, KEYS = 128, 256


def step(q, k, v, keep, acc, m, l):  # noqa: E741
    """One key tile into the sums; float32 but for keep, a bool that broadcasts to s."""
    s = torch.where(keep, q @ k.mT, float("-inf"))
    m_new = torch.maximum(m, s.amax(-1, keepdim=True))
    p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
    return alpha * acc + p @ v, m_new, alpha * l + p.sum(-1, keepdim=True)


fast_step = torch.compile(step, backend="aot_eager", dynamic=True)


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        (_, _, NQ, D), NK = q.shape, k.shape[2]
        o = q.new_empty(q.shape)
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        position = torch.arange(max(NQ, NK), device=q.device)
        for i in range(0, NQ, QUERIES):
            tile = q[:, :, i:i + QUERIES].float() * D**-0.5
            acc, m = torch.zeros_like(tile), torch.full_like(tile[..., :1], float("-inf"))
            l = torch.zeros_like(m)  # noqa: E741
            rows = position[i:min(i + QUERIES, NQ), None]
            for j in range(0, min(i + QUERIES, NQ) if is_causal else NK, KEYS):
                n = slice(j, min(j + KEYS, NK))
                # Key 0 is in the first tile, so m is finite from then on.
                keep = position[n] <= rows if is_causal else (position[n] < NK)[None]
                acc, m, l = fast_step(  # noqa: E741
                    tile, k[:, :, n].float(), v[:, :, n].float(), keep, acc, m, l)
            o[:, :, i:i + QUERIES] = acc / l
            lse[:, :, i:i + QUERIES] = (m + l.log()).squeeze(-1)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        NQ, NK, scale = q.shape[2], k.shape[2], q.shape[3] ** -0.5
        shift = (do.float() * o.float()).sum(-1) - dlse
        dq = torch.zeros(q.shape, device=q.device)
        dk, dv = torch.empty(2, *k.shape, device=q.device).unbind()
        for j in range(0, NK, KEYS):
            n = slice(j, j + KEYS)
            kt, vt = k[:, :, n].float(), v[:, :, n].float()
            s = q.float() @ kt.mT * scale
            if ctx.is_causal:
                keys = torch.arange(j, j + s.shape[-1], device=q.device)
                hidden = keys > torch.arange(NQ, device=q.device)[:, None]
                s = s.masked_fill(hidden, float("-inf"))  # exp(s - lse) may overflow there
            p = torch.exp(s - lse[..., None])
            ds = p * (do.float() @ vt.mT - shift[..., None]) * scale
            dv[:, :, n], dk[:, :, n] = p.mT @ do.float(), ds.mT @ q.float()
            dq += ds @ kt
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None
