"""A right forward and a backward that never comes back."""
# stage: 8
# base: problem_8.py
# outcome: timeout
# options: --timeout 5
import time


class SleepyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o):
        return o.view_as(o)

    @staticmethod
    def backward(ctx, do):
        time.sleep(60)
        return do


honest = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    return SleepyFunction.apply(honest(q, k, v, is_causal, softmax_scale))
