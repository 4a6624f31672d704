"""The kernels as an attention implementation of Transformers: register() gives them a NAME.

    import sink_attn
    sink_attn.register()
    model = GptOssForCausalLM.from_pretrained(
        path, attn_implementation="sink_attn", dtype=torch.bfloat16)

Transformers calls two functions, which it finds under one name.  Once per forward and kind of
layer, the mask function returns what each query sees, and every layer passes that on to the
attention function.  Most implementations return an (N, N) mask.  A flash kernel computes its masks
itself, so ours returns a CourseMask of a few bytes: the window, and which tokens are padding.

If rows hold padding or several packed sequences, all sequences go one after the other into one call
of attention_varlen, which keeps them apart.  Padding is left out, and its output is zero, as in the
flash attention of Transformers.

Everything else is refused with a message: a result that differs from the model's would be noticed,
if at all, after days of training.
"""

import itertools
import reprlib

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    eager_mask,
    packed_sequence_mask_function,
    sliding_window_causal_mask_function,
)

from . import context_parallel, entry

# Not "flash_...": Transformers replaces a name with "flash" in it by a kernel from its hub.
NAME = "sink_attn"
INSTEAD = 'model.set_attn_implementation("eager") does that'

# Options that models pass to every attention function and that do not change its result.
HARMLESS = {
    "cache_position", "num_items_in_batch", "output_attentions", "output_hidden_states",
    "output_router_logits", "return_dict", "shift_labels", "use_cache",
}
# What a collator, such as TRL's, says about packed sequences besides position_ids.
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
MASK = "the mask function"  # most models tell it about packed sequences, too


def register() -> None:
    """Register NAME with Transformers as an attn_implementation.  Calling it twice is harmless."""
    AttentionInterface.register(NAME, course_attention)
    AttentionMaskInterface.register(NAME, course_mask)


class CourseMask:
    """The mask of all layers of one kind in one forward: causal, perhaps with a window.

    Attributes:
        window: how many keys a query sees, its own included; None for all.
        kept: bool (B, N), False where a token is padding; None if none is.
        numbers: (B, N), the number of each token's packed sequence within its row; None if the
            mask function was told of none.
    """

    def __init__(self, window: int | None, kept: torch.Tensor | None, numbers=None):
        self.window, self.kept, self.numbers = window, kept, numbers
        self._cut, self._split = None, False

    def cut(self, position_ids, packing: dict, B: int, N: int, device) -> tuple | None:
        """Find the sequences, for attention_varlen; returns None if each row is one sequence.

        The first layer that asks reads them from the GPU; the others get the kept result.

        Returns:
            lengths: of all sequences, row by row.
            cu_seqlens: (S + 1,), int32, on device: where they begin, and the end.
            tokens: indices of their tokens among all B * N; None if they have all.
        """
        if self._cut is None:
            packing = packing | {MASK: self.numbers}
            told = {name: torch.as_tensor(x).cpu() for name, x in packing.items() if x is not None}
            if position_ids is None:
                starts = told.get("cu_seq_lens_q")
                if starts is None and MASK in told:
                    starts = torch.tensor(_borders(told[MASK], B, N))
                if starts is not None:
                    starts, i = starts.unique(), torch.arange(B * N)
                    starts = starts[torch.searchsorted(starts, i, right=True) - 1]
                    position_ids = (i - starts).view(B, N)
            rows = _pieces(self.kept, position_ids, B, N)
            _check_packing(told, rows, N)
            lengths = [n for pieces in rows for n, is_sequence in pieces if is_sequence]
            borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
            whole = self.kept is None or lengths == [N] * B
            tokens = None if whole else self.kept.flatten().nonzero()[:, 0]
            self._cut = lengths, borders.to(device), tokens
        return None if self._cut[0] == [N] * B else self._cut

    def check_split(self, position_ids, packing: dict, N: int, group, cu_seqlens) -> None:
        """Raise if the N tokens are not this rank's part of a row that is split over the group."""
        if self._split:
            return
        told = [name for name, x in packing.items() if x is not None]
        if self.kept is not None or told:
            got = ", ".join(told) or "an attention_mask with padding"
            raise ValueError(
                f"want whole rows, or cu_seqlens in context_parallel.enable; got {got}"
            )
        length = N * group.size() if cu_seqlens is None else None
        want = context_parallel.positions(length, group, cu_seqlens=cu_seqlens)
        if position_ids is None or not all(torch.equal(x, want) for x in position_ids.cpu()):
            got = position_ids if position_ids is None else reprlib.repr(position_ids[0].tolist())
            raise ValueError(
                "want position_ids as context_parallel.positions returns them, "
                f"{reprlib.repr(want.tolist())}; got {got}"
            )
        self._split = True

    def __getitem__(self, _):
        raise ValueError(
            "want a mask that goes to the layers as it is; got a model that takes parts of it: "
            f"{INSTEAD}"
        )


class OneNewToken:
    """The mask of one new query per row over cached keys.  mask: (B, 1, 1, N_K), 0 or very low."""

    def __init__(self, mask: torch.Tensor):
        self.mask = mask


# --------------------------------------------------------------------- masks
def course_mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0,
    mask_function=causal_mask_function, attention_mask=None, config=None, **options,
):
    """The mask function of NAME.  Returns a CourseMask, or OneNewToken while generating.

    Args:
        mask_function: what Transformers would evaluate for every (query, key).
        attention_mask: bool (B, kv_length), False for padding; or None.
        config: the model's; no window but its sliding_window is known here.

    Raises:
        ValueError: the kernel does not have this mask.
    """
    if q_length == 1 and kv_length > 1:  # one row of scores per head needs no flash kernel
        return OneNewToken(eager_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
            **options,
        ))
    if q_length != kv_length or q_offset != kv_offset:
        raise ValueError(
            f"want as many keys as queries, or a single query; got {q_length} queries and "
            f"{kv_length} keys, as with a static cache or a prompt in parts: {INSTEAD}"
        )
    mask_function, numbers = _unpacked(mask_function)
    window = getattr(config, "sliding_window", None)
    if same_function(mask_function, causal_mask_function):
        window = None
    elif window is None or not same_function(
        mask_function, sliding_window_causal_mask_function(window)
    ):
        raise ValueError(
            "want a causal mask, or a sliding window of config.sliding_window, each perhaps with "
            f"packed sequences; got another mask function, "
            f"{getattr(mask_function, '__qualname__', mask_function)}: {INSTEAD}"
        )
    if attention_mask is not None and attention_mask.shape != (batch_size, kv_length):
        want, got = [batch_size, kv_length], list(attention_mask.shape)
        raise ValueError(f"want attention_mask (B, N) = {want}; got {got}: {INSTEAD}")
    if attention_mask is not None and bool(attention_mask.all()):
        attention_mask = None
    return CourseMask(window, attention_mask, numbers)


def _unpacked(mask_function) -> tuple:
    """Undo what Transformers makes of a mask function f for packed sequences.

    Models that pass position_ids to their mask get and_masks(f, packed).  Since 5.24 f is called
    with positions within a sequence, whose differences are the same as in the row.

    Returns:
        f and the sequences' numbers (B, N); for any other mask function, itself and None.
    """
    parts = _caught(mask_function, and_masks())
    if parts is None or len(parts["mask_functions"]) != 2:
        return mask_function, None
    f, packed = parts["mask_functions"]
    packed = _caught(packed, packed_sequence_mask_function(None))
    if packed is None:
        return mask_function, None
    remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
    remapped = remap and _caught(f, remap(None, None))
    return remapped["mask_function"] if remapped else f, packed["packed_sequence_mask"]


def _caught(f, like) -> dict | None:
    """Returns the arguments that f's factory closed over; None if another than like's made f."""
    if getattr(f, "__code__", None) is not like.__code__:
        return None
    return dict(zip(f.__code__.co_freevars, (x.cell_contents for x in f.__closure__), strict=True))


def same_function(f, g) -> bool:
    """Whether f and g have the same code and close over the same values."""
    if f is g:
        return True
    if type(f) is not type(g):
        return False
    if isinstance(f, (list, tuple)):
        return len(f) == len(g) and all(map(same_function, f, g))
    if not hasattr(f, "__code__"):
        return isinstance(f, (bool, int, str)) and f == g
    cells = [[cell.cell_contents for cell in x.__closure__ or ()] for x in (f, g)]
    return f.__code__ is g.__code__ and same_function(*cells)


def _pieces(kept, position_ids, B: int, N: int) -> list[list[tuple]]:
    """Returns the pieces of each row, as _cut_row does.

    kept: (B, N) or None.  position_ids: (1 or B, N) or None.
    """
    whole = [[(N, True)] for _ in range(B)]
    if position_ids is not None:
        steps = position_ids.diff(dim=-1) == 1
        if bool(steps.all()):
            position_ids = None
    if kept is None and position_ids is None:
        return whole
    kept = torch.ones(B, N, dtype=torch.bool) if kept is None else kept.cpu()
    positions = torch.arange(N)[None] if position_ids is None else position_ids.cpu()
    return [_cut_row(*row) for row in zip(kept, positions.expand(B, N), strict=True)]


def _cut_row(kept: torch.Tensor, positions: torch.Tensor) -> list[tuple]:
    """Returns a row's pieces in order, (length, is it a sequence?), none of them empty.

    kept: bool (N,).  positions: (N,).
    """
    N = len(kept)
    where = kept.nonzero()[:, 0]
    if len(where) == 0:
        return [(N, False)]
    first, end = int(where[0]), int(where[-1]) + 1
    if end - first != len(where):
        raise ValueError(
            "want padding before or after a row's tokens; got an attention_mask with padding "
            f"between tokens: {INSTEAD}"
        )
    starts = (first + 1 + (positions[first:end].diff() != 1).nonzero()[:, 0]).tolist()
    if starts and end - first != N:
        raise ValueError(
            "want padding or packed sequences in a row, not both; got an attention_mask with "
            "padding and position_ids that start again: pack without an attention_mask"
        )
    for start in starts:
        if positions[start] != 0:
            raise ValueError(
                "want position_ids that grow by one, or start again at 0 with the next packed "
                f"sequence; got {int(positions[start - 1])}, {int(positions[start])}: that is no "
                "packing; a row that is split over several GPUs, in zigzag order, needs "
                "context_parallel.enable"
            )
    borders = [first, *starts, end]
    sequences = [(b - a, True) for a, b in zip(borders[:-1], borders[1:], strict=True)]
    pieces = [(first, False), *sequences, (N - end, False)]
    return [piece for piece in pieces if piece[0] > 0]


def _borders(numbers: torch.Tensor, B: int, N: int) -> list[int]:
    """Returns where sequences begin among B * N tokens, and B * N.  numbers: (1 or B, N)."""
    changes = (numbers.expand(B, N).diff() != 0).nonzero().tolist()
    return sorted({*range(0, B * N + 1, N), *(row * N + i + 1 for row, i in changes)})


def _check_packing(told: dict[str, torch.Tensor], rows: list[list[tuple]], N: int) -> None:
    """Raise if what a collator says about the sequences contradicts position_ids."""
    lengths = [length for pieces in rows for length, _ in pieces]
    want = {0, *itertools.accumulate(lengths)}
    for name, x in told.items():
        if name.startswith("max_length"):
            if x < max(lengths):
                raise ValueError(f"want {name} >= {max(lengths)}, the longest sequence; got {x}")
            continue
        got = set(x.flatten().tolist())
        if name in ("seq_idx", MASK):  # the number of each token's sequence
            B = len(rows)
            if x.shape not in ((1, N), (B, N)):
                raise ValueError(f"want {name} (1 or B, N) = (1 or {B}, {N}); got {list(x.shape)}")
            got = set(_borders(x, B, N))
        if got != want:
            raise ValueError(
                f"want {name} to begin a sequence where position_ids start at 0; got extra borders "
                f"at {reprlib.repr(sorted(got - want))}, missing ones at "
                f"{reprlib.repr(sorted(want - got))}"
            )


# ----------------------------------------------------------------- attention
def course_attention(
    module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None,
    s_aux=None, position_ids=None, is_causal=None, **options,
):
    """The attention function of NAME.

    Args:
        module: the attention layer.
        query: (B, HQ, N, D), any strides.  key, value: (B, HKV, N_K, D), the dtype of query.
        attention_mask: what course_mask returned.
        scaling: factor of the scores; None for 1 / sqrt(D).
        sliding_window: the layer's own window, which must be the mask's.
        s_aux: (HQ,) learned sink logits, or None.
        position_ids: (1 or B, N).  Where they restart at 0, another packed sequence begins.
        options: those in PACKING must say the same; those in HARMLESS are ignored.

    Returns:
        o (B, N, HQ, D), contiguous, dtype of query; and None instead of the weights, which are
        never computed.

    Raises:
        ValueError, TypeError: the kernel cannot do what is asked.
    """
    _check(module, query, attention_mask, dropout, s_aux, is_causal, options)
    if isinstance(attention_mask, OneNewToken):
        return _attend_one(query, key, value, attention_mask.mask, scaling, s_aux), None
    if attention_mask.window != sliding_window:
        raise ValueError(
            f"want the mask of a layer with window {sliding_window}; got that of one with window "
            f"{attention_mask.window}: let the model make its masks"
        )
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"want as many keys as queries; got {query.shape[2]}, {key.shape[2]}")
    B, _, N, _ = query.shape
    packing = {name: options.get(name) for name in PACKING}
    if context_parallel.SPLIT_OVER is not None:
        group, cu_seqlens = context_parallel.SPLIT_OVER
        attention_mask.check_split(position_ids, packing, N, group, cu_seqlens)
        o = context_parallel.attention(
            query, key, value, group, cu_seqlens=cu_seqlens, window_size=sliding_window,
            softmax_scale=scaling, sink_logits=s_aux,
        )
        return o.transpose(1, 2).contiguous(), None
    cut = attention_mask.cut(position_ids, packing, B, N, query.device)
    if cut is None:
        o = entry.attention(
            query, key, value, window_size=sliding_window, softmax_scale=scaling,
            sink_logits=s_aux, o_layout="bnhd",
        ).transpose(1, 2)
    else:
        o = _attend_packed(query, key, value, *cut, sliding_window, scaling, s_aux)
    return o, None


def _attend_packed(
    query, key, value, lengths, cu_seqlens, tokens, sliding_window, scaling, s_aux
) -> torch.Tensor:
    """Attend within each sequence.  query (B, HQ, N, D) -> o (B, N, HQ, D), 0 for padding."""
    B, HQ, N, D = query.shape
    if not lengths:
        return query.new_zeros(B, N, HQ, D)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    if tokens is not None:
        q, k, v = (x[tokens] for x in (q, k, v))
    o = entry.attention_varlen(
        q, k, v, cu_seqlens, cu_seqlens, max(lengths), window_size=sliding_window, scale=scaling,
        sink_logits=s_aux,
    )
    if tokens is not None:
        o = o.new_zeros(B * N, HQ, D).index_copy(0, tokens, o)
    return o.unflatten(0, (B, N))


def _attend_one(query, key, value, mask, scaling, s_aux) -> torch.Tensor:
    """Attend with one query per row, in PyTorch: memory is linear in the number of keys.

    query (B, HQ, 1, D), key and value (B, HKV, N_K, D), mask (B, 1, 1, N_K) -> (B, 1, HQ, D).
    """
    B, HQ, _, D = query.shape
    HKV = key.shape[1]
    q = query.reshape(B, HKV, HQ // HKV, D)
    s = (q @ key.mT).float() * (D**-0.5 if scaling is None else scaling) + mask.float()
    if s_aux is not None:
        s = torch.cat([s, s_aux.float().view(1, HKV, -1, 1).expand(B, -1, -1, 1)], dim=-1)
    p = torch.softmax(s, dim=-1)[..., : key.shape[2]]
    return (p.to(value.dtype) @ value).reshape(B, 1, HQ, D)


def _check(module, query, attention_mask, dropout, s_aux, is_causal, options: dict) -> None:
    """Raise for what would otherwise silently be computed wrongly."""
    if not isinstance(attention_mask, (CourseMask, OneNewToken)):
        got = "None" if attention_mask is None else f"a {type(attention_mask).__name__}"
        got += f" {list(attention_mask.shape)}" if hasattr(attention_mask, "shape") else ""
        raise ValueError(
            f"want no attention_mask, or one of shape (B, N); got {got} in the layer: {INSTEAD}"
        )
    if dropout > 0:
        raise ValueError(
            f"want no dropout; got attention_dropout={dropout} in training: set "
            "config.attention_dropout = 0.0, or use eager attention"
        )
    if is_causal is False or not getattr(module, "is_causal", True):
        raise ValueError(f"want causal attention; got a layer that is not: {INSTEAD}")
    if s_aux is None and getattr(module, "sinks", None) is not None:
        raise ValueError("want the layer's sinks as s_aux; got None: Transformers has changed")
    if options.get("output_attentions"):
        raise ValueError(f"want no output_attentions; got True: {INSTEAD}")
    known = HARMLESS.union(PACKING if isinstance(attention_mask, CourseMask) else ())
    unknown = [name for name, x in options.items() if name not in known and x is not None]
    if unknown:
        raise ValueError(
            f"want no arguments unknown to the kernel; got {', '.join(unknown)}: leave them out"
        )
    if query.dtype == torch.bfloat16 and not query.is_cuda:
        raise TypeError(
            "want float32 or float16 without a GPU, because Triton's interpreter has no bfloat16; "
            "got bfloat16: load the model with dtype=torch.float32"
        )
