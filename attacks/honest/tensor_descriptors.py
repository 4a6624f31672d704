"""Stage 3 with tensor descriptors made in the kernel; inputs contiguous, D padded by PyTorch."""
# stage: 3
# outcome: pass
import torch
import torch.nn.functional as F
import triton
import triton.language as tl


def scratch(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


triton.set_allocator(scratch)  # a descriptor made in a kernel lives in global memory


@triton.jit
def described(Q, K, V, Out, BH, N, scale, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    bh, m0 = tl.program_id(0), tl.program_id(1) * BM
    stride = N * tl.full([], DIM, tl.int64)
    q_desc = tl.make_tensor_descriptor(Q, [BH, N, DIM], [stride, DIM, 1], [1, BM, DIM])
    k_desc = tl.make_tensor_descriptor(K, [BH, N, DIM], [stride, DIM, 1], [1, BN, DIM])
    v_desc = tl.make_tensor_descriptor(V, [BH, N, DIM], [stride, DIM, 1], [1, BN, DIM])
    o_desc = tl.make_tensor_descriptor(Out, [BH, N, DIM], [stride, DIM, 1], [1, BM, DIM])
    q = q_desc.load([bh, m0, 0]).reshape(BM, DIM)
    m_i = tl.full([BM], float("-inf"), tl.float32)
    l_i = tl.full([BM], 0.0, tl.float32)
    acc = tl.zeros([BM, DIM], tl.float32)
    for n0 in range(0, N, BN):
        k = k_desc.load([bh, n0, 0]).reshape(BN, DIM)
        s = tl.dot(q, k.T) * scale
        if n0 + BN > N:  # rows past the end were read as zero
            s = tl.where(n0 + tl.arange(0, BN)[None, :] < N, s, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp(s - m_ij[:, None])
        alpha = tl.exp(m_i - m_ij)
        v = v_desc.load([bh, n0, 0]).reshape(BN, DIM)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_ij
    o = (acc / l_i[:, None]).to(Out.dtype.element_ty)
    o_desc.store([bh, m0, 0], o.reshape(1, BM, DIM))


def tidy(x, dim):
    """Contiguous (B * H, N, dim) at a 16-byte address, as a descriptor wants it."""
    x = F.pad(x, (0, dim - x.shape[3])).contiguous()
    if x.data_ptr() % 16:
        x = x.clone()
    return x.view(-1, x.shape[2], dim)


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    dim = max(16, triton.next_power_of_2(D))
    o = torch.empty((B * H, N, dim), device=q.device, dtype=q.dtype)
    described[(B * H, triton.cdiv(N, 32))](
        tidy(q, dim), tidy(k, dim), tidy(v, dim), o, B * H, N, D**-0.5, dim, 32, 32)
    return o.view(B, H, N, dim)[..., :D]
