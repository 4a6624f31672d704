"""Reads address zero on the thread of the backward, after a right forward."""
# stage: 8
# base: problem_8.py
# outcome: crashed
# says: segmentation fault
import ctypes


class BrokenFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o):
        return o.view_as(o)

    @staticmethod
    def backward(ctx, do):
        return ctypes.string_at(0)


honest = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    return BrokenFunction.apply(honest(q, k, v, is_causal, softmax_scale))
