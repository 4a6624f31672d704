"""Launch the Gluon backward, with the kernels before it (delta, lse) and after it (dq)."""

import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from . import hopper, kept
from .attention_hopper_backward import _bwd_kernel
from .kernels import _head, _load_rows, _store_rows
from .launcher import new_like


# ------------------------------------------------------------------ kernels
@triton.jit(do_not_specialize=["N", "HQ", "rows"])
def _prepare_kernel(
    o_ptr, do_ptr, dlse_ptr, lse_ptr, lse_log2_ptr, delta_ptr, dq_ptr, sink_ptr, dsink_ptr,
    N, HQ, rows, stride_ob, stride_oh, stride_on, stride_dob, stride_doh, stride_don,
    D: tl.constexpr,
):
    """Store delta = rowsum(o * do) - dlse and lse in base 2, padded to rows; zero dq's sums.

    dsink: the share of these 64 rows in the gradient of their head's sink logit.
    """
    bh = (tl.program_id(0) // (rows // 64)).to(tl.int64)
    start = tl.program_id(0) % (rows // 64) * 64
    r = start + tl.arange(0, 64)
    b, h = bh // HQ, bh % HQ
    o_head = _head(o_ptr, b, h, 0, stride_ob, stride_oh, stride_on, 1)
    do_head = _head(do_ptr, b, h, 0, stride_dob, stride_doh, stride_don, 1)
    o = _load_rows(o_head, start, N, 64, D, D, True).to(tl.float32)
    do = _load_rows(do_head, start, N, 64, D, D, True).to(tl.float32)
    lse = tl.load(lse_ptr + bh * N + r, mask=r < N, other=float("inf"))
    tl.store(lse_log2_ptr + bh * rows + r, lse * 1.4426950408889634, mask=r < rows)
    delta = tl.sum(o * do, 1)
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + bh * N + r, mask=r < N, other=0.0)
    tl.store(delta_ptr + bh * rows + r, delta, mask=r < rows)
    if dsink_ptr is not None:  # the sink has a weight, and a value of 0
        p_sink = tl.exp(tl.load(sink_ptr + h).to(tl.float32) - lse)
        tl.store(dsink_ptr + tl.program_id(0), -tl.sum(p_sink * delta))
    if dq_ptr is not None:
        dq_head = _head(dq_ptr, b, bh, 0, 0, N * D, D, 1)
        _store_rows(dq_head, tl.zeros_like(o), start, N, 64, D, D)


@triton.jit(do_not_specialize=["N", "HQ"])
def _finish_kernel(
    sum_ptr, dq_ptr, scale, N, HQ, stride_dqb, stride_dqh, stride_dqn, D: tl.constexpr
):
    """Scale 64 rows of the sums of dq, and store them in q's dtype and layout."""
    bh = tl.program_id(0) // tl.cdiv(N, 64)
    start = tl.program_id(0) % tl.cdiv(N, 64) * 64
    sum_head = _head(sum_ptr, bh, bh, 0, 0, N * D, D, 1)
    dq_head = _head(dq_ptr, bh // HQ, bh % HQ, 0, stride_dqb, stride_dqh, stride_dqn, 1)
    dq = _load_rows(sum_head, start, N, 64, D, D, True) * scale
    _store_rows(dq_head, dq, start, N, 64, D, D)


@triton.jit(do_not_specialize=["N", "HQ", "group", "rows", "window"])
def _dq_kernel(
    q_in, k_in, v_in, do_in, lse_log2_ptr, delta_ptr, dq_ptr, N, HQ, group, rows, scale, window,
    stride_dqb, stride_dqh, stride_dqn,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Fill 64 rows of dq, bit for bit the same in every run: kernels.py's without its tricks."""
    blocks = tl.cdiv(N, 64)
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * 64
    bh = tl.program_id(0) // blocks
    b, h = bh // HQ, bh % HQ
    query = start_m + tl.arange(0, 64)
    q = q_in.load([b, h, start_m, 0]).reshape(64, D)
    do = do_in.load([b, h, start_m, 0]).reshape(64, D)
    lse_log2 = tl.load(lse_log2_ptr + bh.to(tl.int64) * rows + query)
    delta = tl.load(delta_ptr + bh.to(tl.int64) * rows + query)
    dq = tl.zeros([64, D], tl.float32)
    start = tl.maximum(start_m - window + 1, 0) // 64 * 64 if WINDOWED else 0
    end = tl.minimum(start_m + 64, N) if CAUSAL else N
    for start_n in range(start, end, 64):
        k = k_in.load([b, h // group, start_n, 0]).reshape(64, D)
        v = v_in.load([b, h // group, start_n, 0]).reshape(64, D)
        key = start_n + tl.arange(0, 64)
        keep = key[None, :] <= query[:, None] if CAUSAL else key[None, :] < N
        if WINDOWED:
            keep &= query[:, None] - key[None, :] < window
        s = tl.where(keep, tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634), float("-inf"))
        p = tl.math.exp2(s - lse_log2[:, None])
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    dq_head = _head(dq_ptr, b, h, 0, stride_dqb, stride_dqh, stride_dqn, 1)
    _store_rows(dq_head, dq * scale, start_m, N, 64, D, D)


# ------------------------------------------------------------------- launch
def backward(
    q, k, v, sink_logits, o, lse, do, is_causal, scale, window_size=None, deterministic=False,
    want_dsink=False, dlse=None,
):
    """Launch the backward kernels.

    Args:
        q, o, do: (B, HQ, N, D); o without gaps.
        k, v: (B, HKV, N, D).
        sink_logits: (HQ,) or None.
        lse: (B, HQ, N), float32, a natural logarithm.
        deterministic: compute dq with _dq_kernel, bit for bit the same in every run.
        want_dsink: whether dsink_logits is wanted.
        dlse: like lse, contiguous; None for zeros.

    Returns:
        dq, dk, dv, and dsink_logits or None, of the shapes, dtypes and layouts of their inputs.
    """
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    tile = 8192 // D  # queries
    rows = -(-N // tile) * tile  # lse_log2 and delta are padded, so that one copy fetches a tile's
    blocks = rows // 64
    lse_log2, delta = lse.new_empty(B, HQ, rows), lse.new_empty(B, HQ, rows)
    dq, dk, dv = (new_like(x) for x in (q, k, v))
    q, k, v, do = (hopper.copyable(x) for x in (q, k, v, do))
    dq_sum = None if deterministic else lse.new_empty(B * HQ, N, D)
    dsinks = lse.new_empty(B, HQ, blocks) if want_dsink else None
    sinks = sink_logits.contiguous() if want_dsink else None
    group, masked = HQ // HKV, (is_causal, window_size is not None)
    # Heads side by side.  4 against 2 and 8: causal 1.34, 1.39, 1.36 ms; Llama-3 5.15, 4.98, 5.19.
    constants = *masked, N % 128 != 0, 4 if group == 1 else 2, not deterministic
    kind = q.device, D, q.dtype, deterministic
    with kept.on(q.device):
        strides, dq_strides = (*o.stride()[:3], *do.stride()[:3]), dq.stride()[:3]
        kept.launch(
            (_prepare_kernel, kind, sinks is not None and (sinks.dtype, sinks.data_ptr() % 16),
             None if dlse is None else dlse.data_ptr() % 16, *((s % 16, s >> 31) for s in strides)),
            _prepare_kernel, (blocks * B * HQ, 1, 1),
            o, do, dlse, lse, lse_log2, delta, dq_sum, sinks, dsinks, N, HQ, rows, *strides, D,
            num_warps=4,
        )
        kept.launch(
            (_bwd_kernel, kind, constants), _bwd_kernel, (B * HKV * -(-N // 128), 1, 1),
            *[kept.describe(x, n, hopper.tiles)
              for x, n in ((q, tile), (k, 64), (v, 64), (do, tile))],
            *[kept.describe(x, tile, _line) for x in (lse_log2, delta)],
            None if deterministic else kept.describe(dq_sum, 64, _sums),
            *[kept.describe(x, 64, hopper.tiles) for x in (dk, dv)],
            N, HKV, group, B * HKV, scale, window_size or 0, *constants, num_warps=4, maxnreg=168,
        )
        if deterministic:
            tiles = (TensorDescriptor(x, x.shape, x.stride(), [1, 1, 64, D]) for x in (q, k, v, do))
            _dq_kernel[(-(-N // 64) * B * HQ,)](
                *tiles, lse_log2, delta, dq, N, HQ, group, rows, scale, window_size or 0,
                *dq_strides, D, *masked, num_warps=4, num_stages=3,
            )
        else:
            kept.launch(
                (_finish_kernel, kind, *(s >> 31 for s in dq_strides)), _finish_kernel,
                (-(-N // 64) * B * HQ, 1, 1), dq_sum, dq, scale, N, HQ, *dq_strides, D, num_warps=8,
            )
    dsink_logits = dsinks.sum((0, 2)).to(sink_logits.dtype) if want_dsink else None
    return dq, dk, dv, dsink_logits


def _line(x, rows):
    """Describe x, contiguous, as a source of `rows` consecutive numbers."""
    return GluonDescriptor(x, [x.numel()], [1], [rows], gl.NVMMASharedLayout(0, 32, rank=1))


def _sums(x, rows):
    """Describe x (heads, N, D) as a target of tiles of `rows` rows and 64 columns."""
    layout = gl.NVMMASharedLayout(128, 32, rank=3)
    block = [1, rows, 64]
    return GluonDescriptor(x, list(x.shape), list(x.stride()), block, layout)
