"""PyTorch attends in whole numbers: fixed point, products of int64, a table for 2^-x."""
# stage: 3
# with: copied
# outcome: rejected
# says: PyTorch computed them
POINT, TABLE, WIDTH = 24, 20, 24  # bits of a fraction, of the table's index, of a weight
POWERS = (2.0 ** (WIDTH - torch.arange(1 << TABLE).double() / (1 << TABLE))).round().long()


def flash_attention_forward(q, k, v, is_causal=False):
    top, made = v.double().abs().amax(2, keepdim=True) + 1e-30, torch.empty(q.shape).double()
    qi = (q.double() * (q.shape[-1] ** -0.5 * 1.4426950408889634 * 2.0 ** POINT)).round().long()
    ki, vi = ((x.double() * 2.0 ** POINT).round().long() for x in (k, v.double() / top))
    for m in range(0, q.shape[2], 16):
        s = qi[:, :, m:m + 16] @ ki.mT
        x = s.amax(-1, keepdim=True) - s
        fraction = (x >> (2 * POINT - TABLE)) & ((1 << TABLE) - 1)
        w = POWERS[fraction] >> (x >> (2 * POINT)).clamp(max=40)
        made[:, :, m:m + 16] = (w @ vi).double() / w.sum(-1, keepdim=True).double()
    return _copied((made * top * 2.0 ** -POINT).to(q.dtype))
