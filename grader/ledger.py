"""Keeps the numbers of a call, on the CPU, where only PyTorch operations and kernels find them.

Outside of both, the memory of every tensor is covered: combined bit by bit with random bytes.
NumPy, ctypes, Python lists or a thread of C that read it read noise, and what they write is noise
once it is uncovered.  Work done by such means can then not come out right; and it is noticed,
because a tensor was made by no PyTorch operation, or because bytes changed while none was running.
Loaded by worker.py by path; imports nothing of the grader.
"""

import ctypes
import weakref
import zlib

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

SMALL = 64  # bytes: a scale, a few strides; nobody smuggles a result in so few
LARGE = 65536  # bytes made while the file was imported: a workspace that no measurement counts

_random = np.random.default_rng()
_entries: dict[int, "_Entry"] = {}  # by storage; they outlive a call, as a kept workspace does


class _Entry:
    """One storage: what covers it, whether it is covered now, and its checksum then."""

    def __init__(self, storage, imported: bool):
        self.storage = weakref.ref(storage)
        self.cover = np.frombuffer(_random.bytes(storage.nbytes()), np.uint8)
        self.imported = imported
        self.made_in = None  # the ledger in force then
        self.covered = False
        self.checksum = None
        weakref.finalize(storage, _entries.pop, storage._cdata, None)

    def turn(self) -> None:
        """Cover what is open, open what is covered."""
        storage = self.storage()
        if storage is not None and storage.nbytes() == self.cover.nbytes:
            memory = _memory(storage)
            np.bitwise_xor(memory, self.cover, out=memory)
            self.covered = not self.covered


class Ledger:
    """uncover() before anything PyTorch or Triton does with tensors, cover() after it.

    strange: what was noticed, in words.
    """

    def __init__(self, tensors=(), importing: bool = False):
        self.strange: set[str] = set()
        self.importing = importing
        self.lenient = False
        self.kept: dict[int, int] = {}  # storages made before this call -> their bytes
        for storage in _storages(list(tensors)):
            self._entry(storage).made_in = self

    def cover(self, values=None) -> None:
        """Cover these tensors, new ones among them; without any, everything known."""
        for entry in self._of(values):
            if not entry.covered:
                entry.turn()
                entry.checksum = _checksum(entry)

    def uncover(self, values=None) -> None:
        """Open these tensors; without any, everything known."""
        if values is not None:
            self._look_at(values)
        for entry in self._of(values):
            if entry.covered:
                if _checksum(entry) != entry.checksum:
                    self.strange.add("memory that neither a kernel nor a PyTorch operation wrote")
                entry.turn()

    def kept_bytes(self) -> int:
        """Of tensors that were used and are older than the call."""
        return sum(self.kept.values())

    def _of(self, values) -> list[_Entry]:
        if values is None:
            return list(_entries.values())
        return [self._entry(storage) for storage in _storages(values)]

    def _look_at(self, values) -> None:
        for storage in _storages(values):
            entry = _entries.get(storage._cdata)
            if entry is None and storage.nbytes() > SMALL and not self.lenient:
                self.strange.add("a tensor that no PyTorch operation made")
            if entry and entry.made_in is not self:
                self.kept[storage._cdata] = storage.nbytes()
            if entry and entry.imported and not self.importing and storage.nbytes() > LARGE:
                self.strange.add("a large tensor made when the file was imported")

    def _entry(self, storage) -> _Entry:
        entry = _entries.get(storage._cdata)
        if entry is None or entry.cover.nbytes != storage.nbytes():  # new, or of another size now
            entry = _entries[storage._cdata] = _Entry(storage, self.importing)
            entry.made_in = self
        return entry


def extents() -> list[tuple[int, int]]:
    """First byte and end of every storage that is known and alive."""
    alive = [entry.storage() for entry in _entries.values()]
    return [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in alive if s is not None]


def _storages(values):
    for value in tree_leaves(values):
        value = getattr(value, "base", value)  # of a Triton tensor descriptor
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            storage = value.untyped_storage()
            if storage.data_ptr():  # else a tensor without memory
                yield storage


def _memory(storage) -> np.ndarray:
    there = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.frombuffer(there, np.uint8)


def _checksum(entry: _Entry) -> int | None:
    storage = entry.storage()
    return None if storage is None else zlib.crc32(_memory(storage))
