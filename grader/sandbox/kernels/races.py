"""Two programs of one launch that meet in one number.

Triton's interpreter runs programs one after another, so `load; add; store` is right there; a GPU
runs them at once, and one of the two sums is lost.  Here it is written down who stores what.  What
two programs both store with the same bits does no harm.  A program that has taken its turn by an
atomic operation (a lock, a counter) is not looked at further: others may have waited for it.
"""

import ctypes

import numpy as np

from .bounds import addresses_of, tensor_of
from .hooks import Access, Listener, line_at_work


class Races(Listener):
    """The first race of what runs between begin() and end(): found, or None.

    extents, named: as Bounds has them; path: of the file, whose line is told.
    """

    def __init__(self, extents, named, path: str):
        self.extents, self.named, self.path = extents, named, path
        self.found: dict | None = None
        self.watching = self.waited = False
        self.grid, self.places = (1, 1, 1), []  # those of the programs that have begun
        # First byte of an extent -> its numbers' size, and who stored each: a program from 1 on,
        # 0 for nobody, -program for one that adds by an atomic operation.
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
            # What a program began to store itself stays its own.
            owners[at] = np.where(before > 0, before, -len(self.places))

    def _others(self, before: np.ndarray) -> np.ndarray:
        return np.abs(before) != len(self.places)

    def _owners_of(self, access: Access, size: int = 0
                   ) -> tuple[int, np.ndarray, np.ndarray] | None:
        """Of the extent that all of a tile lies in the first byte and the owners of its numbers,
        and which of these the tile's are.  size: of the numbers, which nobody may have stored yet;
        0 of a load."""
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
