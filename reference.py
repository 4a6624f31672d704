"""The only ground truth of the course: what every stage must compute, in float64.

Tensors are (B, H, N, D).  Query head h reads key/value head h // (HQ // HKV).  Nothing here is
fast; one (batch, head) is worked at a time, so that S (NQ, NK) is the largest thing in memory.
"""

import torch


def keep_mask(NQ, NK, is_causal=False, window_size=None, sink_size=0, device="cpu"):
    """Which keys each query sees.

    Args:
        NQ, NK: numbers of queries and of keys, at the positions 0, 1, ...
        window_size: how many keys a query sees, itself included; None for all.
        sink_size: how many first keys stay visible beyond the window.  Sinks are still causal, and
            a key that is in the window as well counts once.

    Returns:
        bool (NQ, NK) on device; True: visible.
    """
    query = torch.arange(NQ, device=device)[:, None]
    key = torch.arange(NK, device=device)[None, :]
    keep = (key <= query) if is_causal else torch.ones(NQ, NK, dtype=torch.bool, device=device)
    if window_size is not None:
        keep = keep & ((query - key < window_size) | (key < sink_size))
    return keep


def attention(q, k, v, *, dout=None, dlse=None, is_causal=False, window_size=None, sink_size=0,
              scale=None, sink_logits=None):
    """Attention and, where dout is given, its gradients, in float64.

    Args:
        q: (B, HQ, NQ, D).  k, v: (B, HKV, NK, D).  dout: (B, HQ, NQ, D) or None.  Any dtype.
        dlse: (B, HQ, NQ) or None.  The gradient of lse, where that is an output besides o.
        is_causal, window_size, sink_size: as keep_mask takes them.
        scale: factor of the scores; None for 1 / sqrt(D).
        sink_logits: (HQ,) or None.  One learned logit per head; it joins the softmax denominator
            and carries no value.

    Returns:
        dict of float64: o (B, HQ, NQ, D), lse (B, HQ, NQ), a natural logarithm; with dout also the
        gradients q, k, v and, if given, sink_logits, each of the shape of its input.
    """
    q, k, v = q.double(), k.double(), v.double()
    (B, HQ, NQ, D), (_, HKV, NK, _) = q.shape, k.shape
    scale = D**-0.5 if scale is None else scale
    keep = keep_mask(NQ, NK, is_causal, window_size, sink_size, q.device)
    sinks = torch.full((HQ,), -torch.inf).to(q) if sink_logits is None else sink_logits.double()
    out = {"o": torch.empty_like(q), "lse": q.new_empty(B, HQ, NQ)}
    if dout is not None:
        out |= {"q": torch.zeros_like(q), "k": torch.zeros_like(k), "v": torch.zeros_like(v)}
        out |= {} if sink_logits is None else {"sink_logits": torch.zeros_like(sinks)}
    for b in range(B):
        for h in range(HQ):
            kv = h // (HQ // HKV)
            s = (q[b, h] @ k[b, kv].T * scale).masked_fill(~keep, -torch.inf)
            lse = torch.logaddexp(torch.logsumexp(s, dim=1), sinks[h])
            p = torch.exp(s - lse[:, None])
            o = p @ v[b, kv]
            out["o"][b, h], out["lse"][b, h] = o, lse
            if dout is None:
                continue
            do = dout[b, h].double()
            delta = (do * o).sum(1)
            if dlse is not None:  # d lse_i / d s_ij = p_ij, so dlse only moves delta
                delta = delta - dlse[b, h].double()
            ds = p * (do @ v[b, kv].T - delta[:, None])
            out["q"][b, h] = ds @ k[b, kv] * scale
            out["k"][b, kv] += ds.T @ q[b, h] * scale
            out["v"][b, kv] += p.T @ do
            if sink_logits is not None:
                out["sink_logits"][h] -= (torch.exp(sinks[h] - lse) * delta).sum()
    return out


def weighted_row_sum(x, w):
    """y[i] = sum_j x[i, j] * w[j].  x (M, N), w (N,) -> float64 (M,)."""
    return x.double() @ w.double()


def weighted_row_sum_gradients(x, w, dy):
    """x (M, N), w (N,), dy (M,) -> float64 dx (M, N) and dw (N,).

    dx[i, j] = dy[i] * w[j] and dw[j] = sum_i dy[i] * x[i, j].
    """
    return torch.outer(dy.double(), w.double()), dy.double() @ x.double()


def naive_attention(q, k, v, *, is_causal=False, window_size=None, sink_size=0, scale=None):
    """The attention that everyone writes first, in the dtype of q; the benchmark compares with it.

    All of S (B, HQ, NQ, NK) at once; keys and values are repeated for their group of query heads.
    -> o (B, HQ, NQ, D), dtype of q.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal or window_size is not None:
        keep = keep_mask(q.shape[2], k.shape[2], is_causal, window_size, sink_size, q.device)
        s = s.masked_fill(~keep, -torch.inf)
    return torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype) @ v
