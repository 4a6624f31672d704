"""Holds the interpreter's loads and stores to the tensors there are.

Memory beyond a tensor is somebody else's: the interpreter reads and writes it without a word, and
a GPU does so most times.  Here such a lane is an error in the line that did it.
Loaded by worker.py by path; imports nothing of the grader.
"""

import numpy as np


class OutOfBounds(IndexError):
    """A lane that is not masked off reads or writes where no tensor is."""


def install(extents) -> None:
    """extents() -> a list of (first byte, byte after the last) of every tensor alive."""
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    load, store = builder.create_masked_load, builder.create_masked_store

    def masked_load(self, ptrs, mask, *args, **kwargs):
        _check(ptrs, mask, "reads", extents)
        return load(self, ptrs, mask, *args, **kwargs)

    def masked_store(self, ptrs, value, mask, *args, **kwargs):
        _check(ptrs, mask, "writes", extents)
        return store(self, ptrs, value, mask, *args, **kwargs)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store


def _check(ptrs, mask, verb: str, extents) -> None:
    addresses = ptrs.data
    if mask is not None:
        addresses = addresses[np.broadcast_to(mask.data, addresses.shape)]
    if not addresses.size:
        return
    known = extents()
    if not known:  # outside of a watched call
        return
    low, high = int(addresses.min()), int(addresses.max())
    if any(first <= low and high < end for first, end in known):  # all in one tensor, as a rule
        return
    inside = np.zeros(addresses.shape, bool)
    for first, end in known:
        inside |= (addresses >= first) & (addresses < end)
    if not inside.all():
        count = int((~inside).sum())
        raise OutOfBounds(f"the kernel {verb} {count} number{'s' * (count > 1)} outside of every "
                          "tensor: a lane past the end needs a mask")
