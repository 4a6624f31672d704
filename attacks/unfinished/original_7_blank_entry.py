"""Stage 7 in the original's style: only the wrapper is there, and it raises."""
# stage: 7
# outcome: wrong, crashed, not_started
import torch  # noqa: F401
import triton
import triton.language as tl


@triton.jit
def swa_sink_kernel(Q_ptr, K_ptr, V_ptr, O_ptr, SEQ_LEN,
                    WINDOW_SIZE: tl.constexpr, SINK_SIZE: tl.constexpr):
    # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
    pass
    # --- END OF STUDENT IMPLEMENTATION ---


def flash_attention_forward(q, k, v, is_causal=True, window_size=128, sink_size=4):
    """Sliding window attention with sinks."""
    raise NotImplementedError("sinks come next")
