"""What PyTorch's own recorder saw of a call: operations of every thread, kernels of the GPU.

The recorder sits below Python.  It sees an operation whichever thread calls it, through whichever
name, with dispatch modes on or off.  Loaded by worker.py by path; imports nothing of the grader.
"""

import math
import secrets

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    _ExperimentalConfig,
    _RecordFunctionFast,
)

OURS = f"grader-{secrets.token_hex(8)}"  # what runs inside this mark is not the submission's
LAUNCH, BEGUN = OURS + "-launch", OURS + "-begun"
# Products, softmax and whole attentions: attention's own work, and the names a library has for it.
PRODUCTS = {"mm", "bmm", "mv", "dot", "vdot", "linear", "bilinear", "cdist", "logsumexp", "einsum",
            "addmm", "addmv", "addbmm", "baddbmm", "chain_matmul", "tensordot", "inner", "outer"}
PRODUCT_PARTS = ("attention", "conv", "softmax", "matmul", "_mm", "lstm", "gru", "rnn_", "_linear",
                 "mkldnn", "onednn")
# Moving numbers about is not computing with them.
MOVES = set("""
    copy_ _to_copy to clone contiguous constant_pad_nd pad zeros zeros_like ones ones_like full
    full_like new_empty new_empty_strided new_zeros new_full cat stack arange scalar_tensor
    index_select repeat repeat_interleave resolve_conj resolve_neg detach alias set_ data type_as
    float half pin_memory requires_grad_ as_strided view view_as reshape _reshape_alias _unsafe_view
    expand expand_as broadcast_to slice select narrow permute transpose movedim swapaxes t mT
    numpy_T squeeze unsqueeze unflatten flatten unbind split unsafe_split chunk tensor_split unfold
    lift_fresh resize_ result_type is_pinned is_nonzero roll flip isfinite isnan all any equal
""".split())
WRITES = {"copy_", "fill_", "zero_"}  # moving a number at a time is no way to move
LEAST = 256  # numbers an operation counts for at least: many small ones are one large one


class Trace:
    """`with trace:` around a call.  Where this PyTorch cannot record, everything stays empty."""

    def __init__(self, on_cuda: bool):
        activities = {ProfilerActivity.CPU} | ({ProfilerActivity.CUDA} if on_cuda else set())
        try:
            every_thread = _ExperimentalConfig(profile_all_threads=True)
        except TypeError:  # before torch 2.6
            every_thread = _ExperimentalConfig()
        self.config = ProfilerConfig(ProfilerState.KINETO, True, False, False, False, False,
                                     every_thread)
        self.activities = activities
        self.products: set[str] = set()
        self.arithmetic = 0  # numbers that PyTorch computed with
        self.kernels: set[str] = set()  # what the GPU ran
        self.launches = 0  # by their marks
        self.transferred = 0  # bytes copied between GPU and host

    def __enter__(self):
        _prepare_profiler(self.config, self.activities)
        _enable_profiler(self.config, self.activities)
        with _RecordFunctionFast(BEGUN):
            return self

    def __exit__(self, *error):
        events = _disable_profiler().events()
        if not any(event.name() == BEGUN for event in events):
            self.products.add("something that switched PyTorch's recorder off")
        self._read(events)

    def _read(self, events) -> None:
        threads: dict[int, list] = {}
        for event in events:
            if event.device_type() == torch.autograd.DeviceType.CPU:
                threads.setdefault(event.start_thread_id(), []).append(event)
            else:
                self.kernels.add(event.name())
                if event.name().startswith(("Memcpy DtoH", "Memcpy HtoD")):
                    self.transferred += event.nbytes()
        for recorded in threads.values():
            recorded.sort(key=lambda event: (event.start_ns(), -event.end_ns()))
            self._read_thread(recorded)

    def _read_thread(self, recorded) -> None:
        """Operations call operations: one counts for itself or for those inside it."""
        opened: list[list] = []  # [end, its own numbers, those of the operations inside it]
        ours_until = 0

        def close_before(moment: float) -> None:
            while opened and opened[-1][0] <= moment:
                _, own, inside = opened.pop()
                if opened:
                    opened[-1][2] += max(own, inside)
                else:
                    self.arithmetic += max(own, inside)

        for event in recorded:
            close_before(event.start_ns())
            space, _, name = event.name().partition("::")
            if event.name() == LAUNCH:
                self.launches += 1
            if event.name() in (OURS, LAUNCH):
                ours_until = max(ours_until, event.end_ns())
            if space != "aten":
                continue
            if name in PRODUCTS or any(part in name for part in PRODUCT_PARTS):
                self.products.add(name)
            numbers = 0
            if event.start_ns() >= ours_until and not name.startswith("empty"):
                if name in WRITES:
                    numbers = LEAST
                elif name not in MOVES:
                    numbers = max(LEAST, _numbers(event.shapes()))
            opened.append([event.end_ns(), numbers, 0])
        close_before(math.inf)


def mark(launch: bool = False):
    """`with mark():` what runs inside is the grader's own, or the launch of a kernel."""
    return _RecordFunctionFast(LAUNCH if launch else OURS)


def _numbers(shapes) -> int:
    """How many numbers an operation on tensors of these shapes computes: they broadcast."""
    shapes = [shape for shape in shapes if all(isinstance(size, int) for size in shape)]
    longest = max(map(len, shapes), default=0)
    together = [1] * longest
    for shape in shapes:
        for axis, size in enumerate(reversed(shape)):
            together[axis] = max(together[axis], size)
    alone = max(map(math.prod, shapes), default=0)
    # Shapes that do not broadcast belong to an operation of another kind.
    fits = all(size in (1, together[axis]) for shape in shapes
               for axis, size in enumerate(reversed(shape)))
    return math.prod(together) if fits else alone
