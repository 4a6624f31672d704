"""Helpers of the Gluon forward and backward: names that moved, barriers, tiles, descriptors."""

import functools

import torch
import triton

if not (3, 6) <= tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 9):
    raise ImportError(f"want Triton 3.6 to 3.9; got {triton.__version__}")

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver

LOG2E = gl.constexpr(1.4426950408889634)  # exp(x) == exp2(x * LOG2E)
LN2 = gl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2


# ---------------------------------------------------------- names that moved
@builtin
def _tma_add(desc, coord, src, _semantic=None):
    """Triton before 3.8 has the operation, but no public name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, desc.handle, coord, src.handle)


meet = getattr(gl, "barrier", None) or gl.thread_barrier  # 3.7; all warps of one role
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # 3.8
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global  # 3.8
tma_add = getattr(tma, "async_atomic_add", None) or _tma_add  # 3.8


# ----------------------------------------------------------------- barriers
@gluon.jit
def new_barriers(n: gl.constexpr, arrivals: gl.constexpr = 1):
    """Allocate n mbarriers, each of which waits for `arrivals` arrivals."""
    bars = gl.allocate_shared_memory(gl.int64, [n, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(n):
        mbarrier.init(bars.index(i), count=arrivals)
    return bars


@gluon.jit
def bar_arrive(number, threads: gl.constexpr):
    """Arrive at a hardware barrier without waiting.  There are 16; Triton uses the first few.

    Every warp arrives on its own; Gluon's mbarrier.arrive first synchronises the warpgroup.
    """
    gl.inline_asm_elementwise(
        "bar.arrive $1, $2; mov.u32 $0, 0;", "=r,r,r,~{memory}", [number, threads], gl.int32,
        is_pure=False, pack=1,
    )


@gluon.jit
def bar_sync(number, threads: gl.constexpr):
    """Wait until `threads` threads, these included, have arrived."""
    gl.inline_asm_elementwise(
        "bar.sync $1, $2; mov.u32 $0, 0;", "=r,r,r,~{memory}", [number, threads], gl.int32,
        is_pure=False, pack=1,
    )


@gluon.jit
def uniform(x):
    """Returns x, the same in every lane, in a way that ptxas recognises as uniform."""
    return gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;", "=r,r", [x], gl.int32,
        is_pure=False, pack=1,
    )


@gluon.jit
def ring(i, SLOTS: gl.constexpr):
    """Returns the slot of the i-th tile in a ring of 2 or 4, and its barrier's parity.

    The parity flips every time the ring has gone round.
    """
    return i & (SLOTS - 1), (i >> (SLOTS // 2)) & 1


# -------------------------------------------------------------------- tiles
@gluon.jit
def by_lane(s):
    """Returns s (64, n) as (64, n / 8, 4, 2), its row numbers, and its column numbers in two parts.

    A thread holds columns lane + column, where lane is a single number, 0, 2, 4 or 6, and column is
    known to the compiler.  Comparing only the latter with a limit saves a register per column.
    """
    tile = gl.reshape(s, [64, s.shape[1] // 8, 4, 2])
    L: gl.constexpr = tile.type.layout
    L0: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L)))
    L1: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L)))
    L2: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L)))
    L3: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L)))
    row = gl.arange(0, 64, L0)[:, None, None, None]
    lane = gl.arange(0, 4, L2)[None, None, :, None] * 2
    column = gl.arange(0, s.shape[1] // 8, L1)[None, :, None, None] * 8
    return tile, row, lane, column + gl.arange(0, 2, L3)[None, None, None, :]


@gluon.jit
def where_kept(keep, tile, s):
    """Returns s where keep, in by_lane's shape, is true, and -inf elsewhere."""
    s_kept = gl.reshape(gl.where(keep, tile, float("-inf")), s.shape)
    return gl.convert_layout(s_kept, s.type.layout)


@gluon.jit
def row_max(s, COLUMNS: gl.constexpr):
    """Returns row maxima, by way of COLUMNS maxima per row: short chains of instructions."""
    if COLUMNS > 1:
        s_max = gl.max(gl.max(gl.reshape(s, [s.shape[0], s.shape[1] // COLUMNS, COLUMNS]), 1), 1)
    else:
        s_max = gl.max(s, 1)
    return gl.convert_layout(s_max, gl.SliceLayout(1, s.type.layout))


@gluon.jit
def partial_sums(p):
    """Returns row sums of p, still spread over 4 columns: every thread adds what it holds."""
    return gl.sum(gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


# --------------------------------------------------------------------- host
def tiles(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """Describe x (B, H, N, D), or its copyable(), as source or target of (1, 1, rows, D) tiles."""
    x = copyable(x)
    layout = gl.NVMMASharedLayout(128, 16, rank=4)
    block = [1, 1, rows, x.shape[3]]
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)


def copyable(x: torch.Tensor) -> torch.Tensor:
    """Returns x, or a contiguous copy if the copy engine cannot read it: strides of 16 bytes."""
    b, h, n, d = x.stride()
    if d == 1 and x.data_ptr() % 16 == 0 and not (b | h | n) % 8 and min(b, h, n) > 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


_counters = {}


def counter(device: torch.device) -> torch.Tensor:
    """Returns the stream's counter, which every kernel leaves at zero; a graph gets its own."""
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    key = device, driver.active.get_current_stream(device.index)
    if key not in _counters:
        _counters[key] = torch.zeros(1, dtype=torch.int32, device=device)
    return _counters[key]


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Returns how many multiprocessors a Hopper GPU has.

    Raises ValueError for other GPUs, on which Gluon's compiler would kill the process.
    """
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise ValueError(f"want a GPU of compute capability 9.0 (Hopper); got {capability}")
    return torch.cuda.get_device_properties(device).multi_processor_count
