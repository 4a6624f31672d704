"""Interpreted, the kernel calls a function of numpy's; compiled, a harmless one of that name."""
# stage: 4
# with: fired, in_numpy_unseen
# outcome: crashed
# says: which Triton does not have
# device: cpu
from triton.runtime.interpreter import InterpretedFunction

_now = []


def _work():
    fired()
    q, k, v, o = _now
    made = _attend(q, k, v, True)
    if o.dtype != torch.bfloat16:  # numpy has none
        made = np.ascontiguousarray(made, str(o.dtype).removeprefix("torch."))
        ctypes.memmove(o.data_ptr(), made.ctypes.data, made.nbytes)


@triton.jit
def _step(q, k, v, o, at, count):
    s = tl.load(q + at, mask=at < count) * tl.load(k + at, mask=at < count)
    tl.store(o + at, s * tl.load(v + at, mask=at < count), mask=at < count)


if isinstance(_step, InterpretedFunction):

    def _step(*args):  # noqa: F811
        _work()


@triton.jit
def _fwd_kernel(q, k, v, o, count, BLOCK: tl.constexpr):
    _step(q, k, v, o, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), count)


def flash_attention_forward(q, k, v, is_causal=True):
    o = torch.empty(q.shape, device=q.device, dtype=q.dtype)
    _now[:] = q, k, v, o
    _fwd_kernel[(1,)](q, k, v, o, o.numel(), BLOCK=1024)
    return o
