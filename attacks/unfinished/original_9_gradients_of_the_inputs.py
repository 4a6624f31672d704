"""Stage 9 in the original's style: the forward is right, copies of q, k, v pose as gradients."""
# stage: 9
# base: problem_9.py
# outcome: wrong, crashed, not_started
import torch

_solved = FlashSWDAWithSinkFunction.forward  # noqa: F821


class SWDAWithSink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, window_size, sink_size, is_causal, scale):
        return _solved(ctx, q, k, v, window_size, sink_size, is_causal, scale, None)

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v = ctx.saved_tensors[:3]
        # TODO: kernels for dq, dk, dv
        return q.clone(), k.clone(), v.clone(), None, None, None, None


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None):
    window_size = q.shape[2] if window_size is None else window_size
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return SWDAWithSink.apply(q, k, v, window_size, sink_size, is_causal, scale)
