"""Raises an error where an interpreted kernel loads or stores outside all tensors.

The interpreter accesses memory outside tensors silently, and so, mostly, does a GPU.
"""

import numpy as np

from .hooks import Access, Listener

NEAR = 65536  # bytes on each side of a tensor that belong to it; worker.py keeps them unused


class OutOfBounds(IndexError):
    """A lane that no mask turns off reads or writes outside all tensors.

    tensor: the kernel's name for the tensor that the pointer was made from.  lanes: which lanes.
    address: what to check of the address, if more is known of the tensors than where they are.
    """

    def __init__(self, verb: str, count: int, tensor: str = "", lanes: str = "",
                 address: str = ""):
        call, self.id = {"reads": ("tl.load", "out-of-bounds-read"),
                         "writes": ("tl.store", "out-of-bounds-write")}[verb]
        self.what = (f"{call} {verb} {count} number{'s' * (count > 1)} outside "
                     + (f"the tensor at {tensor}" if tensor else "every tensor"))
        self.wants = f"{'They are' if count > 1 else 'It is'} {lanes}. " * bool(lanes) + (
            "Either the mask is missing or wrong, or the address is wrong"
            + f": check its {address}" * bool(address))
        super().__init__(f"{self.what}. {self.wants}")


class Bounds(Listener):
    """Raises OutOfBounds.

    extents() -> (first byte, byte after the last) of every live tensor.  named() -> (name, first
    byte, bytes per number, shape, strides) of every tensor that the kernel was given.
    """

    def __init__(self, extents, named):
        self.extents, self.named = extents, named

    def load(self, access: Access) -> None:
        self._check(access, "reads")

    def store(self, access: Access, numbers: np.ndarray) -> None:
        self._check(access, "writes")

    def _check(self, access: Access, verb: str) -> None:
        known = self.extents()
        # Outside of a call no extents are known.  Mostly, all lanes are in one tensor.
        if not known or not access.addresses.size or access.within(known):
            return
        tile = access.tile.astype(np.int64)
        inside = np.zeros(tile.shape, bool)
        for first, end in known:
            inside |= (tile >= first) & (tile < end)
        outside = access.lanes & ~inside
        if not outside.any():
            return
        named = self.named()
        address = "tile and strides" if named else ""
        if any(len(shape) > 2 for *_, shape, _ in named):
            address = "tile, strides, head and batch entry"
        tensor = tensor_of(access, named)
        if tensor is None:
            raise OutOfBounds(verb, int(outside.sum()), "", _lanes(outside), address)
        name, *place = tensor
        here = _heads(tile, *place)
        outside = access.lanes & (here < 0)  # the rest of a view's storage counts as outside, too
        lanes = _lanes(outside)
        own = here[access.lanes & (here >= 0)][:1]
        if lanes and own.size and (
                other := access.lanes & (here >= 0) & (here != own)).any():
            more = int(other.sum())
            there = f"{more} more, {_lanes(other, whole=False)},".replace(", ,", "")
            lanes += f"; {there} {'are' if more > 1 else 'is'} in another head"
        raise OutOfBounds(verb, int(outside.sum()), name, lanes, address)


def tensor_of(access: Access, named: list[tuple]) -> tuple | None:
    """The tensor that a pointer was made from; if that is not known, the one that its first lane is
    in, or within NEAR bytes of."""
    pointer, found = int(access.addresses[0]) if access.base is None else access.base, []
    for number, (_, first, size, shape, strides) in enumerate(named):
        last = first + size * sum((n - 1) * m for n, m in zip(shape, strides, strict=True))
        away = max(first - pointer, pointer - last, 0)
        found.append((away, abs(first - pointer), number))
    away, _, number = min(found, default=(NEAR + 1, 0, 0))
    return named[number] if away <= NEAR else None


def addresses_of(first: int, size: int, shape: list[int], strides: list[int]) -> np.ndarray:
    """The addresses of all numbers of a tensor, in its order."""
    there = np.full(1, first)
    for n, stride in zip(shape, strides, strict=True):
        there = np.add.outer(there, np.arange(n) * stride * size)
    return there.ravel()


def _heads(addresses: np.ndarray, first: int, size: int, shape: list[int], strides: list[int]
           ) -> np.ndarray:
    """The head that each address is in, with all leading axes counted as one; -1 for none."""
    there = addresses_of(first, size, shape, strides)
    rows = int(np.prod(shape[2:])) if len(shape) > 2 else there.size
    order = np.argsort(there, kind="stable")
    at = np.searchsorted(there, addresses, sorter=order).clip(max=max(there.size - 1, 0))
    if not there.size:
        return np.full(addresses.shape, -1)
    at = order[at]
    return np.where(there[at] == addresses, at // max(rows, 1), -1)


def _lanes(outside: np.ndarray, whole: bool = True) -> str:
    """Where the lanes are: "in rows 40-63 of the (64, 16) tile", "elements 40-63 of 64"; "" for a
    single one.  whole: say the size of the tile, too."""
    if outside.size == 1:
        return ""
    axes = ("element",) if outside.ndim == 1 else ("row", "column")
    said = []
    for axis, name in enumerate(axes[:outside.ndim]):
        others = tuple(other for other in range(outside.ndim) if other != axis)
        at = np.flatnonzero(outside.any(others))
        if len(at) < outside.shape[axis]:
            span = f"s {at[0]}-{at[-1]}" if len(at) > 1 else f" {at[0]}"
            said.append(name + span)
    size = str(outside.size) if outside.ndim == 1 else f"the {outside.shape} tile"
    if said:
        return "in " * (outside.ndim > 1) + ", ".join(said) + f" of {size}" * whole
    if not whole:
        return ""
    if outside.ndim > 1:
        return (f"the whole {outside.shape} tile" if outside.all() else
                f"among the {outside.size} elements of {size}")
    return f"{'all' if outside.all() else 'among the'} {outside.size} elements"
