"""Notes which rows and columns of which tensor every program of a call loads and stores.

For pictures: nothing is checked here, and an access outside of its tensor is noted before bounds.py
raises its error.  Only Triton's interpreter tells of accesses.
"""

import numpy as np

from ..kernels import hooks
from ..kernels.bounds import tensor_of

MOST = 4000  # accesses; what comes after is not noted
PROGRAMS = 16  # of each launch


class Accesses(hooks.Listener):
    """`with` it around a call, inside of a recorder.

    launches: {"kernel": name, "grid", "tensors": {name: shape}, "programs": list of accesses}, of
    which each is [verb, tensor, line, tile, lanes, masked].  tile, lanes: first and last row, first
    and last column, of all lanes and of those that no mask leaves out (None without any).  masked:
    the flag MASKED of the function at work, None without one.
    """

    def __init__(self, recorder, path: str):
        self.recorder, self.path, self.launches, self.count = recorder, path, [], 0

    def __enter__(self) -> "Accesses":
        hooks.listeners.insert(0, self)  # before the one that raises
        return self

    def __exit__(self, *error) -> None:
        hooks.listeners.remove(self)

    def launch(self, grid: tuple[int, ...]) -> None:
        kernel = self.recorder.functions[self.recorder.steps[-1][1]]["name"]
        self.named = self.recorder.named()
        self.launches.append({"kernel": kernel, "grid": list(grid), "programs": [], "tensors": {
            name: _rows_and_columns(shape) for name, _, _, shape, _ in self.named}})

    def program(self, place: tuple[int, ...]) -> None:
        if self.launches:
            self.launches[-1]["programs"].append([])

    def load(self, access: hooks.Access) -> None:
        self._note("load", access)

    def store(self, access: hooks.Access, numbers: np.ndarray) -> None:
        self._note("store", access)

    def atomic(self, access: hooks.Access, numbers: np.ndarray, adds: bool) -> None:
        self._note("add", access)

    def _note(self, verb: str, access: hooks.Access) -> None:
        programs = self.launches[-1]["programs"] if self.launches else []
        if not programs or len(programs) > PROGRAMS or self.count >= MOST:
            return
        pointed = access if access.addresses.size or access.base is not None else None
        tensor = tensor_of(pointed, self.named) if pointed else None
        if tensor is None:
            return
        name, first, size, shape, strides = tensor
        place = (access.tile.astype(np.int64) - first) // size
        rows, columns = _places(place, shape, strides)
        self.count += 1
        programs[-1].append([verb, name, hooks.line_at_work(self.path),
                             _box(rows, columns), _box(rows[access.lanes], columns[access.lanes]),
                             hooks.argument_at_work(self.path, "MASKED")])


def _rows_and_columns(shape: list[int]) -> list[int]:
    """As a picture shows them: the last two axes of four, and the last one of three."""
    if len(shape) in (2, 4):
        return list(shape[-2:])
    return [shape[-1] if shape else 1, 1]


def _places(offsets: np.ndarray, shape: list[int], strides: list[int]):
    """Rows and columns of offsets in a tensor.  What lies outside of it is in a row that it has
    not."""
    last = len(shape) - 1 if len(shape) in (2, 4) else None
    row_axis = len(shape) - 2 if last is not None else len(shape) - 1
    rest, found = offsets.copy(), {}
    for axis in sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis)):
        if shape[axis] > 1 and strides[axis]:
            found[axis] = rest // strides[axis]
            rest = rest - found[axis] * strides[axis]
    nothing = np.zeros_like(offsets)
    return found.get(row_axis, nothing), found.get(last, nothing)


def _box(rows: np.ndarray, columns: np.ndarray) -> list[int] | None:
    return [int(edge) for axis in (rows, columns) for edge in (axis.min(), axis.max())] \
        if rows.size else None
