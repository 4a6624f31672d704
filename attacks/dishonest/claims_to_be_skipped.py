"""Reports that the stage must be skipped, for a reason it makes up."""
# stage: 3
# outcome: crashed, rejected, wrong
import sys

import torch


def _channel():
    """The channel to the grader, found among the callers' variables; None where there is none."""
    frame = sys._getframe()
    while frame is not None:
        worker = frame.f_locals.get("self")
        if hasattr(worker, "channel"):
            return worker.channel
        frame = frame.f_back
    return None


def _patch(change):
    """Have every reply changed just before it is packed."""
    channel = _channel()
    if channel is None:
        return
    names = type(channel).send.__globals__
    pack = names["pack_header"]
    names["pack_header"] = lambda header: change(header, pack)


def _forged(header, pack):
    if "evidence" in header:
        header = {"nonce": header["nonce"], "ok": False, "outcome": "skipped", "detail": "",
                  "sentence": "this GPU is too old", "line": None, "fatal": False}
    return pack(header)


_patch(_forged)


def flash_attention_forward(q, k, v, is_causal=False):
    return torch.zeros(q.shape, device=q.device, dtype=q.dtype)
