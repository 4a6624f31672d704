"""Counts which key rows a call reads for which query rows, and the reverse.

A row is recognised by its numbers, of which hardly two are equal.  Copies, padding, transposes,
wider dtypes and a power of two as a factor do not hide it, and rows that PyTorch multiplies by
another factor are learnt.  Kernels are counted load by load in Triton's interpreter, PyTorch
product by product.

The side that a program loads first, queries or keys, leads: its rows stay, while rows of the other
side come and go.  If the leading side is loaded again after the other, a new loop has begun, as in
a persistent program.
"""

import contextlib

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..kernels.hooks import Access, Listener, argument_at_work, listening
from ..wire import AGAIN, MASKED, READ, UNMASKED

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "mul"}
SCALINGS = {"mul", "div", "neg"}
QUERIES, KEYS = 0, 1


class Reads(TorchDispatchMode, Listener):
    """`with reads:` around a call of the file at path.  queries, keys: its tensors (..., N, D), all
    with the same N.

    read[QUERIES, i, j]: flags, if key row j was read in a loop led by query row i; AGAIN: that loop
    read it more than once.  read[KEYS, j, i]: the reverse.  together[side, i, j]: rows i and j led
    the same loop.  tiles[side]: the most rows in one load, or in one operand of a product.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and importing torch._dynamo takes a second."""
        return False

    def __init__(self, path: str, queries: list[torch.Tensor], keys: list[torch.Tensor]):
        super().__init__()
        self.path = path
        N = queries[0].shape[-2]
        self.learnt, self.begins = np.empty((0, 3)), {}  # number, tensor, row; how rows begin
        for side, tensors in enumerate((queries, keys)):
            for number, tensor in enumerate(tensors):
                numbers = _mantissas(tensor)
                rows = np.broadcast_to(np.arange(N)[:, None], numbers.shape)
                self.begins[2 * number + side] = numbers.reshape(-1, N, numbers.shape[-1])[0, :, 0]
                self._learn(numbers, np.full(numbers.shape, 2 * number + side), rows)
        self.read, self.together = np.zeros((2, 2, N, N), np.uint8)
        self.tiles, self.times = [0, 0], {}
        self.program(())
        self.told = contextlib.ExitStack()

    def __enter__(self):
        self.told.enter_context(listening(self))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.told.close()
        self._end_loop()

    def _learn(self, numbers: np.ndarray, tensors: np.ndarray, rows: np.ndarray) -> None:
        """Remember that these numbers, too, belong to these tensors and rows."""
        more = np.stack([x.ravel() for x in (numbers, tensors, rows)], axis=1)
        self.learnt = np.unique(np.concatenate([self.learnt, more]), axis=0)
        self.numbers, first, count = np.unique(
            self.learnt[:, 0], return_index=True, return_counts=True)
        once = count == 1  # numbers that occur twice tell nothing
        self.numbers = self.numbers[once]
        self.tensors, self.rows = self.learnt[first[once], 1:].astype(np.int64).T

    def _known(self, numbers: np.ndarray):
        """-> the tensor and the rows, ascending, of these numbers; None if most are unknown.  The
        tensor is even on the side of the queries, odd on that of the keys."""
        numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
        for some in (numbers[::1 + numbers.size // 64], numbers):  # a few are mostly enough
            at = self.numbers.searchsorted(some).clip(max=len(self.numbers) - 1)
            at = at[self.numbers[at] == some]
            if 2 * len(at) <= some.size:
                return None
        tensor = int(np.bincount(self.tensors[at]).argmax())
        rows, counts = np.unique(self.rows[at[self.tensors[at] == tensor]], return_counts=True)
        return tensor, rows[8 * counts > counts.max()]  # a single number may be equal by chance

    # ---------------------------------------------------------------- kernels
    def program(self, place: tuple[int, ...]) -> None:
        self._end_loop()
        self.leader, self.leading, self.followed = None, np.empty(0, np.int64), False

    def loaded(self, access: Access, numbers: np.ndarray) -> None:
        if numbers.dtype.kind in "iu" and numbers.dtype.itemsize == 4:
            numbers = numbers.view(np.float32)  # float32 loaded as its bits
        if numbers.dtype.kind != "f":
            return
        numbers = _mantissas(numbers[access.lanes])
        known = self._known(numbers)
        if known is None:
            return
        tensor, rows = known
        side = tensor % 2
        self.tiles[side] = max(self.tiles[side], len(rows))
        if self.leader is None:
            self.leader = side
        if side == self.leader:
            if self.followed and not np.array_equal(rows, self.leading):
                self._end_loop()
            self.leading = rows if self.followed else np.union1d(self.leading, rows)
            self.followed = False
        else:
            self.followed = True
            times = self.times.setdefault(tensor, np.zeros(len(self.read[0]), int))
            times[rows] += np.isin(self.begins[tensor][rows], numbers)  # D may come in parts
            masked = argument_at_work(self.path, "MASKED")
            self._note(self.leader, self.leading, rows,
                       0 if masked is None else MASKED if masked else UNMASKED)

    def _end_loop(self) -> None:
        """Note the rows that the loop read more than once, of every tensor: a tile that is loaded
        twice in one turn, as it is and transposed, is no second visit."""
        if self.times:
            again = np.flatnonzero(np.minimum.reduce([*self.times.values()]) > 1)
            self.read[self.leader][np.ix_(self.leading, again)] |= AGAIN
        self.times = {}

    def _note(self, leader: int, leading: np.ndarray, rows: np.ndarray, flag: int = 0) -> None:
        self.together[leader][np.ix_(leading, leading)] = 1
        self.read[leader][np.ix_(leading, rows)] |= READ | flag

    # ---------------------------------------------------------------- PyTorch
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "overloadpacket", func).__name__.rstrip("_")
        if name not in PRODUCTS | SCALINGS:
            return func(*args, **(kwargs or {}))
        operands = [_mantissas(x) for x in tree_leaves((args, kwargs))
                    if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if name in PRODUCTS:
            known = dict(filter(None, map(self._known, operands)))
            rows = {tensor % 2: some for tensor, some in known.items()}
            if len(rows) == 2:  # scores
                for side in (QUERIES, KEYS):
                    self.tiles[side] = max(self.tiles[side], len(rows[side]))
                pairs = self.read[QUERIES][np.ix_(rows[QUERIES], rows[KEYS])]
                self._note(QUERIES, rows[QUERIES], rows[KEYS], (pairs & READ) * AGAIN)
        made = func(*args, **(kwargs or {}))
        whole = [x for x in operands if x.shape == made.shape]
        if name in SCALINGS and len(whole) == 1 and self._known(whole[0]) is not None:
            at = self.numbers.searchsorted(whole[0]).clip(max=len(self.numbers) - 1)
            same = self.numbers[at] == whole[0]
            self._learn(_mantissas(made)[same], self.tensors[at][same], self.rows[at][same])
        return made


def _mantissas(numbers) -> np.ndarray:
    if isinstance(numbers, torch.Tensor):
        numbers = numbers.detach().double().numpy()
    return np.frexp(numbers.astype(np.float64))[0]
