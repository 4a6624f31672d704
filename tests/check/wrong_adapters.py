"""Two stand-ins for each of six mistakes that were reported of released attention, for the check.

The reports: lse cut from the graph (pytorch/torchtitan#4796); the sinks swallowed by **kwargs
(vllm-project/vllm#52156); the sinks among the scores, before the softmax
(huggingface/transformers#41083); arguments that a long positional call lost
(sgl-project/sglang#34463); a sink without a gradient (NVIDIA/TransformerEngine#3551); gradients of
another shape.
"""

import torch
import torch.nn.functional as F


def plain(q, k, v, is_causal, window_size=None, sink_size=0, scale=None, bias=None,
          hidden=-torch.inf):
    """-> o and lse, without sink logits.  bias: of the scores, (HQ, 1, 1); hidden: the score of a
    hidden key."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    s = q.float() @ k.float().mT * (q.shape[-1]**-0.5 if scale is None else scale)
    s = s if bias is None else s + bias
    query, key = (torch.arange(n, device=q.device) for n in s.shape[-2:])
    age = query[:, None] - key
    keep = (age >= 0) | (not is_causal)
    if window_size is not None:
        keep = keep & ((age < window_size) | (key < sink_size))
    s = s.masked_fill(~keep, hidden)
    return (s.softmax(-1) @ v.float()).to(q.dtype), s.logsumexp(-1)


def share(lse, sink_logits):
    """What the sinks leave of o."""
    return torch.exp(lse - torch.logaddexp(lse, sink_logits.float()[:, None]))[..., None]


# --------------------------------------------------------------- lse is cut from the graph
def lse_detached(q, k, v, *, is_causal, window_size=None, scale=None, sink_logits=None):
    o, lse = plain(q, k, v, is_causal, window_size, 0, scale)
    return o if sink_logits is None else (o * share(lse.detach(), sink_logits)).to(q.dtype)


class Varlen(torch.autograd.Function):
    """Attention whose backward leaves out the gradient of its lse."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal = is_causal
        return plain(q, k, v, is_causal)

    @staticmethod
    def backward(ctx, do, dlse):
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return *torch.autograd.grad(plain(*inputs, ctx.is_causal)[0], inputs, do), None


def lse_without_gradient(q, k, v, *, is_causal, sink_logits=None):
    o, lse = Varlen.apply(q, k, v, is_causal)
    return o if sink_logits is None else (o * share(lse, sink_logits)).to(q.dtype)


# ------------------------------------------------------------------ swallowed by **kwargs
def inner(q, k, v, is_causal, scaling=None, **kwargs):
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])


def swallowed(q, k, v, *, is_causal, scale=None, sink_logits=None):
    return inner(q, k, v, is_causal, scaling=scale, s_aux=sink_logits)


def another_name(q, k, v, *, is_causal, **kwargs):
    sinks = kwargs.get("s_aux")
    o, lse = plain(q, k, v, is_causal, kwargs.get("window_size"), kwargs.get("sink_size", 0),
                   kwargs.get("scale"))
    return o if sinks is None else (o * share(lse, sinks)).to(q.dtype)


# ------------------------------------------------------- among the scores, before the softmax
def among_the_scores(q, k, v, *, is_causal, window_size=None, sink_logits=None):
    bias = None if sink_logits is None else sink_logits.float()[:, None, None]
    return plain(q, k, v, is_causal, window_size, bias=bias)[0]


def first_key_for_sink(q, k, v, *, is_causal, sink_logits=None):
    """Adds the sink to the score of key 0, which has a value."""
    first = (torch.arange(k.shape[2], device=q.device) == 0).float()
    bias = None if sink_logits is None else sink_logits.float()[:, None, None] * first
    return plain(q, k, v, is_causal, bias=bias)[0]


# ------------------------------------------------------ lost in a positional call
def window_lost(q, k, v, *, is_causal, window_size=None, scale=None):
    return plain(q, k, v, is_causal, None, 0, scale)[0]


def window_shifted(q, k, v, *, is_causal, window_size=None):
    """Gives what was sliding_window_size to a callee whose window counts earlier keys only."""
    return plain(q, k, v, is_causal, None if window_size is None else window_size + 1)[0]


# ------------------------------------------------------------- a sink without a gradient
def sink_detached(q, k, v, *, is_causal, sink_logits=None):
    o, lse = plain(q, k, v, is_causal)
    return o if sink_logits is None else (o * share(lse, sink_logits.detach())).to(q.dtype)


class ZeroForTheSink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sink_logits):
        return sink_logits.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


def sink_gradient_zero(q, k, v, *, is_causal, sink_logits=None):
    o, lse = plain(q, k, v, is_causal)
    return o if sink_logits is None else (
        o * share(lse, ZeroForTheSink.apply(sink_logits))).to(q.dtype)


# ----------------------------------------------------------- gradients of another shape
class ByRow(torch.autograd.Function):
    """One sink per row, and the gradient of it."""

    @staticmethod
    def forward(ctx, sink_logits):
        return sink_logits[:, None].clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient  # (HQ, 1), and HQ is wanted


def sink_gradient_by_row(q, k, v, *, is_causal, sink_logits=None):
    o, lse = plain(q, k, v, is_causal)
    return o if sink_logits is None else (
        o * share(lse, ByRow.apply(sink_logits)[:, 0])).to(q.dtype)


class Repeat(torch.autograd.Function):
    """Keys for every query head; the gradient is not summed over a group."""

    @staticmethod
    def forward(ctx, x, group):
        return x.repeat_interleave(group, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def group_not_summed(q, k, v, *, is_causal, scale=None):
    group = q.shape[1] // k.shape[1]
    return plain(q, Repeat.apply(k, group), Repeat.apply(v, group), is_causal, scale=scale)[0]


# ------------------------------------------------ o follows the options, and its lse does not
def with_sinks(q, k, v, is_causal, window_size, sink_logits):
    o, lse = plain(q, k, v, is_causal, window_size)
    if sink_logits is None:
        return o, lse
    return (o * share(lse, sink_logits)).to(q.dtype), torch.logaddexp(
        lse, sink_logits.float()[:, None])


def lse_without_sinks(q, k, v, *, is_causal, window_size=None, sink_logits=None):
    o, _ = with_sinks(q, k, v, is_causal, window_size, sink_logits)
    return o, plain(q, k, v, is_causal, window_size)[1]


def lse_without_window(q, k, v, *, is_causal, window_size=None, sink_logits=None):
    o, _ = with_sinks(q, k, v, is_causal, window_size, sink_logits)
    return o, with_sinks(q, k, v, is_causal, None, sink_logits)[1]


def lse_without_mask(q, k, v, *, is_causal, window_size=None, sink_logits=None):
    o, _ = with_sinks(q, k, v, is_causal, window_size, sink_logits)
    return o, with_sinks(q, k, v, False, None, sink_logits)[1]


def lse_detached_with_window(q, k, v, *, is_causal, window_size=None, sink_logits=None):
    o, lse = with_sinks(q, k, v, is_causal, window_size, sink_logits)
    return o, lse if window_size is None else lse.detach()


def lse_without_gradient_of_sinks(q, k, v, *, is_causal, sink_logits=None):
    """Its lse passes on gradients to q and k, and none to the sinks."""
    o, _ = with_sinks(q, k, v, is_causal, None, sink_logits)
    detached = None if sink_logits is None else sink_logits.detach()
    return o, with_sinks(q, k, v, is_causal, None, detached)[1]


# ------------------------------------------------------- wrong in an unusual call only
def scale_lost_in_an_odd_D(q, k, v, *, is_causal, scale=None):
    return plain(q, k, v, is_causal, scale=None if q.shape[-1] & (q.shape[-1] - 1) else scale)[0]


def scale_lost_with_sinks(q, k, v, *, is_causal, window_size=None, scale=None, sink_logits=None):
    if sink_logits is None:
        return plain(q, k, v, is_causal, window_size, scale=scale)[0]
    return with_sinks(q, k, v, is_causal, window_size, sink_logits)[0]


def sink_tokens_of_one_tile(q, k, v, *, is_causal, window_size=None, sink_size=0):
    return plain(q, k, v, is_causal, window_size, min(sink_size, 16))[0]


def maximum_without_sinks(q, k, v, *, is_causal, sink_logits=None):
    """exp(sink - m) overflows, so lse is inf; o is right."""
    o, lse = plain(q, k, v, is_causal)
    if sink_logits is None:
        return o, lse
    total = torch.exp(sink_logits.float()[:, None] - lse) + 1
    return (o / total[..., None]).to(q.dtype), lse + total.log()


def sinks_without_maximum(q, k, v, *, is_causal, sink_logits=None):
    o, lse = plain(q, k, v, is_causal)
    if sink_logits is None:
        return o
    share = lse.exp() / (lse.exp() + sink_logits.float().exp()[:, None])
    return (o * share[..., None]).to(q.dtype)


def lse_in_the_dtype_of_q(q, k, v, *, is_causal):
    o, lse = plain(q, k, v, is_causal)
    return o, lse.to(q.dtype)


def mask_of_minus_100(q, k, v, *, is_causal):
    return plain(q, k, v, is_causal, hidden=-100.0)[0]


# ------------------------------------------------------- with names of their own
class Changed(torch.autograd.Function):
    """x, with a gradient that `change` makes of the right one."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def half_the_sink_gradient(q, k, v, *, is_causal, sink_logits=None):
    sink = None if sink_logits is None else Changed.apply(sink_logits, lambda x: x / 2)
    return with_sinks(q, k, v, is_causal, None, sink)[0]


def no_sink_gradient(q, k, v, *, is_causal, sink_logits=None):
    sink = None if sink_logits is None else Changed.apply(sink_logits, lambda x: None)
    return with_sinks(q, k, v, is_causal, None, sink)[0]


class FirstOfGroup(Repeat):
    """As Repeat; only the first head's gradient comes back."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient[:, ::3].clone(), None


def first_head_of_a_group(q, k, v, *, is_causal):
    group = q.shape[1] // k.shape[1]
    if group == 3:
        k, v = FirstOfGroup.apply(k, group), FirstOfGroup.apply(v, group)
    return plain(q, k, v, is_causal)[0]


def lse_of_minus_inf(q, k, v, *, is_causal):
    o, lse = plain(q, k, v, is_causal)
    if is_causal:
        lse = torch.cat([torch.full_like(lse[:, :1], -torch.inf), lse[:, 1:]], 1)
    return o, lse


# ------------------------------------------------------- one memory for every call of a shape
class Buffered(torch.autograd.Function):
    """Attention whose o, lse or dv, as `kept` says, are views of a buffer."""

    buffers = {}

    @staticmethod
    def kept(ctx, name, x):
        if name != ctx.kept:
            return x
        buffer = Buffered.buffers.setdefault((name, x.shape), torch.empty_like(x))
        return buffer.copy_(x).detach()

    @staticmethod
    def forward(ctx, q, k, v, is_causal, kept):
        ctx.is_causal, ctx.kept = is_causal, kept
        o, lse = plain(q, k, v, is_causal)
        o, lse = Buffered.kept(ctx, "o", o), Buffered.kept(ctx, "lse", lse)
        ctx.save_for_backward(q, k, v, lse)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors[:3]]
            made = torch.autograd.grad(plain(*inputs, ctx.is_causal), inputs, (do, dlse))
        if ctx.kept == "dv":
            made = *made[:2], Buffered.kept(ctx, "dv", made[2])
        return *made, None, None


def o_in_a_buffer(q, k, v, *, is_causal):
    return Buffered.apply(q, k, v, is_causal, "o")[0]


def lse_in_a_buffer(q, k, v, *, is_causal):
    return Buffered.apply(q, k, v, is_causal, "lse")


def lse_in_a_buffer_forward(q, k, v, *, is_causal):
    kept = "" if q.requires_grad or k.requires_grad or v.requires_grad else "lse"
    return Buffered.apply(q, k, v, is_causal, kept)


def dv_in_a_buffer(q, k, v, *, is_causal):
    return Buffered.apply(q, k, v, is_causal, "dv")[0]
