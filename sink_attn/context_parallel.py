"""Attention over sequences that are split over the GPUs of a group (context parallelism).

    from sink_attn import context_parallel
    x = context_parallel.shard(tokens, group, dim=1)     # this rank's rows
    o = context_parallel.attention(q, k, v, group, window_size=128, sink_logits=sinks)

Layout.  N tokens are cut into 2R pieces of C = ceil(N / 2R), the last ones padded at their end.
Rank r of R holds pieces r and 2R - 1 - r, one after the other, so that all ranks have the same
causal work, for a full mask and for a window.  With R = 2:

    piece      0    1    2    3
    rank       0    1    1    0

Each of several packed sequences (cu_seqlens) is cut like that.  A rank holds its front pieces of
all sequences, one after the other, and then its back pieces of all.

Full causal attention is a ring.  A rank first attends to its own keys; then keys and values travel
from rank to rank, the next ones in flight while a kernel works on the last.  Each chunk's o and lse
are merged into the sums in float32.  The backward gives every chunk the merged o and lse, which
makes its P that of the whole row, and dk and dv travel along with the keys that they belong to.

    keys of rank j   front piece j          back piece 2R - 1 - j
    j < r            seen by both pieces    seen by none
    j > r            seen by the back piece, both of them

A window needs only the W - 1 keys before each piece, its halo, from one piece or several.  The
kernel first runs on the rank's rows as they are, which is right except for the first W - 1 rows of
most pieces.  Those run again, as packed sequences, with [sink tokens | halo | own] as keys and rows
of zeros before the queries; in the backward of the first call their lse is infinite, so that they
add nothing there.  With sink tokens, or if no piece is longer than W - 1, all rows run like that.
One exchange brings all keys of this second call.  Each rank's cost depends on C and W, not on R.

Packed sequences share launches of plain Triton; long ones have a call each, as in attention_varlen.

A rank's gradient of the sink logits is its own rows' share, like that of any other parameter: add
up the ranks'.
"""

import contextlib
import functools
import itertools
from types import SimpleNamespace

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary

from . import entry, kept, policy

SPLIT_OVER = None  # what enable() was given: the group and cu_seqlens


@contextlib.contextmanager
def enable(group=None, cu_seqlens=None):
    """Have layers of Transformers with "sink_attn" attend over sequences split over the group.

    The model gets shard(ids, group, dim=1) and position_ids=positions(N, group)[None], and no
    attention_mask; with packed sequences one row, and shard and positions get cu_seqlens, too.
    Forward and backward belong inside, because checkpointing runs layers again.
    """
    global SPLIT_OVER
    before, SPLIT_OVER = SPLIT_OVER, (group or dist.group.WORLD, cu_seqlens)
    try:
        yield
    finally:
        SPLIT_OVER = before


# ------------------------------------------------------------------ layout
def positions(N: int, group=None, device=None, cu_seqlens=None) -> torch.Tensor:
    """Returns the position of each of this rank's rows in its sequence, (2C,) int64.

    Padding has the positions after the sequence's last.  cu_seqlens: as in shard.
    """
    group = group or dist.group.WORLD
    return _places(_lengths(cu_seqlens, N), group.size(), group.rank(), device)[0]


def shard(x: torch.Tensor, group=None, dim: int = 2, value=0, cu_seqlens=None) -> torch.Tensor:
    """Returns this rank's rows of x, whose dimension dim has all N tokens; value for padding.

    Args:
        x: any tensor, the same on all ranks, or right at least in this rank's rows.
        cu_seqlens: (S + 1,), int32: where each packed sequence begins among the N tokens, and N.
    """
    group, N = group or dist.group.WORLD, x.shape[dim]
    lengths = _lengths(cu_seqlens, N)
    _, tokens = _places(lengths, group.size(), group.rank(), x.device)
    rows = x.index_select(dim, tokens.clamp(max=N - 1))
    if not any(n % (2 * group.size()) for n in lengths):
        return rows
    inside = (tokens < N).view(-1, *[1] * (x.dim() - dim % x.dim() - 1))
    return rows.where(inside, value)


def unshard(x: torch.Tensor, N: int, group=None, dim: int = 2, cu_seqlens=None) -> torch.Tensor:
    """Returns all N tokens of x, of which every rank has its rows; not differentiable."""
    group = group or dist.group.WORLD
    x = x.detach().contiguous()
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x, group=group)
    lengths = _lengths(cu_seqlens, N)
    places = (_places(lengths, group.size(), r, x.device)[1] for r in range(group.size()))
    return torch.cat(parts, dim).index_select(dim, torch.cat([*places]).argsort()[:N])


def _lengths(cu_seqlens, N: int | None) -> list[int]:
    """Returns the lengths of all sequences, N tokens together, or any number of them."""
    return [N] if cu_seqlens is None else entry._read_sequences(cu_seqlens, policy.FAR, N)


def _places(lengths, size: int, rank: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a rank's rows' positions in their sequences and, N for padding, among all N tokens.

    Both (2C,), int64.
    """
    n = torch.tensor(lengths, device=device)
    C = -(-n // (2 * size))
    s = torch.arange(len(n), device=device).repeat_interleave(C)
    offset = torch.arange(len(s), device=device) - (C.cumsum(0) - C)[s]
    where = torch.cat([p * C[s] + offset for p in (rank, 2 * size - 1 - rank)])
    s = s.repeat(2)
    return where, ((n.cumsum(0) - n)[s] + where).where(where < n[s], sum(lengths))


# --------------------------------------------------------------- attention
def attention(
    q, k, v, group=None, *, cu_seqlens=None, window_size=None, sink_size=0, softmax_scale=None,
    sink_logits=None, deterministic=None,
):
    """Causal attention of this rank's queries over the keys of all ranks, differentiable.

    All ranks of the group call it together, and run its backward together.

    Args:
        q: (B, HQ, 2C, D), this rank's rows as shard returns them, any strides.
        k, v: (B, HKV, 2C, D).
        group: of torch.distributed; None for all processes.
        cu_seqlens: (S + 1,), int32: where the packed sequences begin in the whole row, and its
            end, the same on all ranks; each attends only to itself.  B is 1 then.  Or None.
        window_size, sink_size, softmax_scale, deterministic: as in sink_attn.attention.
        sink_logits: (HQ,), the same on all ranks, or None.  Its gradient is this rank's share.

    Returns:
        o: (B, HQ, 2C, D), dtype of q.  Rows that are padding hold nothing of use; give them no
        gradient.

    Raises:
        ValueError: a rank's input breaks the contract of sink_attn.attention, or the ranks differ
        in shapes, dtypes, lengths or options.  One exchange at the first call of a kind finds
        that, and every rank raises.  After that a rank that differs is waited for until the
        group's timeout.
    """
    # The wrapper of torch.compiler.disable takes .1 ms.
    attend = _break_the_graph if torch.compiler.is_compiling() else _attention
    return attend(
        q, k, v, sink_logits, group or dist.group.WORLD, cu_seqlens, window_size, sink_size,
        softmax_scale, deterministic,
    )


def _attention(
    q, k, v, sink_logits, group, cu_seqlens, window_size, sink_size, softmax_scale, deterministic
):
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    q, k, v, scale, C = _agree(
        group, q, k, v, sink_logits, cu_seqlens, window_size, sink_size, softmax_scale,
        bool(deterministic),
    )
    N = 2 * group.size() * max(C)
    if window_size is None or window_size >= N:
        window_size, sink_size = None, 0
    packed = cu_seqlens is not None
    alone = group.size() == 1 and not packed
    merged = window_size is None and not alone  # by a natural lse
    options = window_size, min(sink_size, N), bool(deterministic), scale, merged
    if alone:
        options = None, True, *options
        kernels = entry.picked(q, k, None, *options)
        return entry.AttentionFunction.apply(q, k, v, sink_logits, None, *options, kernels)
    function = _Ring if merged else _Window
    return function.apply(q, k, v, sink_logits, group, C, packed, *options)


_break_the_graph = torch.compiler.disable(_attention)
_AGREED = WeakIdKeyDictionary()  # group -> the kinds of calls that its ranks agreed on


def _agree(
    group, q, k, v, sink_logits, cu_seqlens, window_size, sink_size, softmax_scale, deterministic
):
    """Returns what entry.checked does, and the lengths of the pieces, if all ranks agree."""
    tensors = q, k, v, sink_logits
    gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    call = dict(
        zip("q k v sink_logits".split(), [x if x is None else (*x.shape, x.dtype) for x in tensors],
            strict=True),
        window_size=window_size, sink_size=sink_size, softmax_scale=softmax_scale,
        deterministic=deterministic, gradients=gradients, lengths=None,
    )
    fault, out = None, None
    try:
        out = entry.checked(q, k, v, sink_logits, True, window_size, sink_size, softmax_scale)
        if cu_seqlens is not None:
            call["lengths"] = tuple(_lengths(cu_seqlens, None))
            if q.shape[0] != 1:
                raise ValueError(f"want B = 1 with cu_seqlens; got {q.shape[0]}")
        elif q.shape[2] % 2:
            raise ValueError(f"want an even number of rows, two pieces; got {q.shape[2]}")
        lengths = call["lengths"] or [group.size() * q.shape[2]]
        C = tuple(-(-n // (2 * group.size())) for n in lengths)
        if 2 * sum(C) != q.shape[2]:
            raise ValueError(f"want {2 * sum(C)} rows, as shard returns them; got {q.shape[2]}")
        out = *out, C
    except (ValueError, TypeError) as error:
        fault = str(error)
    calls, key = _AGREED.setdefault(group, set()), tuple(call.values())
    if key in calls:
        return out
    told = [None] * group.size()
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        dist.all_gather_object(told, (call, fault), group=group)
    for rank, (other, its_fault) in enumerate(told):
        if its_fault:
            raise ValueError(f"rank {rank}: {its_fault}")
        for name, want in told[0][0].items():
            if other[name] != want:
                raise ValueError(
                    f"want {name} = {want}, as on rank 0; got {other[name]} on rank {rank}"
                )
    if len(calls) >= MOST:  # all ranks forget at the same call
        calls.clear()
    calls.add(key)
    return out


MOST = 1000  # kinds of calls that are remembered: lengths of packed sequences seldom recur


@functools.lru_cache(MOST)
def _borders(lengths: tuple[int, ...], device) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def _one_by_one(q, lengths, is_causal, window_size, *_) -> list[slice]:
    """Returns the rows of every sequence if each is long enough for a call of its own, else []."""
    work = *q.shape[1::2], is_causal, window_size
    if lengths is None or not policy.are_long(lengths, sum(lengths), max(lengths), *work):
        return []
    ends = itertools.pairwise([0, *itertools.accumulate(lengths)])
    return [slice(first, end) for first, end in ends if first < end]


def _call(q, k, lengths, *options) -> tuple:
    """Returns entry's options of a call, and its kernels.  lengths: of packed sequences, or None.

    options: is_causal and what follows it in entry.picked.
    """
    if lengths is None:
        return (None, None, *options), entry.picked(q, k, None, None, *options)
    return (_borders(lengths, q.device), max(lengths), *options), ("triton", "triton")


def _attend(q, k, v, sink_logits, *call):
    """Returns o and lse.  call: as in _call."""
    if rows := _one_by_one(q, *call):
        parts = [_attend(*(x[:, :, r] for x in (q, k, v)), sink_logits, None, *call[1:])
                 for r in rows]
        return [torch.cat(x, 2) for x in zip(*parts, strict=True)]
    (cu_seqlens, *options), kernels = _call(q, k, *call)
    return entry._forward(q, k, v, sink_logits, cu_seqlens, *options, kernels)


def _gradients(q, k, v, sink_logits, o, lse, do, needs_sinks, *call, sums=None):
    """Returns dq, dk, dv and dsink_logits or None.  o and lse: those of whole rows.

    sums: the dtype of dq, dk and dv; Gluon's have q's in any case.
    """
    if rows := _one_by_one(q, *call):
        *grads, dsinks = zip(*(
            _gradients(*(x[:, :, r] for x in (q, k, v)), sink_logits, o[:, :, r], lse[:, :, r],
                       do[:, :, r], needs_sinks, None, *call[1:], sums=sums)
            for r in rows
        ), strict=True)
        return *(torch.cat(x, 2) for x in grads), sum(dsinks) if needs_sinks else None
    (cu_seqlens, *options), kernels = _call(q, k, *call)
    return entry._backward(
        q, k, v, sink_logits, cu_seqlens, o.contiguous(), lse.contiguous(), do, None, *options,
        kernels, (True, True, True, needs_sinks), sums,
    )


# -------------------------------------------------------------------- ring
def _pass_on(x, group):
    """Start to send x to the next rank.  Returns the previous rank's, and what waits for it."""
    rank, size = group.rank(), group.size()
    if size == 1:
        return x, lambda: None
    received = torch.empty_like(x)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size),
    ])
    return received, lambda: [work.wait() for work in works]


def _heads(x):
    """(B, H, 2C, ...) -> (B, 2H, C, ...): each piece as a head, beside the other of its group."""
    return x.view(x.shape[0], 2 * x.shape[1], x.shape[2] // 2, *x.shape[3:])


def _merge(o, lse, part_o, part_lse) -> None:
    """Add a chunk's result to o and lse, float32, in place."""
    total = torch.logaddexp(lse, part_lse)
    o.mul_((lse - total).exp_()[..., None]).addcmul_(part_o, (part_lse - total).exp_()[..., None])
    lse.copy_(total)


def _travel(kv, group):
    """Yields the keys and values of this rank, of the one before it, and so on round the ring."""
    for _ in range(group.size() - 1):
        next_kv, wait = _pass_on(kv, group)
        yield kv
        wait()
        kv = next_kv
    yield kv


def _meetings(step, rank, C, packed):
    """Yields which of a rank's queries, as a view, see which part of the keys in a step."""
    front, back = slice(C), slice(C, 2 * C)

    def late(x):
        return x[:, :, back]

    if step == 0:  # its own keys: the first call did all of them, or packed those of a piece
        yield from [(late, front)] if packed else []
    elif step <= rank:  # the keys of an earlier rank
        yield _heads, front
    else:
        yield from [(late, front), (late, back)]


class _Ring(torch.autograd.Function):
    """Full causal attention."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, group, C, packed, *options):
        q = q.contiguous()
        own, full = (2 * C if packed else None, True), (C if packed else None, False)
        for step, kv in enumerate(_travel(torch.stack([k, v]), group)):
            if step == 0:
                o, lse = _attend(q, k, v, sink_logits, *own, *options)
                o = o.float()
            for view, piece in _meetings(step, group.rank(), sum(C), packed):
                part = _attend(view(q), *kv[:, :, :, piece], None, *full, *options)
                _merge(view(o), view(lse), *part)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse)
        ctx.group, ctx.C, ctx.packed = group, sum(C), packed
        ctx.own, ctx.full = (*own, *options), (*full, *options)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, sink_logits, o, lse = ctx.saved_tensors
        group, do = ctx.group, do.contiguous()
        for step, kv in enumerate(_travel(torch.stack([k, v]), group)):
            if step == 0:
                dq, *dkv, dsink_logits = _gradients(
                    q, k, v, sink_logits, o, lse, do, ctx.needs_input_grad[3], *ctx.own,
                    sums=torch.float32,
                )
                dq, next_dkv, wait = dq.float(), torch.stack(dkv).float(), lambda: None
            parts = []
            for view, piece in _meetings(step, group.rank(), ctx.C, ctx.packed):
                part, *part_kv, _ = _gradients(
                    view(q), *kv[:, :, :, piece], None, view(o), view(lse), view(do), False,
                    *ctx.full, sums=torch.float32,
                )
                view(dq).add_(part)
                parts.append((piece, part_kv))
            wait()
            dkv = next_dkv
            for piece, part_kv in parts:
                for total, part in zip(dkv, part_kv, strict=True):
                    total[:, :, piece].add_(part)
            next_dkv, wait = _pass_on(dkv, group)
        dq = dq.to(q.dtype)
        wait()  # for those that are home
        return dq, *next_dkv.to(k.dtype), dsink_logits, *[None] * (1 + len(ctx.own))


# ------------------------------------------------------------------ window
def _second_call(C, rank, size, window, sink_size, everything):
    """Describes what runs [sink tokens | halo | own] on a rank, one sequence for each piece.

    Args:
        C: the lengths of the pieces of every sequence, (S,) int64.
        everything: whether all rows of a piece run, or only those that the first call got wrong.

    Returns:
        lengths: (2S,) int64, 0 for a piece that does not run.
        owners, rows: of every key, its rank, and the row that it is there.
        own: bool, whether a key's query counts; it is this rank's, in the same row.
    """
    c, S = C.repeat(2), len(C)
    first = (C.cumsum(0) - C).repeat(2)
    p = torch.tensor([rank, 2 * size - 1 - rank]).repeat_interleave(S)
    again = c if everything else c.clamp(max=window - 1) * (p > 0)
    start = (p * c - window + 1).clamp(min=0)  # of the halo
    near = start.clamp(max=sink_size)
    lengths = (near + p * c - start + again) * (again > 0)
    s = torch.arange(2 * S).repeat_interleave(lengths)
    i = torch.arange(len(s)) - (lengths.cumsum(0) - lengths)[s]
    key = i + (i >= near[s]) * (start - near)[s]
    piece = key // c[s]
    owners = torch.minimum(piece, 2 * size - 1 - piece)
    rows = (piece >= size) * C.sum() + first[s] + key % c[s]
    return lengths, owners, rows, i >= (lengths - again)[s]


@functools.lru_cache(8)
def _plan(C, rank, size, window, sink_size, device):
    """Returns what a window's calls need besides tensors, made once for all layers.

    Attributes, indices in int64:
        everything: there is no first call.
        lengths: of the second call's sequences; None if there is no call.
        sent, received: how many keys go to and come from each rank.
        given: this rank's rows with the keys that it sends, rank by rank.
        arrivals, arrived: of each key of the second call, its number among those that came; and
            the reverse.
        again, queries: this rank's rows that run again, and where they are in the second call.
        padded: of each row of the second call, which of this rank's it is, or -1.
        sums: (which, rows): the gradients of those of the given keys that are added up in one
            step, with no row twice, so that the order of a row's sum never varies.
    """
    everything = sink_size > 0 or max(C) < window
    lengths, owners, rows, own = zip(*(
        _second_call(torch.tensor(C), r, size, window, sink_size, everything) for r in range(size)
    ), strict=True)
    given = torch.cat([row[owner == rank] for row, owner in zip(rows, owners, strict=True)])
    same = given.argsort(stable=True)
    turn = torch.empty_like(given)  # how many rows before a given one are the same
    turn[same] = torch.arange(len(given)) - torch.searchsorted(given[same], given[same])
    sums = [(turn == t).nonzero()[:, 0] for t in turn.unique()]
    arrived, queries = owners[rank].argsort(stable=True), own[rank].nonzero()[:, 0]

    def there(x):
        return x.to(device, non_blocking=True)

    return SimpleNamespace(
        everything=everything, sent=[int((x == rank).sum()) for x in owners],
        received=owners[rank].bincount(minlength=size).tolist(), given=there(given),
        arrivals=there(arrived.argsort()), arrived=there(arrived),
        again=there(rows[rank][queries]), queries=there(queries),
        padded=there(rows[rank].where(own[rank], -1)),
        sums=[(there(x), there(given[x])) for x in sums],
        lengths=tuple(lengths[rank].tolist()) if len(given) else None,
    )


def _swap(x, sent, received, group):
    """Start to send rows of x (rows, ...) to all ranks.  Returns theirs, and what waits for them.

    sent, received: how many go to and come from each rank, this one included.
    """
    got = x.new_empty(sum(received), *x.shape[1:])
    return got, dist.all_to_all_single(got, x, received, sent, group=group, async_op=True).wait


@triton.jit(do_not_specialize=["n"])
def _move_kernel(
    x_ptr, out_ptr, source_ptr, target_ptr, n, H,
    stride_xb, stride_xh, stride_xn, stride_xd, stride_ob, stride_oh, stride_on, stride_od,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr,
):
    """Do what _move says for ROWS rows of one head.  Grid: (cdiv(n, ROWS), B * H)."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    cols = tl.arange(0, BLOCK_D)[None, :]
    inside = (i < n)[:, None] & (cols < D)
    source = tl.load(source_ptr + i, mask=i < n, other=-1)[:, None]
    target = i[:, None].to(tl.int64)
    if target_ptr is not None:
        target = tl.load(target_ptr + i, mask=i < n, other=0)[:, None]
    x = x_ptr + b * stride_xb + h * stride_xh + source * stride_xn + cols * stride_xd
    out = out_ptr + b * stride_ob + h * stride_oh + target * stride_on + cols * stride_od
    rows = tl.load(x, mask=inside & (source >= 0), other=0.0)
    if ADD:
        rows = rows.to(tl.float32) + tl.load(out, mask=inside, other=0.0).to(tl.float32)
    tl.store(out, rows.to(out_ptr.dtype.element_ty), mask=inside)


def _move(x, source, out, target=None, add=False) -> None:
    """Copy rows of x to rows of out, or add them to those.  One launch: index_select takes 50 us.

    Args:
        x, out: (B, H, N, D), any N and strides.
        source, target: (n,) int64, a row of x, or -1 for zeros, and one of out, or None for 0 to
            n - 1; no row of out twice.
    """
    (B, H, _, D), n, rows = x.shape, len(source), 32
    with kept.on(x.device):
        kept.launch(
            (_move_kernel, x.device, kept.form(x, out), target is None, add), _move_kernel,
            (triton.cdiv(n, rows), B * H, 1), x, out, source, target, n, H, *x.stride(),
            *out.stride(), D, triton.next_power_of_2(D), rows, add, num_warps=4,
        )


def _padded(x, plan):
    """x (B, HQ, N, D) -> (1, B * HQ, rows of the second call, D), those that run again or zeros."""
    B, HQ, _, D = x.shape
    out = x.new_empty(B, HQ, len(plan.padded), D)
    _move(x, plan.padded, out)
    return out.flatten(0, 1)[None]


def _repeat(sink_logits, B: int):
    """Returns the sink logits of B * HQ heads."""
    return None if sink_logits is None else sink_logits.expand(B, -1).flatten()


class _Window(torch.autograd.Function):
    """A window, perhaps with sink tokens."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, group, C, packed, window, sink_size, *options):
        plan = _plan(C, group.rank(), group.size(), window, sink_size, q.device)
        options = True, window, sink_size, *options
        first, second = (2 * C if packed else None, *options), (plan.lengths, *options)
        calls, (B, HKV, _, D) = [None] * 10, k.shape
        if plan.lengths:
            sent = k.new_empty(len(plan.given), 2, B, HKV, D)
            for x, out in zip((k, v), sent.permute(1, 2, 3, 0, 4), strict=True):
                _move(x, plan.given, out)
            got, wait = _swap(sent, plan.sent, plan.received, group)
        if plan.everything:
            o = torch.empty_like(q, memory_format=torch.contiguous_format)
        else:
            o, lse = _attend(q, k, v, sink_logits, *first)
            calls[:5] = q, k, v, o, lse
        if plan.lengths:
            wait()
            keys = k.new_empty(2, B * HKV, len(plan.arrivals), D)
            _move(got.view(-1, 2, B * HKV, D).permute(1, 2, 0, 3), plan.arrivals, keys)
            again = _padded(q, plan), *keys[:, None]
            calls[5:] = *again, *_attend(*again, _repeat(sink_logits, B), *second)
            _move(calls[8].unflatten(1, (B, -1))[0], plan.queries, o, plan.again)
            if not plan.everything:
                lse.index_fill_(2, plan.again, torch.inf)
        ctx.save_for_backward(sink_logits, *calls)
        ctx.group, ctx.plan, ctx.first, ctx.second, ctx.shape = group, plan, first, second, k.shape
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        (sinks, *saved), plan = ctx.saved_tensors, ctx.plan
        first, second, (B, HKV, N, D) = saved[:5], saved[5:], ctx.shape
        needs_sinks, dlogits, dtype = ctx.needs_input_grad[3], [], None
        if sinks is not None:  # the shares of both calls are added before they are rounded
            dtype, sinks = sinks.dtype, sinks.float()
        if plan.lengths:
            *again, o, lse = second
            dq_again, *dkeys, dlogit = _gradients(
                *again, _repeat(sinks, B), o, lse, _padded(do, plan), needs_sinks, *ctx.second,
                sums=torch.float32,
            )
            dlogits += dlogit.view(B, -1).unbind() if needs_sinks else []
            back = lse.new_empty(len(plan.arrived), 2, B * HKV, D)  # float32, as on all ranks
            for x, out in zip(dkeys, back.permute(1, 2, 0, 3)[:, None], strict=True):
                _move(x, plan.arrived, out)
            got, wait = _swap(back, plan.received, plan.sent, ctx.group)
        if plan.everything:
            dq = torch.empty_like(do, memory_format=torch.contiguous_format)
            dkv = do.new_zeros(2, B, HKV, N, D, dtype=torch.float32).unbind()
        else:
            q, k, v, o, lse = first
            dq, *dkv, dlogit = _gradients(
                q, k, v, sinks, o, lse, do, needs_sinks, *ctx.first,
                sums=torch.float32 if ctx.first[0] else None,  # many rows of short pieces get more
            )
            dlogits.append(dlogit)
        if plan.lengths:
            _move(dq_again.unflatten(1, (B, -1))[0], plan.queries, dq, plan.again)
            wait()
            parts = got.view(-1, 2, B, HKV, D).permute(1, 2, 3, 0, 4)
            for which, rows in plan.sums:
                for part, total in zip(parts, dkv, strict=True):
                    _move(part, which, total, rows, add=True)
        dlogits = sum(dlogits[1:], dlogits[0]).to(dtype) if needs_sinks else None
        return *(x.to(do.dtype) for x in (dq, *dkv)), dlogits, *[None] * (1 + len(ctx.first))
