"""flash_attn_func and flash_attn_varlen_func: our kernels under FlashAttention's names.

They take FlashAttention's arguments, for code written for it, such as Transformers with a kernel
from the hub.  An argument that asks for something unsupported is refused.
"""

from .entry import attention, attention_varlen

# Arguments of FlashAttention 2 to 4, each with the value that, like None, has no effect.
NOTHING = dict(
    softcap=0.0, alibi_slopes=None, return_attn_probs=False, block_table=None, qv=None,
    q_descale=None, k_descale=None, v_descale=None, attention_chunk=0, seqused_q=None,
    seqused_k=None, page_table=None, learnable_sink=None, score_mod=None, mask_mod=None,
    aux_tensors=None,
)
HOW = {"num_splits", "pack_gqa", "sm_margin"}  # they change how, not what, is computed


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=None, return_attn_probs=False, *, s_aux=None,
    return_lse=False, **others,
):
    """sink_attn.attention, with the arguments of FlashAttention's function of this name.

    Args:
        q: (B, N, HQ, D), any strides; dtypes as in attention.
        k, v: (B, N, HKV, D).
        softmax_scale, deterministic: as in attention.
        window_size: (left, right): how many keys before and after its own a query sees; -1 or None
            for all.  A window needs causal, which hides all keys after the query's own.
        s_aux: sink_logits of attention, (HQ,).
        return_lse: also return lse.
        dropout_p, softcap, alibi_slopes, return_attn_probs, others: FlashAttention's other
            arguments, which must have the value that has no effect.

    Returns:
        o: (B, N, HQ, D), contiguous, dtype of q.
        lse: (B, HQ, N), float32, a natural logarithm, only with return_lse.

    Raises:
        ValueError: an argument asks for something that is not supported, or attention refuses it.
        TypeError: no FlashAttention has such an argument.
    """
    _want_nothing(others, softcap=softcap, alibi_slopes=alibi_slopes,
                  return_attn_probs=return_attn_probs)
    out = attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal,
        window_size=_window(dropout_p, causal, window_size), softmax_scale=softmax_scale,
        sink_logits=s_aux, deterministic=deterministic, return_lse=return_lse, o_layout="bnhd",
    )
    return (out[0].transpose(1, 2), out[1]) if return_lse else out.transpose(1, 2)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=None, return_attn_probs=False, block_table=None, *, s_aux=None,
    return_lse=False, **others,
):
    """sink_attn.attention_varlen, with the arguments of FlashAttention's function of this name.

    Args:
        q: (T, HQ, D).
        k, v: (T, HKV, D).
        cu_seqlens_q, cu_seqlens_k: (S + 1,) int32, as in attention_varlen.
        max_seqlen_q, max_seqlen_k: no sequence is longer than the larger of the two.
        block_table: None.
        All others are as in flash_attn_func.

    Returns:
        o: (T, HQ, D), dtype of q.
        lse: (HQ, T), float32, a natural logarithm, only with return_lse.

    Raises:
        ValueError, TypeError: as flash_attn_func.
    """
    _want_nothing(others, softcap=softcap, alibi_slopes=alibi_slopes,
                  return_attn_probs=return_attn_probs, block_table=block_table)
    return attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max(max_seqlen_q, max_seqlen_k)),
        is_causal=causal, window_size=_window(dropout_p, causal, window_size),
        sink_logits=s_aux, scale=softmax_scale, deterministic=deterministic, return_lse=return_lse,
    )


def _want_nothing(others: dict, **named) -> None:
    """Refuse arguments that ask for something unsupported, or that no FlashAttention has."""
    for name, x in (named | others).items():
        if name not in NOTHING and name not in HOW:
            raise TypeError(f"want arguments of FlashAttention; got {name}")
        if x is None or name in HOW or isinstance(x, int | float) and x == NOTHING[name]:
            continue
        got = x if isinstance(x, int | float) else f"a {type(x).__name__}"
        raise ValueError(f"want {name}={NOTHING[name]}; got {got}")


def _window(dropout_p: float, causal: bool, window_size: tuple) -> int | None:
    """Returns how many keys a query sees, its own included, from FlashAttention's window_size."""
    if dropout_p:
        raise ValueError(f"want no dropout; got dropout_p={dropout_p}")
    left, right = (None if x is None or x < 0 else x for x in window_size)
    if not causal and (left, right) != (None, None):
        raise ValueError(f"want causal=True with a window; got causal=False, {window_size}")
    return None if left is None else left + 1
