"""Stage 1 in einsum: all heads and all queries at once, one tile of 48 keys after the other."""
# stage: 1
# outcome: pass
import torch

KEYS = 48  # of a tile; no power of two, since PyTorch needs none


def tiles(n_keys):
    return [slice(j, min(j + KEYS, n_keys)) for j in range(0, n_keys, KEYS)]


def scores(q, k, keys, is_causal):
    s = torch.einsum("bhid,bhjd->bhij", q, k[:, :, keys].float()) * q.shape[-1] ** -0.5
    if is_causal:
        i = torch.arange(q.shape[2], device=q.device)[:, None]
        j = torch.arange(keys.start, keys.stop, device=q.device)[None, :]
        s = torch.where(j <= i, s, -torch.inf)
    return s


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        if is_causal and q.shape[2] != k.shape[2]:
            raise ValueError(f"want as many keys as queries; got {k.shape[2]}, {q.shape[2]}")
        wide = q.float()
        largest = wide.new_full(q.shape[:3], -torch.inf)
        total = torch.zeros_like(largest)
        acc = torch.zeros_like(wide, memory_format=torch.contiguous_format)
        for keys in tiles(k.shape[2]):
            s = scores(wide, k, keys, is_causal)
            new = torch.maximum(largest, s.max(dim=-1).values)
            p = torch.exp(s - new.unsqueeze(-1))
            shrink = torch.exp(largest - new)
            total = total * shrink + torch.einsum("bhij->bhi", p)
            acc = torch.einsum("bhid,bhi->bhid", acc, shrink)
            acc += torch.einsum("bhij,bhjd->bhid", p, v[:, :, keys].float())
            largest = new
        o = (acc / total.unsqueeze(-1)).to(q.dtype)
        lse = largest + total.log()
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        wide, do = q.float(), do.float()
        shift = dlse - torch.einsum("bhid,bhid->bhi", do, o.float())
        dq, dk, dv = torch.zeros_like(wide), torch.empty_like(k), torch.empty_like(v)
        for keys in tiles(k.shape[2]):
            p = torch.exp(scores(wide, k, keys, ctx.is_causal) - lse[..., None])
            dp = torch.einsum("bhid,bhjd->bhij", do, v[:, :, keys].float())
            ds = p * (dp + shift[..., None]) * q.shape[-1] ** -0.5
            dq += torch.einsum("bhij,bhjd->bhid", ds, k[:, :, keys].float())
            dk[:, :, keys] = torch.einsum("bhij,bhid->bhjd", ds, wide).to(k.dtype)
            dv[:, :, keys] = torch.einsum("bhij,bhid->bhjd", p, do).to(v.dtype)
        return dq.to(q.dtype), dk, dv, None
