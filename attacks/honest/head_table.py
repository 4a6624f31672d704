"""Stage 5 with a table of key/value heads, made by repeat_interleave and read by the kernel."""
# stage: 5
# outcome: pass
import torch
import triton
import triton.language as tl


class Tensor4D:
    """A tensor and its strides, as the kernel's arguments want them."""

    def __init__(self, tensor):
        self.arguments = (tensor, *tensor.stride())


class CausalAttention:
    """One launch: sizes, tiles, grid."""

    TILE = 32

    @staticmethod
    @triton.jit
    def kernel(
        q, q_b, q_h, q_n, q_d, k, k_b, k_h, k_n, k_d, v, v_b, v_h, v_n, v_d, o, o_b, o_h, o_n, o_d,
        kv_of, HQ, N, scale, D: tl.constexpr, DD: tl.constexpr, T: tl.constexpr,
    ):
        hq = tl.program_id(0) % HQ
        b = (tl.program_id(0) // HQ).to(tl.int64)
        hkv = tl.load(kv_of + hq)  # int64
        i = tl.program_id(1) * T + tl.arange(0, T)
        d = tl.arange(0, DD)
        q_at = q + b * q_b + hq.to(tl.int64) * q_h + i[:, None].to(tl.int64) * q_n
        tile = tl.load(q_at + d[None, :] * q_d, mask=(i[:, None] < N) & (d[None, :] < D), other=0.0)
        best = tl.full([T], float("-inf"), tl.float32)
        mass = tl.zeros([T], tl.float32)
        o_tile = tl.zeros([T, DD], tl.float32)
        for t in range(tl.program_id(1) + 1):
            j = t * T + tl.arange(0, T)
            inside = (j[:, None] < N) & (d[None, :] < D)
            k_at = k + b * k_b + hkv * k_h + j[:, None].to(tl.int64) * k_n
            v_at = v + b * v_b + hkv * v_h + j[:, None].to(tl.int64) * v_n
            keys = tl.load(k_at + d[None, :] * k_d, mask=inside, other=0.0)
            values = tl.load(v_at + d[None, :] * v_d, mask=inside, other=0.0)
            s = tl.dot(tile, tl.trans(keys)) * scale
            s = tl.where(i[:, None] >= j[None, :], s, float("-inf"))
            better = tl.maximum(best, tl.max(s, 1))
            p = tl.exp(s - better[:, None])
            mass = mass * tl.exp(best - better) + tl.sum(p, 1)
            o_tile *= tl.exp(best - better)[:, None]
            o_tile += tl.dot(p.to(values.dtype), values)
            best = better
        o_at = o + b * o_b + hq.to(tl.int64) * o_h + i[:, None].to(tl.int64) * o_n
        tl.store(o_at + d[None, :] * o_d, (o_tile / mass[:, None]).to(o.dtype.element_ty),
                 mask=(i[:, None] < N) & (d[None, :] < D))

    def __init__(self, q, k, v):
        self.q, self.k, self.v = q, k, v
        group = q.shape[1] // k.shape[1]
        self.kv_of = torch.arange(k.shape[1], device=q.device).repeat_interleave(group)

    def run(self):
        B, HQ, N, D = self.q.shape
        o = torch.empty(B, HQ, N, D, dtype=self.q.dtype, device=self.q.device)
        tensors = (Tensor4D(x).arguments for x in (self.q, self.k, self.v, o))
        self.kernel[(B * HQ, triton.cdiv(N, self.TILE))](
            *(argument for arguments in tensors for argument in arguments),
            self.kv_of, HQ, N, D**-0.5, D=D, DD=max(16, triton.next_power_of_2(D)), T=self.TILE)
        return o


def flash_attention_forward(q, k, v, is_causal=True):
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"want HQ a multiple of HKV; got {q.shape[1]}, {k.shape[1]}")
    return CausalAttention(q, k, v).run()
