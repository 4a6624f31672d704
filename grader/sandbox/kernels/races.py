"""Finds races: two programs of one launch that store, or store and load, the same element.

Triton's interpreter runs programs one after the other, so `load; add; store` works there.  A GPU
runs them at the same time, and one of two sums is lost.  So every store notes its program.  Two
programs may store the same bits.  After an atomic operation that can order programs (a lock, a
counter) a program is not checked any more, because others may have waited for it.
"""

import ctypes

import numpy as np

from .bounds import addresses_of, tensor_of
from .hooks import Access, Listener, line_at_work


class Races(Listener):
    """found: the first race between begin() and end(), or None.

    extents, named: as in Bounds.  path: the submission's file, for the line.
    """

    def __init__(self, extents, named, path: str):
        self.extents, self.named, self.path = extents, named, path
        self.found: dict | None = None
        self.watching = self.waited = False
        self.grid, self.places = (1, 1, 1), []  # of the programs begun
        # First byte of an extent -> the size of its numbers, and the program that stored each: 1,
        # 2, ...; 0 for none; -program if it added by an atomic operation.
        self.owners: dict[int, tuple[int, np.ndarray]] = {}

    def begin(self) -> None:
        self.found, self.watching = None, True

    def end(self) -> dict | None:
        self.watching, self.owners = False, {}
        return self.found

    def launch(self, grid: tuple[int, ...]) -> None:
        self.grid, self.places, self.owners = grid, [], {}

    def program(self, place: tuple[int, ...]) -> None:
        self.places.append(place)
        self.waited = False

    def load(self, access: Access) -> None:
        if self.owners and (known := self._owners_of(access)):
            _, owners, at = known
            before = owners[at]
            self._note("reads", access, before, (before != 0) & self._others(before))

    def store(self, access: Access, numbers: np.ndarray) -> None:
        if (known := self._owners_of(access, numbers.itemsize)) is None:
            return
        first, owners, at = known
        before = owners[at]
        others = (before != 0) & self._others(before)
        if others.any():
            new = np.broadcast_to(numbers, access.tile.shape)[access.lanes]
            memory = (ctypes.c_char * (owners.size * new.itemsize)).from_address(first)
            old = np.frombuffer(memory, new.dtype)[at]
            bits = f"u{new.itemsize}"
            others &= np.ascontiguousarray(old).view(bits) != np.ascontiguousarray(new).view(bits)
        self._note("writes", access, before, others)
        owners[at] = len(self.places)

    def atomic(self, access: Access, numbers: np.ndarray, adds: bool) -> None:
        self.waited |= not adds
        if adds and (known := self._owners_of(access, numbers.itemsize)):
            _, owners, at = known
            before = owners[at]
            self._note("writes", access, before, (before > 0) & self._others(before))
            # What a program has stored itself stays its own.
            owners[at] = np.where(before > 0, before, -len(self.places))

    def _others(self, before: np.ndarray) -> np.ndarray:
        return np.abs(before) != len(self.places)

    def _owners_of(self, access: Access, size: int = 0
                   ) -> tuple[int, np.ndarray, np.ndarray] | None:
        """-> the first byte of the extent that holds the tile, the programs that stored its
        numbers, and the tile's places in it.  size: bytes of a number to store; 0 for a load, which
        only looks at extents that were stored to."""
        if not self.watching or self.found or self.waited or not access.addresses.size:
            return None
        extent = access.within([(first, first + known * owners.size)
                                for first, (known, owners) in self.owners.items()])
        if extent is None and size and (extent := access.within(self.extents())):
            first, end = extent
            self.owners[first] = size, np.zeros((end - first) // size, np.int32)
        if extent is None:
            return None
        first, (known, owners) = extent[0], self.owners[extent[0]]
        if size not in (0, known):
            return None
        return first, owners, (access.addresses.astype(np.int64) - first) // known

    def _note(self, verb: str, access: Access, before: np.ndarray, others: np.ndarray) -> None:
        if not others.any():
            return
        lane = int(others.argmax())
        axes = max((i + 1 for i, size in enumerate(self.grid) if size > 1), default=1)
        programs = [list(self.places[abs(int(number)) - 1][:axes])
                    for number in (before[lane], len(self.places))]
        name, index = "", []
        if tensor := tensor_of(access, self.named()):
            name, *place, shape, strides = tensor
            found = np.flatnonzero(
                addresses_of(*place, shape, strides) == int(access.addresses[lane]))[:1]
            index = [int(i) for one in found for i in np.unravel_index(one, shape)]
        self.found = {"verb": verb, "programs": programs, "tensor": name, "index": index,
                      "line": line_at_work(self.path) or 0}
