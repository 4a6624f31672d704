"""Stage 5 in the original's style: the key/value head is None where it is to be worked out."""
# stage: 5
# outcome: wrong, crashed, not_started
import torch
import triton
import triton.language as tl


@triton.jit
def gqa_kernel(Q_ptr, K_ptr, V_ptr, O_ptr, SEQ_LEN,
               N_Q_HEADS: tl.constexpr, N_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
               BLOCK_M: tl.constexpr):
    batch_idx = tl.program_id(1) // N_Q_HEADS
    q_head_idx = tl.program_id(1) % N_Q_HEADS
    # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
    num_groups = N_Q_HEADS // N_KV_HEADS
    kv_head_idx = None
    # --- END OF STUDENT IMPLEMENTATION ---
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    inside = rows[:, None] < SEQ_LEN
    kv_base = (batch_idx * N_KV_HEADS + kv_head_idx) * SEQ_LEN * HEAD_DIM
    v = tl.load(V_ptr + kv_base + rows[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    q_base = (batch_idx * N_Q_HEADS + q_head_idx) * SEQ_LEN * HEAD_DIM
    tl.store(O_ptr + q_base + rows[:, None] * HEAD_DIM + dims[None, :], v, mask=inside)


def flash_attention_forward(q, k, v, is_causal=True):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o = torch.empty_like(q)
    B, HQ, N, D = q.shape
    gqa_kernel[(triton.cdiv(N, 64), B * HQ)](q, k, v, o, N, HQ, k.shape[1], D, BLOCK_M=64)
    return o
