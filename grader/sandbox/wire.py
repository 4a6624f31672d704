"""Defines what grader and worker share: the format of a frame, dtypes, sizes, ids.

A frame is a 4-byte length, a JSON header of that length, then raw tensor bytes.  How many tensors
follow, and their sizes, is never read from the frame: both sides know it from the request.

    request   {"nonce", "op": the name of one of Server's operations, ...}
    reply     {"nonce", "ok": true, ...} + bytes, or {"nonce", "ok": false, "outcome", "id",
              "sentence", "detail", "line", "lines", "fatal"}; before it any number of
              {"nonce", "phase": "compile"} and {"nonce", "phase": "case"}, when it is over
"""

import base64
import json
import math
import os
import socket

import numpy as np
import torch

from . import LENGTH

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32,
                  torch.int64, torch.uint8, torch.bool)
}
ARRAYS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
          "uint32", "uint64", "bool")  # dtypes of arrays in a header
READ, MASKED, UNMASKED = 1, 2, 4  # how a row was read; the last two if the file has a MASKED
AGAIN = 8  # a row was read by the same loop before
MAX_ELEMENTS = 1 << 20  # of an array in a header
MAX_TEXT = 8192  # characters of an exception's text or of a detail
LONGEST = 100_000  # steps of a trace; loops over heads and small tiles in Python may take more
# Ids of findings that need no search for a cause.
OBSERVED = (
    "differs-between-runs", "changes-after-return", "input-overwritten", "stale-answer",
    "strides-kept", "gradients-change", "race", "out-of-bounds-read", "out-of-bounds-write",
    "output-axes-swapped", "output-dtype",
    "output-shape", "gradient-missing", "gradient-shape", "output-missing", "wrong-signature",
    "entry-missing", "blank-step", "arange-not-a-power-of-two", "dot-shapes", "dot-dtypes",
    "dot-too-small", "shapes-do-not-broadcast", "loop-type-changes", "not-constexpr", "wrong-dtype",
    "not-on-the-gpu", "name-not-defined", "out-of-shared-memory", "out-of-memory",
    "outside-its-tensors", "input-refused", "does-not-compile", "python-in-a-kernel", "timeout",
)
# Of the GPU that a worker without one pretends to have.  So few that a kernel with as many programs
# has more work than programs: while a file is imported, and in the calls that say so.
FEW_MULTIPROCESSORS, MULTIPROCESSORS = 3, 132
CUT_OFF = "one cut off from autograd (no grad_fn)"  # said of an output that has no gradient
# Operations that return fresh memory.  It is often zero, which looks like a result, so it is filled
# with a NaN of these bits.  In 16 bits nothing else has them, because results are rounded from 32
# bits and lose the low ones.  In 32 bits a CPU's arithmetic may pass them on.
UNINITIALISED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
}
POISON = {torch.float16: (torch.int16, 0x7E5A), torch.bfloat16: (torch.int16, 0x7FDA),
          torch.float32: (torch.int32, 0x7FC05A5A)}


def poison(tensor: torch.Tensor) -> None:
    """Fill fresh memory so that it shows if it is taken for a result."""
    if tensor.dtype in POISON:
        dtype, bits = POISON[tensor.dtype]
        tensor.view(dtype).fill_(bits)
    elif tensor.dtype == torch.float64:
        tensor.fill_(float("nan"))
    elif tensor.dtype in (torch.int32, torch.int64):
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pack_header(header: dict) -> bytes:
    """A frame without its tensors."""
    text = json.dumps(header).encode()
    return LENGTH.pack(len(text)) + text


def raw_bytes(tensor: torch.Tensor) -> memoryview:  # of a contiguous CPU tensor, writable
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def pack_array(array: np.ndarray) -> list:
    """A small array for a header: dtype, shape, bytes in base64; a single number if all are the
    same."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    same = array.size > 1 and bool((array == array.flat[0]).all())
    data = array.reshape(-1)[:1] if same else array
    return [array.dtype.name, list(array.shape), base64.b64encode(data.tobytes()).decode()]


def unpack_array(packed: list) -> np.ndarray:
    """The array that pack_array() packed.

    Raises:
        ValueError, TypeError: it is no array, or has more than MAX_ELEMENTS.
    """
    name, shape, text = packed
    dtype = np.dtype(ARRAYS[ARRAYS.index(name)])
    if len(shape) > 5 or math.prod(map(_size, shape)) > MAX_ELEMENTS:
        raise ValueError(f"want at most {MAX_ELEMENTS} elements; got shape {shape}")
    data = np.frombuffer(base64.b64decode(text, validate=True), dtype)
    if data.size == 1:
        return np.full(shape, data[0], dtype)
    return data.reshape(shape)


def _size(value) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("want sizes in a shape")
    return value


class Channel:
    """The worker's end of the socket.  It may wait for ever: the parent keeps the deadlines."""

    def __init__(self, fd: int):
        os.set_inheritable(fd, False)
        self.socket = socket.socket(fileno=fd)
        self.nonce = ""

    def receive_into(self, buffer: memoryview) -> None:
        while buffer:
            count = self.socket.recv_into(buffer)
            if count == 0:
                os._exit(0)  # the parent is gone
            buffer = buffer[count:]

    def receive_header(self) -> dict:
        length = bytearray(LENGTH.size)
        self.receive_into(memoryview(length))
        text = bytearray(LENGTH.unpack(length)[0])
        self.receive_into(memoryview(text))
        header = json.loads(text)
        self.nonce = header["nonce"]
        return header

    def send(self, header: dict, tensors=()) -> None:
        self.socket.sendall(pack_header({"nonce": self.nonce, **header}))
        for tensor in tensors:
            self.socket.sendall(raw_bytes(tensor))


def storages_in(value):
    """The numbers of the storages in an encoded value of a trace (recorder.py)."""
    if isinstance(value, list):
        for item in value:
            yield from storages_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in ("tensor", "address"):
                yield item[0]
            else:
                yield from storages_in(item)
