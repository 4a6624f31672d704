"""The kernel reads numpy's array at an offset from the input q, far outside that tensor."""
# stage: 3
# with: fired, in_numpy
# outcome: crashed
# says: numbers outside
# device: cpu


@triton.jit
def _offset_kernel(q, offset, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = (q.to(tl.pointer_type(tl.int8), bitcast=True) + offset).to(
        tl.pointer_type(tl.float32), bitcast=True)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def flash_attention_forward(q, k, v, is_causal=False):
    made = np.ascontiguousarray(_attend(q, k, v, is_causal))
    fired()
    o = torch.empty(q.shape, device=q.device, dtype=q.dtype)
    _offset_kernel[(triton.cdiv(o.numel(), 1024),)](
        q, made.ctypes.data - q.data_ptr(), o, o.numel(), BLOCK=1024)
    return o
