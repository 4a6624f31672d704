"""Which kernel does which work, and the tiles, warps, stages and registers of those of kernels.py.

Timed on an H200 for bfloat16.  Tiles for other GPUs: chosen by what they hold, and compiled only.
Figures in the comments: H200, bfloat16, Triton 3.6, November 2026, ms.
"""

# ------------------------------------------------------------ Triton or Gluon
# Where Gluon's kernels are picked, of what both can do on a Hopper, by how many keys a query sees
# at most: N, or the window.  All the rest is plain Triton's.  In the comments: Triton's time over
# Gluon's, whole calls, H100 and H200, 2026-11-26 and 27, Triton 3.6.  Above 1.3 the host shows.
FAR = 1 << 62
GLUON = {
    ("forward", 128, "full"): range(1, FAR),  # 1.18 to 1.24
    ("forward", 128, "causal"): range(1, FAR),  # 1.19 to 2.0
    ("forward", 128, "window"): range(1, FAR),  # 1.14 to 1.44
    ("forward", 64, "full"): range(1, 5001),  # .98 to 2.2; longer .95 to .97
    ("forward", 64, "causal"): range(1, FAR),  # .98 to 2.6
    ("forward", 64, "window"): range(129, FAR),  # 1.07 to 1.22; 32 to 128 keys .80 to 1.7
    ("backward", 128, "full"): range(1, FAR),  # 1.01 to 1.27
    ("backward", 128, "causal"): range(6144, FAR),  # 1.04 to 1.26; before from .79 on
    ("backward", 128, "causal, many"): range(1, FAR),  # .97 to 1.75
    ("backward", 128, "window"): range(768, FAR),  # 1.00 to 1.10; before .75 to .98, once 1.7
    ("backward", 64, "full"): range(1, FAR),  # .99 to 2.1
    ("backward", 64, "causal"): range(1, FAR),  # 1.09 to 2.2
    ("backward", 64, "window"): range(512, FAR),  # 1.06 to 1.5; before .68 to 1.5
}  # a deterministic backward was not measured: always plain Triton
# Programs of Gluon's backward, one a multiprocessor at a time, each 128 keys of a key/value head.
# From 3 a multiprocessor on no mask lets the longest walk decide how long all takes.
MANY = 384


def pick(
    direction: str, heads: int, N: int, D: int, is_causal: bool, window_size: int | None
) -> str:
    """The kernel, "triton" or "gluon", for a work that both can do.  heads: B * HKV."""
    mask, keys = "causal" if is_causal else "full", N
    if window_size is not None and window_size < N:
        mask, keys = "window", window_size
    kind = direction, D, mask
    if kind == ("backward", 128, "causal") and heads * -(-N // 128) >= MANY:
        kind = direction, D, "causal, many"
    return "gluon" if keys in GLUON.get(kind, ()) else "triton"


# Operations of a forward's products, of the mean of packed sequences: from here on they are called
# one by one, for Gluon's kernels, which take no packed ones.  Forward + backward, causal, in one
# launch and one by one, H200, 2026-11-28: 4 of 8192 (5.5e11) 5.56 + 17.6, 4.44 + 11.7; 8 of 4096
# (1.4e11) 2.85 + 9.02, 2.65 + 8.56, at D = 128 2.47 + 8.85, 2.04 + 7.78; 8 of 2048 (3.4e10), where
# the host shows, .78 + 2.46, .88 + 4.27.
LONG = 1e11


def are_long(
    lengths: list[int], T: int, longest: int, HQ: int, D: int, is_causal: bool,
    window_size: int | None,
) -> bool:
    """Whether packed sequences, of T rows in all, are called one by one.  lengths: [] if not known.
    """
    least = LONG * len(lengths) / (4 * D * HQ)  # pairs of a query and a key that it sees
    if not lengths or T * min(longest, window_size or longest) < least:  # no need to add them up
        return False
    pairs = sum(n * min(n, window_size or n) for n in lengths)
    return pairs / (1 + (is_causal and window_size is None)) >= least


# ------------------------------------------------------- forms and tiles of Triton's
# By the first number of the compute capability.
HOPPER = (9,)
LARGE = (9, 10)  # Hopper, Blackwell B200: 227 KiB of shared memory feed the matrix units
AMPERE_ON = range(8, 100)  # with Ada, Blackwell RTX: both factors of a product sit in registers
ANY = range(100)  # Turing: Triton multiplies without its matrix units; everything is in registers

# The first row that fits.  fetch: by tensor descriptors or by pointers.  D, bytes: BLOCK_D, and the
# bytes of a row of so many elements, at most.
# Forward: queries and keys a tile, large enough to reuse k and v, small enough not to spill.
# Backward: dq owns `rows` queries and walks the keys by `step`, dkdv the other way round; 4 warps.
# stages: tiles on their way at a time.  regs: maxnreg, registers a thread; None: no limit.
TILES = [
    #                             forward                            backward     stages    regs
    # GPU       fetch  D    bytes (queries, keys, warps, stages, regs), (rows, step, dq, dkdv, dkdv)
    (HOPPER,    "desc", 64, 128,  (64, 64, 4, 3, None),                 (64, 64, 3, 2, 168)),
    (HOPPER,    "desc", 128, 256, (64, 128, 4, 1, 168),                 (64, 64, 3, 2, None)),
    (HOPPER,    "ptr",  16, 64,   (64, 64, 4, 3, 96),                   (64, 64, 3, 3, None)),
    (LARGE,     "ptr", 128, 128,  (64, 64, 4, 3, None),                 (64, 64, 3, 3, None)),
    (LARGE,     "ptr", 128, 256,  (128, 64, 8, 3, None),                (64, 32, 3, 3, None)),
    (LARGE,     "ptr", 128, 512,  (64, 32, 4, 2, None),                 (32, 32, 2, 2, None)),
    (AMPERE_ON, "ptr", 128, 128,  (64, 64, 4, 2, None),                 (64, 32, 2, 2, None)),
    (AMPERE_ON, "ptr", 128, 256,  (64, 32, 4, 3, None),                 (32, 32, 2, 2, None)),
    (AMPERE_ON, "ptr", 128, 512,  (32, 32, 4, 3, None),                 (32, 32, 2, 2, None)),
    (ANY,       "ptr", 128, 512,  (32, 16, 4, 2, None),                 (16, 16, 2, 2, None)),
]
# The first: three programs of dkdv on a multiprocessor, 1.40 -> 1.08.
# The second: the same forward, without stages; the programs hide each other's waits better than
#     stages do (full .971 -> .917, causal .537 -> .513).
# The third: five programs (causal .0684 -> .0636).  The fifth: two groups of warps share k and v.


def block_d(D: int) -> int:
    """BLOCK_D: at least D, and what tl.arange and tl.dot want."""
    return max(16, 1 << (D - 1).bit_length())


def limits(N: int, is_causal: bool, window_size, sink_size: int) -> tuple[str, int, int]:
    """MASK, the least that will do, window_size and sink_size in numbers the kernels take."""
    window_size = N if window_size is None else min(window_size, N)
    mask = "full"
    if is_causal:
        mask = "causal" if window_size == N else "sinks" if sink_size else "window"
    return mask, window_size, min(sink_size, N)


def is_narrow(mask: str, window_size: int) -> bool:
    """A short walk is mostly edges: narrow tiles mask less of them away."""
    return mask != "full" and window_size <= 128


def is_packed(mask: str, window_size: int, group: int) -> bool:
    """Whether a tile is 8 heads that share k and v, and fewer positions.  group: HQ // HKV.

    64 queries and W = 128 see 191 keys, 128 of them each; 16 positions of 8 heads that share k
    and v see 143.  Original shape .0189 -> .0128, GPT-OSS .140 -> .103
    """
    return is_narrow(mask, window_size) and group % 8 == 0


def can_describe(major: int, *tensors) -> bool:
    """Whether the GPU's copy engine can fetch tiles of these (B, H, N, D), and it pays.

    It takes 16-byte steps.  Timed on an H200 only, so only Hopper gets it.
    """
    x = tensors[0]
    if major != 9 or x.shape[3] <= 32 or x.element_size() != 2:
        return False
    return all(
        x.data_ptr() % 16 == 0 and x.stride(3) == 1 and all(s % 8 == 0 < s for s in x.stride()[:3])
        for x in tensors
    )


def tiles(major: int, D: int, size: int, described: bool) -> tuple[tuple, tuple]:
    """The row of the table -> forward, backward.  size: bytes of an element."""
    BLOCK_D, fetch = block_d(D), "desc" if described else "ptr"
    for gpus, by, most_d, most_bytes, forward, backward in TILES:
        if major in gpus and by == fetch and BLOCK_D <= most_d and BLOCK_D * size <= most_bytes:
            return forward, backward
    raise ValueError(f"want D <= 128 in 2 or 4 bytes an element; got {D} in {size}")


def forward_options(
    major: int, D: int, size: int, N: int | None, mask: str, narrow: bool, packed: bool,
    described: bool,
) -> dict:
    """Form, tile shape and launch options of the forward: the table's, as the mask changes them.

    N: None for packed sequences, of any lengths.
    """
    BLOCK_D, full = block_d(D), mask == "full"
    BLOCK_M, BLOCK_N, num_warps, num_stages, maxnreg = tiles(major, D, size, described)[0]
    unstaged = num_stages == 1 and not narrow
    two_tiles = full and described and BLOCK_D == 64
    if narrow:
        BLOCK_N, num_stages = min(32, BLOCK_N), 3
    if packed:
        BLOCK_M = BLOCK_M // 4 if BLOCK_D * size <= 128 else BLOCK_M // 8
    if two_tiles:
        BLOCK_N = 128
    if BLOCK_D == 16 and maxnreg:
        if full:  # four programs, wide tiles: .111 -> .104
            BLOCK_N, maxnreg = 128, 128
        elif mask != "causal":  # four loops need more registers
            maxnreg = None
    ragged = N is None or N % max(2 * BLOCK_M if two_tiles else BLOCK_M, BLOCK_N) != 0
    # Full attention with one tile has no masked loop: ptxas mixes up the registers of q and p.
    q_in_registers = described and not unstaged and (two_tiles or not full)
    if two_tiles and ragged:  # its second loop takes the registers of q and of a stage
        num_stages, q_in_registers = 2, False
    return dict(
        BLOCK_D=BLOCK_D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, HEADS=8 if packed else 1, MASK=mask,
        SHORT=packed, RAGGED=ragged, Q_IN_REGISTERS=q_in_registers, LATE_V=unstaged or full,
        TWO_TILES=two_tiles, num_warps=num_warps, num_stages=num_stages,
    ) | (dict(maxnreg=maxnreg) if maxnreg else {})


def backward_options(
    major: int, D: int, size: int, N: int | None, mask: str, narrow: bool, described: bool
) -> tuple[dict, dict]:
    """As forward_options, for dq and dkdv, which hold two sums or two score tiles at once."""
    BLOCK_D = block_d(D)
    rows, step, dq_stages, dkdv_stages, maxnreg = tiles(major, D, size, described)[1]
    if narrow and described:
        dq_stages, dkdv_stages, maxnreg = 2, 3 if BLOCK_D == 64 else 2, None
    both = dict(BLOCK_D=BLOCK_D, MASK=mask, RAGGED=N is None or N % rows != 0, num_warps=4)
    dq = both | dict(
        BLOCK_M=rows, BLOCK_N=step, SHORT=narrow, num_stages=dq_stages,
        Q_IN_REGISTERS=described and BLOCK_D == 128,
    )
    dkdv = both | dict(
        BLOCK_M=step, BLOCK_N=rows, PRODUCTS_FIRST=not maxnreg, num_stages=dkdv_stages
    )
    return dq, dkdv | (dict(maxnreg=maxnreg) if maxnreg else {})
