"""Stage 8 that saves q, k and v alone; its backward runs the forward once more, for o and lse."""
# stage: 8
# base: problem_8.py
# outcome: pass
from types import SimpleNamespace

Saving = FlashAttentionGQAFunction


class FlashAttentionGQAFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, *options):
        ctx.options = options
        o = Saving.forward(ctx, q, k, v, *options)
        ctx.save_for_backward(q, k, v)
        return o

    @staticmethod
    def backward(ctx, do):
        again = SimpleNamespace(needs_input_grad=ctx.needs_input_grad)
        again.save_for_backward = lambda *saved: setattr(again, "saved_tensors", saved)
        Saving.forward(again, *ctx.saved_tensors, *ctx.options)
        return Saving.backward(again, do)
