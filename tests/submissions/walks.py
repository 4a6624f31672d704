"""Walks over tiles of 16 rows that read and compute nothing: what is read is all that counts.

But for `late`, every query tile reads the key tiles up to its own.
"""

import torch
import triton
import triton.language as tl

TILE = 16


@triton.jit
def _read(ptr, tile, head, N, WIDTH: tl.constexpr):
    row, column = tile * 16 + tl.arange(0, 16)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = (row < N) & (column < WIDTH)
    return tl.load(ptr + (head * N + row) * WIDTH + column, mask=inside, other=0.0)


@triton.jit
def _walk(q, k, v, tile, end, head, kv_head, N, WIDTH: tl.constexpr):
    _read(q, tile, head, N, WIDTH)
    for other in range(0, end):
        _read(k, other, kv_head, N, WIDTH)
        _read(v, other, kv_head, N, WIDTH)


@triton.jit
def _by_tile(q, k, v, N, G, LATE: tl.constexpr, WIDTH: tl.constexpr):
    tile, head = tl.program_id(0), tl.program_id(1)
    _walk(q, k, v, tile, tile + 1 + LATE, head, head // G, N, WIDTH)


@triton.jit
def _axes_swapped(q, k, v, N, G, WIDTH: tl.constexpr):
    tile, head = tl.program_id(1), tl.program_id(0)
    _walk(q, k, v, tile, tile + 1, head, head // G, N, WIDTH)


@triton.jit
def _persistent(q, k, v, N, H, G, STEP: tl.constexpr, WIDTH: tl.constexpr):
    for head in range(0, H):
        for tile in range(tl.program_id(0), tl.cdiv(N, 16), STEP):
            _walk(q, k, v, tile, tile + 1, head, head // G, N, WIDTH)


@triton.jit
def _keys_lead(q, k, v, N, G, WIDTH: tl.constexpr):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    _read(k, tile, kv_head, N, WIDTH)
    _read(v, tile, kv_head, N, WIDTH)
    for head in range(kv_head * G, (kv_head + 1) * G):
        for other in range(tile, tl.cdiv(N, 16)):
            _read(q, other, head, N, WIDTH)


@triton.jit
def _masked_off(q, k, v, N, G, WIDTH: tl.constexpr):
    tile, head = tl.program_id(0), tl.program_id(1)
    _read(q, tile, head, N, WIDTH)
    for other in range(0, tl.cdiv(N, 16)):
        _read(k, other, head // G, tl.where(other <= tile, N, 0), WIDTH)


@triton.jit
def _visited_again(q, k, v, N, G, WIDTH: tl.constexpr):
    tile, head = tl.program_id(0), tl.program_id(1)
    _read(q, tile, head, N, WIDTH)
    for turn in range(0, tile + 2):
        other = turn % (tile + 1)  # in the last turn tile 0 once more
        _read(k, other, head // G, N, WIDTH)
        _read(k, other, head // G, N, WIDTH)  # as a kernel that loads a tile transposed, too
        for half in range(0, 2):
            _read(q, tile, head, N, WIDTH)
            column = half * (WIDTH // 2) + tl.arange(0, WIDTH // 2)[None, :]
            row = other * 16 + tl.arange(0, 16)[:, None]
            tl.load(v + row * WIDTH + column, mask=row < N, other=0.0)


def _grid(q):
    return triton.cdiv(q.shape[2], TILE), q.shape[1]


def _sizes(q, k):
    return q.shape[2], q.shape[1] // k.shape[1]


def by_tile(q, k, v, late=0):
    _by_tile[_grid(q)](q, k, v, *_sizes(q, k), late, q.shape[3])
    return torch.zeros_like(q)


def late(q, k, v):
    return by_tile(q, k, v, 2)


def axes_swapped(q, k, v):
    _axes_swapped[_grid(q)[::-1]](q, k, v, *_sizes(q, k), q.shape[3])
    return torch.zeros_like(q)


def one_program(q, k, v, step=1):
    N, G = _sizes(q, k)
    _persistent[(step,)](q, k, v, N, q.shape[1], G, step, q.shape[3])
    return torch.zeros_like(q)


def persistent(q, k, v):
    return one_program(q, k, v, 3)


def keys_lead(q, k, v):
    _keys_lead[(_grid(q)[0], k.shape[1])](q, k, v, *_sizes(q, k), q.shape[3])
    return torch.zeros_like(q)


def masked_off(q, k, v):
    _masked_off[_grid(q)](q, k, v, *_sizes(q, k), q.shape[3])
    return torch.zeros_like(q)


def visited_again(q, k, v):
    _visited_again[_grid(q)](q, k, v, *_sizes(q, k), q.shape[3])
    return torch.zeros_like(q)


def copied(q, k, v):
    """Padded to 32 columns, which hold zeros, and in float64; q with a factor of 1/4."""
    q, k, v = (torch.nn.functional.pad(x.double(), (0, 16)) for x in (q / 4, k, v))
    return by_tile(q, k, v)[..., :16].float()


def in_pytorch(q, k, v, factor=0.25):
    for head in range(q.shape[1]):
        kv_head = head // (q.shape[1] // k.shape[1])
        for start in range(0, q.shape[2], TILE):
            tile = q[:, head, start:start + TILE] * factor
            for other in range(0, start + 1, TILE):
                rows = slice(other, other + TILE)
                (tile @ k[:, kv_head, rows].mT).softmax(-1) @ v[:, kv_head, rows]
    return torch.zeros_like(q)


def visited_again_in_pytorch(q, k, v):
    q[:, 0] @ k[:, 0, :TILE].mT
    return in_pytorch(q, k, v, 1.0)


def summed_in_pytorch(q, k, v):
    for start in range(0, q.shape[2], TILE):
        keys = k[:, :1, None, :start + TILE]
        (q[:, :, start:start + TILE, None] * keys).sum(-1)
    return torch.zeros_like(q)


def scaled(q, k, v):
    return by_tile(q.float() * 3.0, k.float() / 3.0, 0.7 * v)


def shifted_beyond_recognition(q, k, v):
    return in_pytorch(q + 0.3, k + 0.7, v)
