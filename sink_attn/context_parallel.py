"""Attention over sequences that are split over the GPUs of a group (context parallelism).

    from sink_attn import context_parallel
    x = context_parallel.shard(tokens, group, dim=1)     # this rank's rows
    o = context_parallel.attention(q, k, v, group, window_size=128, sink_logits=sinks)

Layout.  N tokens are cut into 2R pieces of C = ceil(N / 2R), the last ones padded at their end.
Rank r of R holds pieces r and 2R - 1 - r, one after the other, so that all ranks have the same
causal work, for a full mask and for a window.  With R = 2:

    piece      0    1    2    3
    rank       0    1    1    0

Full causal attention is a ring.  A rank first attends to its own keys; then keys and values travel
from rank to rank, the next ones in flight while a kernel works on the last.  Each chunk's o and lse
are merged into the sums in float32.  The backward gives every chunk the merged o and lse, which
makes its P that of the whole row, and dk and dv travel along with the keys that they belong to.

    keys of rank j   front piece j          back piece 2R - 1 - j
    j < r            seen by both pieces    seen by none
    j > r            seen by the back piece, both of them

A window needs only the W - 1 keys before each piece, its halo, from one neighbour, or several where
a piece is shorter.  The kernel first runs on the rank's rows as they are, which is right except for
the first W - 1 rows of most pieces.  Those run again, with [sink tokens | halo | own] as keys and
rows of zeros before the queries; in the backward of the first call their lse is infinite, so that
they add nothing there.  With sink tokens, or if W > C, all rows run like that.  Each rank's cost
depends on C and W, not on R.

A rank's gradient of the sink logits is its own rows' share, like that of any other parameter: add
up the ranks'.
"""

import contextlib
import itertools

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary

from . import entry

FULL = None, False, None, 0  # max_seqlen, is_causal, window_size, sink_size


SPLIT_OVER = None  # the group that enable() was given


@contextlib.contextmanager
def enable(group=None):
    """Have layers of Transformers with "sink_attn" attend over sequences split over the group.

    The model gets shard(ids, group, dim=1) and position_ids=positions(N, group)[None], and no
    attention_mask.  Forward and backward belong inside, because checkpointing runs layers again.
    """
    global SPLIT_OVER
    before, SPLIT_OVER = SPLIT_OVER, group or dist.group.WORLD
    try:
        yield
    finally:
        SPLIT_OVER = before


# ------------------------------------------------------------------ layout
def positions(N: int, group=None, device=None) -> torch.Tensor:
    """Returns the position of each of this rank's rows, (2C,) int64; N and more for padding."""
    group = group or dist.group.WORLD
    C, rows = -(-N // (2 * group.size())), torch.arange
    return torch.cat([rows(p * C, (p + 1) * C, device=device) for p in _pieces(group)])


def shard(x: torch.Tensor, group=None, dim: int = 2, value=0) -> torch.Tensor:
    """Returns this rank's rows of x, whose dimension dim has all N tokens; value for padding.

    Args:
        x: any tensor, the same on all ranks, or right at least in this rank's rows.
    """
    group, N = group or dist.group.WORLD, x.shape[dim]
    where = positions(N, group, x.device)
    rows = x.index_select(dim, where.clamp(max=N - 1))
    if N % (2 * group.size()) == 0:
        return rows
    inside = (where < N).view(-1, *[1] * (x.dim() - dim % x.dim() - 1))
    return rows.where(inside, value)


def unshard(x: torch.Tensor, N: int, group=None, dim: int = 2) -> torch.Tensor:
    """Returns all N tokens of x, of which every rank has its rows; not differentiable."""
    group = group or dist.group.WORLD
    x = x.detach().contiguous()
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x, group=group)
    fronts, backs = zip(*(part.chunk(2, dim) for part in parts), strict=True)
    return torch.cat([*fronts, *reversed(backs)], dim).narrow(dim, 0, N)


def _pieces(group) -> tuple[int, int]:
    """Returns the numbers of this rank's two pieces."""
    return group.rank(), 2 * group.size() - 1 - group.rank()


# --------------------------------------------------------------- attention
@torch.compiler.disable
def attention(
    q, k, v, group=None, *, window_size=None, sink_size=0, softmax_scale=None, sink_logits=None,
    deterministic=None,
):
    """Causal attention of this rank's queries over the keys of all ranks, differentiable.

    All ranks of the group call it together, and run its backward together.

    Args:
        q: (B, HQ, 2C, D), this rank's rows as shard returns them, any strides.
        k, v: (B, HKV, 2C, D).
        group: of torch.distributed; None for all processes.
        window_size, sink_size, softmax_scale, deterministic: as in sink_attn.attention.
        sink_logits: (HQ,), the same on all ranks, or None.  Its gradient is this rank's share.

    Returns:
        o: (B, HQ, 2C, D), dtype of q.  Rows that are padding hold nothing of use; give them no
        gradient.

    Raises:
        ValueError: a rank's input breaks the contract of sink_attn.attention, or the ranks differ
        in shapes, dtypes or options.  One exchange at the first call of a kind finds that, and
        every rank raises.  After that a rank that differs is waited for until the group's timeout.
    """
    group = group or dist.group.WORLD
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    q, k, v, scale = _agree(
        group, q, k, v, sink_logits, window_size, sink_size, softmax_scale, bool(deterministic)
    )
    N = q.shape[2] * group.size()
    if window_size is None or window_size >= N:
        window_size, sink_size = None, 0
    merged = window_size is None and group.size() > 1  # by a natural lse
    options = window_size, min(sink_size, N), bool(deterministic), scale, merged
    if group.size() == 1:
        options = None, True, *options
        kernels = entry.picked(q, k, None, *options)
        return entry.AttentionFunction.apply(q, k, v, sink_logits, None, *options, kernels)
    function = _Ring if merged else _Window
    return function.apply(q, k, v, sink_logits, group, *options)


_AGREED = WeakIdKeyDictionary()  # group -> the kinds of calls that its ranks agreed on


def _agree(group, q, k, v, sink_logits, window_size, sink_size, softmax_scale, deterministic):
    """Returns what entry.checked does, if all ranks of the group call with the same."""
    tensors = q, k, v, sink_logits
    gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    call = dict(
        zip("q k v sink_logits".split(), [x if x is None else (*x.shape, x.dtype) for x in tensors],
            strict=True),
        window_size=window_size, sink_size=sink_size, softmax_scale=softmax_scale,
        deterministic=deterministic, gradients=gradients,
    )
    fault, out = None, None
    try:
        out = entry.checked(q, k, v, sink_logits, True, window_size, sink_size, softmax_scale)
        if q.shape[2] % 2:
            raise ValueError(f"want an even number of rows, two pieces; got {q.shape[2]}")
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
    calls.add(key)
    return out


def _attend(q, k, v, sink_logits, *options):
    """Returns o and lse."""
    kernels = entry.picked(q, k, None, *options)
    return entry._forward(q, k, v, sink_logits, None, *options, kernels)


def _gradients(q, k, v, sink_logits, o, lse, do, needs_sinks, *options):
    """Returns dq, dk, dv and dsink_logits or None.  o and lse: those of whole rows, contiguous."""
    kernels = entry.picked(q, k, None, *options)
    return entry._backward(
        q, k, v, sink_logits, None, o, lse, do, None, *options, kernels,
        (True, True, True, needs_sinks),
    )


def _exchange(moves, group):
    """Start to move tensors between ranks.

    Args:
        moves: (send: bool, x, peer) for all that this rank sends and receives, in an order in which
            those between two ranks come alike on both.

    Returns:
        A function that waits for all of them.
    """
    if not moves:
        return lambda: None
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend if send else dist.irecv, x, group=group, group_peer=peer)
        for send, x, peer in moves
    ])
    return lambda: [work.wait() for work in works]


# -------------------------------------------------------------------- ring
def _pass_on(x, group):
    """Start to send x to the next rank.  Returns the previous rank's, and what waits for it."""
    rank, size, received = group.rank(), group.size(), torch.empty_like(x)
    moves = (True, x, (rank + 1) % size), (False, received, (rank - 1) % size)
    return received, _exchange(moves, group)


def _heads(x):
    """(B, H, 2C, ...) -> (B, 2H, C, ...): each piece as a head, beside the other of its group."""
    return x.view(x.shape[0], 2 * x.shape[1], x.shape[2] // 2, *x.shape[3:])


def _merge(o, lse, part_o, part_lse) -> None:
    """Add a chunk's result to o and lse, float32, in place."""
    total = torch.logaddexp(lse, part_lse)
    o.mul_((lse - total).exp_()[..., None]).addcmul_(part_o, (part_lse - total).exp_()[..., None])
    lse.copy_(total)


def _meetings(step, rank, C):
    """Yields which of a rank's queries, as a view, see which part of the keys in a step."""
    front, back = slice(C), slice(C, 2 * C)
    if step <= rank:  # the keys of an earlier rank
        yield _heads, front
    else:
        yield from ((lambda x: x[:, :, back], piece) for piece in (front, back))


class _Ring(torch.autograd.Function):
    """Full causal attention."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, group, *options):
        q, kv = q.contiguous(), torch.stack([k, v])
        own, full, C = (None, True, *options), (*FULL, *options[2:]), q.shape[2] // 2
        next_kv, wait = _pass_on(kv, group)
        o, lse = _attend(q, k, v, sink_logits, *own)
        o = o.float()
        for step in range(1, group.size()):
            wait()
            kv = next_kv
            if step < group.size() - 1:
                next_kv, wait = _pass_on(kv, group)
            for view, piece in _meetings(step, group.rank(), C):
                part = _attend(view(q), *kv[:, :, :, piece], None, *full)
                _merge(view(o), view(lse), *part)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse)
        ctx.group, ctx.own, ctx.full = group, own, full
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, sink_logits, o, lse = ctx.saved_tensors
        group, do, kv, C = ctx.group, do.contiguous(), torch.stack([k, v]), q.shape[2] // 2
        next_kv, wait = _pass_on(kv, group)
        dq, *dkv, dsink_logits = _gradients(
            q, k, v, sink_logits, o, lse, do, ctx.needs_input_grad[3], *ctx.own
        )
        dq, dkv = dq.float(), torch.stack(dkv).float()
        for step in range(1, group.size()):
            next_dkv, wait_dkv = _pass_on(dkv, group)
            wait()
            kv, parts = next_kv, []
            if step < group.size() - 1:
                next_kv, wait = _pass_on(kv, group)
            for view, piece in _meetings(step, group.rank(), C):
                part, *part_kv, _ = _gradients(
                    view(q), *kv[:, :, :, piece], None, view(o).contiguous(),
                    view(lse).contiguous(), view(do), False, *ctx.full,
                )
                view(dq).add_(part)
                parts.append((piece, part_kv))
            wait_dkv()
            dkv = next_dkv
            for piece, part_kv in parts:
                for total, part in zip(dkv, part_kv, strict=True):
                    total[:, :, piece].add_(part)
        dkv, wait = _pass_on(dkv, group)  # home
        dq = dq.to(q.dtype)
        wait()
        return dq, *dkv.to(k.dtype), dsink_logits, *[None] * len(ctx.own[1:])


# ------------------------------------------------------------------ window
def _plan_halos(group, C, window, again):
    """Returns the moves of halos that this rank takes part in, in an order that all ranks share.

    Each is (p, source, n, taker, giver): the last n rows of the earlier piece `source` belong to
    the halo of piece p; taker and giver are the ranks of p and of source.
    """
    rank, size, plan = group.rank(), group.size(), []
    for p in range(2 * size):
        if again < C and p % size == 0:
            continue  # nothing, or this rank's other piece, is before it
        for i in range(1, min(p, -(-(window - 1) // C)) + 1):  # a long halo is in several pieces
            taker, giver = (min(x, 2 * size - 1 - x) for x in (p, p - i))
            if rank in (taker, giver):
                plan.append((p, p - i, min(C, window - 1 - (i - 1) * C), taker, giver))
    return plan


def _move_halos(group, plan, like, shape, give, home=False):
    """Start to move halos to their pieces, or their gradients home.

    Args:
        like, shape: a tensor of the rows' dtype and device; k's shape, (B, HKV, 2C, D).
        give(p, source, n): the rows to send, (2, B, HKV, n, D).

    Returns:
        {(p, source, n): rows} for what this rank receives, and a function that waits for them.
    """
    rank, (B, HKV, _, D), got, moves = group.rank(), shape, {}, []
    for *halo, taker, giver in plan:
        if home:
            taker, giver = giver, taker
        x = give(*halo) if rank == giver else like.new_empty(2, B, HKV, halo[2], D)
        if rank == taker:
            got[tuple(halo)] = x
        if taker != giver:
            moves.append((rank == giver, x, taker if rank == giver else giver))
    return got, _exchange(moves, group)


def _held_sinks(begin, C, sink_size):
    """Returns (piece, how many sink tokens it has) for this rank's pieces that have any."""
    return [(p, min(sink_size - p * C, C)) for p in begin if p * C < sink_size]


def _join(xs, dim):
    """torch.cat, which would copy a single tensor."""
    return xs[0] if len(xs) == 1 else torch.cat(xs, dim)


def _lower(xs, rows):
    """Put tensors one after the other in the batch, below this many rows of zeros."""
    return torch.nn.functional.pad(_join(xs, 0), (0, 0, rows, 0))


class _Window(torch.autograd.Function):
    """A window, perhaps with sink tokens."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, group, window, sink_size, *options):
        C, options = q.shape[2] // 2, (None, True, window, sink_size, *options)
        again = C if sink_size else min(C, window - 1)  # rows of a piece that run with its halo
        begin = dict(zip(_pieces(group), (0, C), strict=True))  # of a piece in this rank's rows

        def kv(p, n, first=0):
            return torch.stack([x.narrow(2, begin[p] + first, n) for x in (k, v)])

        plan = _plan_halos(group, C, window, again)
        got, wait = _move_halos(group, plan, k, k.shape, lambda _, p, n: kv(p, n, C - n))
        sinks = k.new_zeros(2, *k.shape[:2], sink_size, k.shape[3])
        for p, n in _held_sinks(begin, C, sink_size):
            sinks.narrow(3, p * C, n).copy_(kv(p, n))
        if sink_size:
            dist.all_reduce(sinks, group=group)

        def before(p):
            """Returns how many sink tokens, and how many other keys, go before piece p."""
            start = max(p * C - window + 1, 0)
            return min(sink_size, start), p * C - start

        whole, saved, calls = (None,) * 5, [], []
        if again < C:
            o, lse = _attend(q, k, v, sink_logits, *options)
            whole = q, k, v, o, lse
        else:
            o = q.new_empty(q.shape)
        wait()
        again_in = [p for p in begin if again == C or again and p % group.size()]
        for (near, halo), alike in itertools.groupby(again_in, before):
            ps, skip = list(alike), near + halo
            halos = ([x for (to, *_), x in sorted(got.items()) if to == p] for p in ps)
            keys = _join([
                _join([sinks.narrow(3, 0, near)] * bool(near) + [*parts, kv(p, again)], 3)
                for p, parts in zip(ps, halos, strict=True)
            ], 1)
            queries = _lower([q.narrow(2, begin[p], again) for p in ps], skip)
            o_again, lse_again = _attend(queries, *keys, sink_logits, *options)
            for p, x in zip(ps, o_again.chunk(len(ps)), strict=True):
                o.narrow(2, begin[p], again).copy_(x[:, :, skip:])
                if again < C:
                    lse.narrow(2, begin[p], again).fill_(torch.inf)
            saved += queries, keys, o_again, lse_again
            calls.append((ps, near, skip))
        ctx.save_for_backward(sink_logits, *whole, *saved)
        ctx.group, ctx.options, ctx.shape, ctx.plan = group, options, k.shape, plan
        ctx.calls, ctx.begin, ctx.again = calls, begin, again
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        sink_logits, q, k, v, o, lse, *saved = ctx.saved_tensors
        group, begin, again, (B, HKV, N, D) = ctx.group, ctx.begin, ctx.again, ctx.shape
        C, sink_size, needs_sinks = N // 2, ctx.options[3], ctx.needs_input_grad[3]
        dsinks = do.new_zeros(2, B, HKV, sink_size, D, dtype=torch.float32)
        parts, dlogits, dtype = {}, [], None
        if sink_logits is not None:  # the shares of both calls are added before they are rounded
            dtype, sink_logits = sink_logits.dtype, sink_logits.float()

        def give(p, source, n):
            skip, _, *dkv = parts[p]
            end = skip - (p - source - 1) * C
            return torch.stack([x[:, :, end - n : end] for x in dkv])

        for i, (ps, near, skip) in enumerate(ctx.calls):
            queries, keys, *outputs = saved[4 * i : 4 * i + 4]
            do_again = _lower([do.narrow(2, begin[p], again) for p in ps], skip)
            *grads, dlogit = _gradients(
                queries, *keys, sink_logits, *outputs, do_again, needs_sinks, *ctx.options
            )
            dlogits.append(dlogit)
            for p, *x in zip(ps, *(grad.chunk(len(ps)) for grad in grads), strict=True):
                parts[p] = skip, *x
                if near:
                    dsinks[:, :, :, :near] += torch.stack([y[:, :, :near] for y in x[1:]])
        got, wait = _move_halos(group, ctx.plan, do, ctx.shape, give, home=True)
        if sink_size:
            dist.all_reduce(dsinks, group=group)
        if q is None:
            dq = torch.empty_like(do, memory_format=torch.contiguous_format)
            dkv = do.new_zeros(2, B, HKV, N, D, dtype=torch.float32).unbind()
        else:
            dq, *dkv, dlogit = _gradients(
                q, k, v, sink_logits, o, lse, do, needs_sinks, *ctx.options
            )
            dlogits.append(dlogit)

        def add(p, first, xs):
            for grad, x in zip(dkv, xs, strict=True):
                grad.narrow(2, begin[p] + first, x.shape[2]).add_(x)

        for p, (skip, x, *xs) in parts.items():
            dq.narrow(2, begin[p], again).copy_(x[:, :, skip:])
            add(p, 0, [y[:, :, skip:] for y in xs])
        wait()
        for (_, p, n), xs in got.items():
            add(p, C - n, xs)
        for p, n in _held_sinks(begin, C, sink_size):
            add(p, 0, dsinks.narrow(3, p * C, n))
        dlogits = sum(dlogits[1:], dlogits[0]).to(dtype) if needs_sinks else None
        return dq, *(x.to(do.dtype) for x in dkv), dlogits, *[None] * len(ctx.options[1:])
