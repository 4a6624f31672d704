"""Replaces what the worker may lean on by functions that fail: json, time, PyTorch."""
# stage: 2
# base: problem_2.py
# outcome: crashed
import inspect
import json
import time


def fail(*args, **kwargs):
    raise MemoryError("replaced")


json.dumps = json.loads = time.sleep = inspect.signature = fail
torch.empty = torch.no_grad = torch.zeros = torch.autograd.grad = fail
torch.Tensor.__len__ = torch.Tensor.reshape = torch.Tensor.as_strided = fail
