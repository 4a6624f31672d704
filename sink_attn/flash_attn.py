"""flash_attn_func and flash_attn_varlen_func: the kernels by FlashAttention's names and arguments.

For code written for those, such as Transformers with a kernel of its hub.  What is asked for and
not here is refused.
"""

from .entry import attention, attention_varlen


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), *,
    deterministic=None, s_aux=None,
):
    """q (B, N, HQ, D), k and v (B, N, HKV, D) -> o (B, N, HQ, D), as attention.

    Args:
        window_size: (left, right): how many keys before and after its own a query sees; -1 or None
            for all.  A window needs causal, which hides all keys after the query's own.
        s_aux: sink_logits of attention, (HQ,).
    """
    o = attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal,
        window_size=_window(dropout_p, causal, window_size), softmax_scale=softmax_scale,
        sink_logits=s_aux, deterministic=deterministic,
    )
    return o.transpose(1, 2)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), *, deterministic=None, s_aux=None,
):
    """q (T, HQ, D), k and v (T, HKV, D) -> o (T, HQ, D), as attention_varlen, which see.

    Args: as flash_attn_func.
    """
    return attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max(max_seqlen_q, max_seqlen_k)),
        is_causal=causal, window_size=_window(dropout_p, causal, window_size),
        sink_logits=s_aux, scale=softmax_scale, deterministic=deterministic,
    )


def _window(dropout_p: float, causal: bool, window_size: tuple) -> int | None:
    """FlashAttention's window_size -> how many keys a query sees, itself included; None for all."""
    if dropout_p:
        raise ValueError(f"want no dropout; got dropout_p={dropout_p}")
    left, right = (None if x is None or x < 0 else x for x in window_size)
    if not causal and (left, right) != (None, None):
        raise ValueError(f"want causal=True with a window; got causal=False, {window_size}")
    return None if left is None else left + 1
