"""Stage 6 in the original's style: the kernel is begun, the wrapper does not launch it."""
# stage: 6
# outcome: wrong, crashed, not_started
import torch
import triton
import triton.language as tl


@triton.jit
def swa_kernel(Q_ptr, K_ptr, V_ptr, O_ptr, SEQ_LEN, WINDOW_SIZE: tl.constexpr,
               HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    q_block_idx = tl.program_id(0)
    window_start = tl.maximum(0, q_block_idx * BLOCK_M - WINDOW_SIZE)
    # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
    # --- END OF STUDENT IMPLEMENTATION ---


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    batch, n_q_heads, seq_len, head_dim = q.shape
    o = torch.empty_like(q)
    BLOCK_M, BLOCK_N = 128, 64
    grid = (triton.cdiv(seq_len, BLOCK_M), batch * n_q_heads)
    # swa_kernel[grid](...)
    return o
