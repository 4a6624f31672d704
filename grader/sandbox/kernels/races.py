"""Two programs of one launch that meet in one number.

Triton's interpreter runs programs one after another, so `load; add; store` is right there; a GPU
runs them at once, and one of the two sums is lost.  Here it is written down who stores what.  What
two programs both store with the same bits does no harm.  A program that has taken its turn by an
atomic operation (a lock, a counter) is not looked at further: others may have waited for it.
"""

import ctypes
import sys

import numpy as np

from . import interpreter


class Races:
    """The first race of what runs between begin() and end(): found, or None.

    extents, named: as interpreter.hold_to() has them; path: of the file, whose line is told.
    """

    def __init__(self, extents, named, path: str):
        self.extents, self.named, self.path = extents, named, path
        self.found: dict | None = None
        self.watching = False
        self.grid, self.program, self.programs = (1, 1, 1), 0, {}
        self.waited = False
        # First byte of an extent -> its numbers' size, and who stored each: a program from 1 on,
        # 0 for nobody, -program for one that adds by an atomic operation.
        self.owners: dict[int, tuple[int, np.ndarray]] = {}

    def begin(self) -> None:
        self.found, self.watching = None, True

    def end(self) -> dict | None:
        self.watching, self.owners = False, {}
        return self.found

    @property
    def looks(self) -> bool:
        return self.watching and self.found is None and not self.waited

    def install(self) -> None:
        """Beside interpreter.hold_to(), and after it."""
        from triton.runtime import interpreter as triton_interpreter

        builder = type(triton_interpreter.interpreter_builder)
        load, store = builder.create_masked_load, builder.create_masked_store
        add, swap = builder.create_atomic_rmw, builder.create_atomic_cas
        set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx

        def set_grid_dim(builder, *sizes):
            self.grid, self.owners, self.programs = sizes, {}, {}
            return set_dim(builder, *sizes)

        def set_grid_idx(builder, *place):
            self.program, self.waited = len(self.programs) + 1, False
            self.programs[self.program] = place
            return set_idx(builder, *place)

        def masked_load(builder, ptrs, mask, *args, **kwargs):
            if self.owners and self.looks:
                self._loaded(ptrs, mask)
            return load(builder, ptrs, mask, *args, **kwargs)

        def masked_store(builder, ptrs, value, mask, *args, **kwargs):
            if self.looks:
                self._stored(ptrs, value, mask)
            return store(builder, ptrs, value, mask, *args, **kwargs)

        def atomic_rmw(builder, op, ptr, value, mask, *args, **kwargs):
            if self.looks and value.dtype.scalar.is_floating() and "XCHG" not in str(op):
                self._added(ptr, value, mask)
            else:
                self.waited = True
            return add(builder, op, ptr, value, mask, *args, **kwargs)

        def atomic_cas(builder, *args, **kwargs):
            self.waited = True
            return swap(builder, *args, **kwargs)

        builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
        builder.create_atomic_rmw, builder.create_atomic_cas = atomic_rmw, atomic_cas
        builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx

    def _stored(self, ptrs, value, mask) -> None:
        kept = _lanes(ptrs, mask)
        at = ptrs.data[kept].astype(np.int64)
        there = self._of(at, value.data.itemsize)
        if there is None:
            return
        first, size, owners = there
        places = (at - first) // size
        before = owners[places]
        others = (before != 0) & (np.abs(before) != self.program)
        if others.any():
            new = np.broadcast_to(value.data, ptrs.data.shape)[kept]
            memory = (ctypes.c_char * (owners.size * size)).from_address(first)
            old = np.frombuffer(memory, new.dtype)[places]
            bits = f"u{size}"
            others &= np.ascontiguousarray(old).view(bits) != np.ascontiguousarray(new).view(bits)
        if others.any():
            self._note("writes", ptrs, at, before, others)
        owners[places] = self.program

    def _added(self, ptrs, value, mask) -> None:
        at = ptrs.data[_lanes(ptrs, mask)].astype(np.int64)
        there = self._of(at, value.data.itemsize)
        if there is None:
            return
        first, size, owners = there
        places = (at - first) // size
        before = owners[places]
        if (others := (before > 0) & (before != self.program)).any():
            self._note("writes", ptrs, at, before, others)
        owners[places] = np.where(before > 0, before, -self.program)  # what it began itself

    def _loaded(self, ptrs, mask) -> None:
        at = ptrs.data[_lanes(ptrs, mask)]
        if not at.size:
            return
        low, high = int(at.min()), int(at.max())
        for first, (size, owners) in self.owners.items():
            if first <= low and high < first + owners.size * size:
                at = at.astype(np.int64)
                before = owners[(at - first) // size]
                if (others := (before != 0) & (np.abs(before) != self.program)).any():
                    self._note("reads", ptrs, at, before, others)

    def _of(self, at: np.ndarray, size: int) -> tuple[int, int, np.ndarray] | None:
        """The first byte, the numbers' size and the owners of the extent that all of at is in."""
        if not at.size:
            return None
        low, high = int(at.min()), int(at.max())
        for first, (known, owners) in self.owners.items():
            if first <= low and high < first + owners.size * known:
                return (first, size, owners) if known == size else None
        for first, end in self.extents():
            if first <= low and high < end:
                self.owners[first] = size, np.zeros((end - first) // size, np.int32)
                return first, *self.owners[first]
        return None

    def _note(self, verb: str, ptrs, at: np.ndarray, before: np.ndarray, others: np.ndarray
              ) -> None:
        lane = int(others.argmax())
        axes = max((i + 1 for i, size in enumerate(self.grid) if size > 1), default=1)
        programs = [list(self.programs[abs(int(number))][:axes])
                    for number in (before[lane], self.program)]
        tensor = interpreter.tensor_of(getattr(ptrs, "base", None), at, self.named())
        name, index = "", []
        if tensor is not None:
            name, *place, shape, strides = tensor
            found = np.flatnonzero(
                interpreter.addresses_of(*place, shape, strides) == int(at[lane]))[:1]
            index = [int(i) for one in found for i in np.unravel_index(one, shape)]
        self.found = {"verb": verb, "programs": programs, "tensor": name, "index": index,
                      "line": self._line()}

    def _line(self) -> int:
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        return 0 if frame is None else frame.f_lineno


def _lanes(ptrs, mask) -> np.ndarray:
    return (np.ones(ptrs.data.shape, bool) if mask is None
            else np.broadcast_to(mask.data, ptrs.data.shape))
