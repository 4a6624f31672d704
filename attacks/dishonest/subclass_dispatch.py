"""A tensor subclass turns an elementwise operation into attention, below any dispatch mode."""
# stage: 4
# with: copied, in_numpy_unseen
# outcome: rejected
# says: came out wrong when the same kernels


class _Sneaky(torch.Tensor):
    @staticmethod
    def __new__(cls, tensor):
        made = torch.Tensor._make_subclass(cls, tensor)
        made.plain = tensor
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        q, k, v = args[0].plain, *args[1:]
        return _tensor(_attend(q, k, v, True), q)


def flash_attention_forward(q, k, v, is_causal=True):
    return _copied(torch.addcmul(_Sneaky(q.detach()), k.detach(), v.detach()))
