"""Choose the kernel for a workload, and tiles, warps, stages and registers for kernels.py.

The choices were timed on an H200 in bfloat16.  Tiles for other GPUs were chosen so that they fit,
and were only compiled.  Figures in the comments: H200, bfloat16, Triton 3.6, November 2026, ms.
"""

# ------------------------------------------------------------ Triton or Gluon
# Where Gluon is chosen, of the workloads that both can do on Hopper: by direction, D, mask and the
# most keys that a query sees, N or the window.  Everywhere else it is plain Triton.  Comments:
# Triton's time over Gluon's, whole calls, H100 and H200, 2026-11-26 and 27, Triton 3.6; above 1.3
# most workloads are so small that the host's overhead shows.
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
}  # a deterministic backward was not measured: it is always plain Triton
# In Gluon's backward a program owns 128 keys of a key/value head, and a multiprocessor runs one
# program at a time.  With this many, about 3 per multiprocessor, the longest loop no longer decides
# how long the whole takes.
MANY = 384


def pick(
    direction: str, heads: int, N: int, D: int, is_causal: bool, window_size: int | None
) -> str:
    """Returns the kernel, "triton" or "gluon", for a workload that both can do.

    Args:
        direction: "forward" or "backward".
        heads: B * HKV.
    """
    mask, keys = "causal" if is_causal else "full", N
    if window_size is not None and window_size < N:
        mask, keys = "window", window_size
    kind = direction, D, mask
    if kind == ("backward", 128, "causal") and heads * -(-N // 128) >= MANY:
        kind = direction, D, "causal, many"
    return "gluon" if keys in GLUON.get(kind, ()) else "triton"


# If the forward's products take at least this many FLOP per packed sequence on average, sequences
# are called one by one, because Gluon's kernels take no packed ones.  Forward + backward, causal,
# in one launch and one by one, H200, 2026-11-28: 4 of 8192 (5.5e11) 5.56 + 17.6, 4.44 + 11.7; 8 of
# 4096 (1.4e11) 2.85 + 9.02, 2.65 + 8.56, at D = 128 2.47 + 8.85, 2.04 + 7.78; 8 of 2048 (3.4e10),
# where the host's overhead shows, .78 + 2.46, .88 + 4.27.
LONG = 1e11


def are_long(
    lengths: list[int], T: int, longest: int, HQ: int, D: int, is_causal: bool,
    window_size: int | None,
) -> bool:
    """Whether packed sequences are called one by one.

    Args:
        lengths: of all sequences; [] if they are not known.
        T: rows of all sequences together.
        longest: the longest length.
    """
    least = LONG * len(lengths) / (4 * D * HQ)  # pairs of a query and a key that it sees
    if not lengths or T * min(longest, window_size or longest) < least:  # no need to add them up
        return False
    pairs = sum(n * min(n, window_size or n) for n in lengths)
    return pairs / (1 + (is_causal and window_size is None)) >= least


# ------------------------------------------------------- forms and tiles of plain Triton
# GPUs by the first number of their compute capability.
HOPPER = (9,)
LARGE = (9, 10)  # Hopper, Blackwell B200: 227 KiB of shared memory feed the matrix units
AMPERE_ON = range(8, 100)  # and Ada, Blackwell RTX: both factors of a product are in registers
ANY = range(100)  # Turing: Triton multiplies without its matrix units; everything is in registers

# The first row that fits counts.  fetch: by tensor descriptors or by pointers.  D, bytes: the most
# that BLOCK_D, and a row of BLOCK_D elements, may be.
# Forward: queries and keys per tile, large enough to reuse k and v, small enough not to spill.
# Backward: dq owns `rows` queries and loops over keys in tiles of `step`; dkdv owns `rows` keys and
# loops over queries; 4 warps.  stages: the pipeline's depth.  regs: maxnreg, registers per thread;
# None: no limit.
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
# Row 1: three programs of dkdv per multiprocessor, 1.40 -> 1.08.
# Row 2: three programs of the forward, without a pipeline: they hide each other's waits better
#     (full .971 -> .917, causal .537 -> .513).
# Row 3: five programs of the forward (causal .0684 -> .0636).  Row 5: two groups of warps share k
#     and v.


def block_d(D: int) -> int:
    """Returns BLOCK_D, at least D: a power of two for tl.arange, 16 or more for tl.dot."""
    return max(16, 1 << (D - 1).bit_length())


def limits(N: int, is_causal: bool, window_size, sink_size: int) -> tuple[str, int, int]:
    """Returns the simplest MASK that is right, and window_size and sink_size, both at most N."""
    window_size = N if window_size is None else min(window_size, N)
    mask = "full"
    if is_causal:
        mask = "causal" if window_size == N else "sinks" if sink_size else "window"
    return mask, window_size, min(sink_size, N)


def is_narrow(mask: str, window_size: int) -> bool:
    """Whether narrow key tiles pay: a short loop is mostly edges, and they mask less of them."""
    return mask != "full" and window_size <= 128


def is_packed(mask: str, window_size: int, group: int) -> bool:
    """Whether a query tile holds 8 heads that share k and v, and fewer positions.

    With W = 128 a tile of 64 positions covers 191 keys, of which each query sees 128; 16 positions
    cover 143.  Original shape .0189 -> .0128, GPT-OSS .140 -> .103
    group: HQ // HKV.
    """
    return is_narrow(mask, window_size) and group % 8 == 0


def can_describe(major: int, *tensors) -> bool:
    """Whether the GPU's copy engine can fetch tiles of these tensors (B, H, N, D), and it pays.

    Its addresses and strides are multiples of 16 bytes.  Only Hopper uses it, because it was only
    timed on an H200.
    """
    x = tensors[0]
    if major != 9 or x.shape[3] <= 32 or x.element_size() != 2:
        return False
    return all(
        x.data_ptr() % 16 == 0 and x.stride(3) == 1 and all(s % 8 == 0 < s for s in x.stride()[:3])
        for x in tensors
    )


def tiles(major: int, D: int, size: int, described: bool) -> tuple[tuple, tuple]:
    """Returns forward and backward of the first row of TILES that fits.

    Args:
        major: first number of the compute capability.
        size: bytes per element.
        described: whether tensor descriptors fetch the tiles.

    Raises:
        ValueError: no row fits.
    """
    BLOCK_D, fetch = block_d(D), "desc" if described else "ptr"
    for gpus, by, most_d, most_bytes, forward, backward in TILES:
        if major in gpus and by == fetch and BLOCK_D <= most_d and BLOCK_D * size <= most_bytes:
            return forward, backward
    raise ValueError(f"want D <= 128 in 2 or 4 bytes per element; got {D} in {size}")


def forward_options(
    major: int, D: int, size: int, N: int | None, mask: str, narrow: bool, packed: bool,
    described: bool,
) -> dict:
    """Returns constexprs and launch options of the forward: TILES, adapted to the mask.

    N: None for packed sequences, whose lengths vary.
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
    # Not for full attention with one query tile: without a masked loop, ptxas assigns q and p the
    # same registers.
    q_in_registers = described and not unstaged and (two_tiles or not full)
    if two_tiles and ragged:  # its second loop needs the registers of q and of a stage
        num_stages, q_in_registers = 2, False
    return dict(
        BLOCK_D=BLOCK_D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, HEADS=8 if packed else 1, MASK=mask,
        SHORT=packed, RAGGED=ragged, Q_IN_REGISTERS=q_in_registers, LATE_V=unstaged or full,
        TWO_TILES=two_tiles, num_warps=num_warps, num_stages=num_stages,
    ) | (dict(maxnreg=maxnreg) if maxnreg else {})


def backward_options(
    major: int, D: int, size: int, N: int | None, mask: str, narrow: bool, described: bool
) -> tuple[dict, dict]:
    """Returns the same for the two kernels of the backward: options of dq, options of dkdv."""
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
