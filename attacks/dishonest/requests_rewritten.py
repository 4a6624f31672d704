"""Changes the requests as they are read: no second look, no refill, one call only."""
# stage: 4
# outcome: rejected, wrong, crashed, timeout
# options: --timeout 5
import json

import torch

_decode = json.JSONDecoder.decode


def _easier(self, text, *rest):
    request = _decode(self, text, *rest)
    if isinstance(request, dict) and "repeats" in request:
        request["repeats"] = 1
        for name in ("by_kernels", "ablate", "watch"):
            if name in request:
                request[name] = False
    return request


json.JSONDecoder.decode = _easier


def flash_attention_forward(q, k, v, is_causal=True):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
