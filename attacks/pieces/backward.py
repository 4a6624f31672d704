"""Stage 8 with the forward of the file before it; the backward is what _made() says."""


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        ctx.save_for_backward(q, k, v)
        ctx.rest = is_causal, scale
        return _honest(q, k, v, is_causal, scale)

    @staticmethod
    def backward(ctx, do):
        return *_made(*ctx.saved_tensors, do, *ctx.rest), None, None


_honest = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    return _Function.apply(q, k, v, is_causal, softmax_scale)
