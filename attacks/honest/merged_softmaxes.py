"""Stage 1 by merging finished tiles: each key tile gives an o and an lse, joined with logaddexp."""
# stage: 1
# outcome: pass
import torch
from torch import Tensor

TILE = 64


def attend(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Softmax attention of one query tile over one key tile alone."""
    s = torch.matmul(q, k.transpose(2, 3)) * q.size(3) ** -0.5
    if diagonal:
        rows = torch.arange(s.size(2), device=s.device)
        s = s.masked_fill(rows[:, None] < rows[None, :s.size(3)], float("-inf"))
    return torch.matmul(s.softmax(-1), v), s.logsumexp(-1, keepdim=True)


def merge(o: Tensor, lse: Tensor, o_new: Tensor, lse_new: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.logaddexp(lse, lse_new)
    return o * (lse - both).exp() + o_new * (lse_new - both).exp(), both


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        out, norm = [], []
        for i, tile in enumerate(q.split(TILE, dim=2)):
            tile = tile.to(torch.float32)
            o, lse = None, None
            for j, keys in enumerate(k.split(TILE, dim=2)):
                if is_causal and j > i:
                    break
                values = v[:, :, j * TILE:(j + 1) * TILE].float()
                part = attend(tile, keys.float(), values, is_causal and i == j)
                o, lse = part if o is None else merge(o, lse, *part)
            out.append(o.to(q.dtype))
            norm.append(lse[..., 0])
        o, lse = torch.cat(out, dim=2), torch.cat(norm, dim=2)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        """Autograd through one pair of tiles at a time, with P made from the saved lse."""
        q, k, v, o, lse = ctx.saved_tensors
        grads = [torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v)]
        for i in range(0, q.shape[2], TILE):
            for j in range(0, k.shape[2], TILE):
                if ctx.is_causal and j > i:
                    break
                m, n = slice(i, i + TILE), slice(j, j + TILE)
                qt, kt, vt, dot = (x.float() for x in (q[:, :, m], k[:, :, n], v[:, :, n],
                                                       do[:, :, m]))
                p = (qt @ kt.mT * qt.size(3) ** -0.5 - lse[:, :, m, None]).exp()
                if ctx.is_causal and i == j:
                    p = p.tril()
                shift = (dot * o[:, :, m].float()).sum(-1) - dlse[:, :, m]
                ds = p * (dot @ vt.mT - shift[..., None]) * qt.size(3) ** -0.5
                for total, rows, add in zip(grads, (m, n, n), (ds @ kt, ds.mT @ qt, p.mT @ dot),
                                            strict=True):
                    total[:, :, rows] += add
        return *(g.to(x.dtype) for g, x in zip(grads, (q, k, v), strict=True)), None
