"""The cases of each stage: one row per case, in the order in which they are run.

A row gives fields of Case, and may add gpu_only, or gpu=dict(...) with the fields that differ on a
GPU.  Other fields have the value at the head of the list, or Case's own: B=1, D=16, no window.

standard: on a GPU the original assignment's shapes, in the interpreter shorter ones.  In both,
every length and window is a multiple of 128, so that a file earns the same points.
robust: whatever a caller of attention may ask.  Each of these cases catches a mistake: cases.py
says which one a family or a layout catches; refill catches an answer kept from the first call;
repeats, what differs or is kept from call to call; growth, memory for all scores; a ragged N, tails
of tiles.
course: what only this course promises (Case.kinds).  Files with its step markers promise all of it,
others what they answer: judge/claims.py.
beyond: more than the assignment asks; run last, and no part of the outcome.

A GPU compiles a kernel anew for every D and dtype, and for heads and lengths that are 1, a multiple
of 16, or neither; so the cases share these values where nothing is lost by it.
"""

from collections.abc import Callable

import torch

from grader.course.cases import LARGEST, Case

F16, F32 = torch.float16, torch.float32
HALF = "half"  # bfloat16 if the GPU has it, else float16
QKV = ("q", "k", "v")
PAIRS = (("q", "k"), ("q", "v"), ("k", "v"))
SOME = (("q",), ("k",), ("v",), *PAIRS)


def standard(**fields) -> dict:
    return {"group": "standard", "refill": True} | fields


def robust(**fields) -> dict:
    return {"group": "robust"} | fields


def beyond(asks: str, **fields) -> dict:
    return {"group": "beyond", "asks": asks} | fields


def course(asks: str, **fields) -> dict:
    return robust(asks=asks, course=True) | fields


def far(*names: str, **fields) -> list[dict]:
    """One case per tensor, with that tensor's batch entries far apart."""
    return [beyond(f"offsets past 2^31 in {name}", gpu_only=True, layout="far", apart=name, B=3,
                   N=60) | fields for name in names]


def rows(every: dict, asked: list[dict]) -> list[dict]:
    """Every row with the fields of all, which it may replace."""
    return [every | row for row in asked]


STAGE_1 = rows(dict(dtype=HALF, is_causal=False), [
    standard(N=512, HQ=8, HKV=8),
    standard(N=1024, HQ=8, HKV=8, is_causal=True),
    standard(N=768, HQ=16, HKV=16, is_causal=True, gpu=dict(N=2048)),
    standard(gpu_only=True, N=4096, HQ=16, HKV=16, is_causal=True),
    robust(N=1, HQ=2, HKV=2, dtype=F32),
    robust(N=1, NK=300, HQ=2, HKV=2, dtype=F16),
    robust(N=65, B=2, HQ=3, HKV=3, dtype=F16, layout="guarded"),
    robust(N=129, HQ=2, HKV=2, D=64, is_causal=True, dtype=F32, layout="guarded"),
    robust(N=70, NK=257, HQ=2, HKV=2),  # more keys than queries, then fewer
    robust(N=257, NK=63, HQ=2, HKV=2, D=64, dtype=F32),
    robust(N=200, HQ=2, HKV=2, D=32, is_causal=True, layout="transposed"),
    robust(N=127, B=2, HQ=2, HKV=2, D=128, is_causal=True, dtype=F16, layout="views"),
    robust(N=129, HQ=2, HKV=2, is_causal=True, dtype=F32, family="deep"),
    robust(N=193, HQ=2, HKV=2, family="falling"),
    robust(N=190, HQ=2, HKV=2, is_causal=True, family="steep"),
    # Long enough for sums in 16 bits to lose digits.
    robust(N=64, NK=2000, HQ=1, HKV=1, family="cancel"),
    robust(N=64, NK=2000, HQ=1, HKV=1, family="heavy"),
    robust(N=64, NK=2000, HQ=1, HKV=1, dtype=torch.bfloat16),
    robust(N=2200, HQ=1, HKV=1, is_causal=True, dtype=F16),  # float16 counts only to 2048
    robust(N=257, HQ=2, HKV=2, D=64, is_causal=True, dtype=F16, family="hot"),
    robust(N=150, HQ=2, HKV=2, is_causal=True, family="needles"),
    robust(N=256, HQ=6, HKV=6, D=32, is_causal=True, dtype=F16, family="real"),
    robust(N=130, HQ=2, HKV=2, dtype=F32, refill=True),
    robust(N=130, HQ=2, HKV=2, is_causal=True, repeats=3),
    # Fewer queries than keys, so that what grows with the keys is told from what the queries do.
    robust(N=100, NK=1000, HQ=1, HKV=1, dtype=F16, growth=True),
    course("gradients", N=300, B=2, HQ=2, HKV=2, D=32, is_causal=True, dtype=F32, grads=QKV,
           dout="transposed", repeats=2),
    course("gradients", N=70, NK=200, HQ=2, HKV=2, dtype=F16, family="rising", grads=QKV,
           dout="expanded", repeats=2),
    course("gradients", N=100, HQ=4, HKV=4, D=64, is_causal=True, dtype=F16, family="alike",
           grads=QKV, dout="large"),
    course("gradients", N=70, HQ=2, HKV=2, dtype=torch.bfloat16, family="hot", grads=QKV),
    course("gradients", N=1, NK=150, HQ=2, HKV=2, dtype=F16, grads=QKV),
    course("gradients", N=70, NK=1, HQ=2, HKV=2, dtype=F16, grads=QKV),
    course("gradients, lse unused", N=70, HQ=2, HKV=2, is_causal=True, dtype=F32, grads=QKV,
           unused="lse"),
    course("gradients, o unused", N=70, HQ=2, HKV=2, is_causal=True, dtype=F32,
           grads=("q", "k"), unused="o"),
    course("gradients", N=70, HQ=2, HKV=2, dtype=torch.bfloat16, family="creeping", grads=QKV,
           dout="loud"),  # dS overflows in float16
    *(course("gradients of " + " and ".join(names), N=70, HQ=2, HKV=2, dtype=F16, grads=names)
      for names in SOME),
    course("omitted arguments", N=70, HQ=2, HKV=2, dtype=F16, bare=True),
    course("k shared by heads", N=70, HQ=2, HKV=2, dtype=F16, layout="shared", grads=QKV),
    course("D = 40", N=129, HQ=2, HKV=2, D=40, is_causal=True, layout="guarded"),
    course("a last axis whose stride is not 1", N=70, HQ=2, HKV=2, D=32, layout="last"),
    course("permuted strides", N=70, B=2, HQ=3, HKV=3, is_causal=True, layout="mixed"),
    course("float32 at D = 128", N=70, HQ=1, HKV=1, D=128, is_causal=True, dtype=F32),
])

STAGE_2 = rows(dict(dtype=HALF), [
    standard(M=32, N=256, gpu=dict(M=512, N=1024)),
    standard(M=64, N=512, gpu=dict(M=1024, N=4096)),
    standard(M=96, N=1024, gpu=dict(M=2048, N=8192)),
    standard(M=128, N=1024, gpu=dict(M=4096, N=8192)),
    # One row, one column, a tail of each.
    robust(M=1, N=300, dtype=F16, layout="guarded"),
    robust(M=17, N=1, layout="guarded"),
    robust(M=33, N=127, layout="guarded", gpu=dict(M=321)),
    robust(M=15, N=129, dtype=F32, layout="guarded", gpu=dict(N=1281)),
    robust(M=31, N=513, family="hot", gpu=dict(N=5121)),
    robust(M=23, N=257, dtype=F16, family="needles", gpu=dict(N=2561)),
    robust(M=16, N=20000, family="cancel"),
    robust(M=40, N=1024, dtype=F16, family="faint"),
    robust(M=20, N=150, refill=True),
    robust(M=40, N=140, dtype=F32, repeats=2, gpu=dict(M=400, repeats=10)),
    course("gradients", M=70, N=300, dtype=F16, layout="guarded", grads=("x", "w"), dout="last"),
    course("gradients", M=13, N=257, dtype=F32, grads=("x", "w"), dout="expanded", repeats=2),
    course("gradients", M=150, N=40, dtype=F16, grads=("x",)),  # the gradient of one input alone
    # The only case that shows products and sums in float16.
    course("gradients", M=2500, N=20, dtype=F16, family="cancel", grads=("w",), dout="faint"),
    course("rows with gaps", M=18, N=170, dtype=F16, layout="gapped"),
    course("one row for all", M=18, N=170, dtype=F16, layout="shared", grads=("x", "w")),
    course("a transposed x", M=64, N=63, dtype=F16, layout="mixed"),
    course("a last axis whose stride is not 1", M=19, N=200, dtype=F32, layout="last"),
    *far("x", M=3, N=300),
])

def one_head_each(is_causal: bool, *own: dict) -> list[dict]:
    """Stages 3 and 4: as many heads of k and v as of q.  own: robust rows of one of them."""
    return rows(dict(dtype=HALF, is_causal=is_causal), [
        standard(N=128, HQ=2, HKV=2, gpu=dict(N=512, HQ=8, HKV=8)),
        standard(N=128, HQ=1, HKV=1, gpu=dict(N=1024, HQ=8, HKV=8)),
        standard(N=256, HQ=1, HKV=1, gpu=dict(N=2048, HQ=16, HKV=16)),
        standard(N=256, HQ=2, HKV=2, gpu=dict(N=4096, HQ=16, HKV=16)),
        robust(N=65, B=2, HQ=2, HKV=2, layout="guarded"),
        robust(N=1, HQ=1, HKV=1, dtype=F32, layout="guarded"),
        robust(N=63, HQ=2, HKV=2, D=64, layout="guarded", gpu=dict(N=255)),  # ragged on a GPU, too
        robust(N=127, HQ=2, HKV=2, D=128, dtype=F16, layout="transposed"),
        robust(N=194, HQ=2, HKV=2, dtype=F32, layout="guarded", gpu=dict(N=773)),
        robust(N=161, HQ=1, HKV=1, family="rising", gpu=dict(N=644, HQ=2, HKV=2)),
        robust(N=100, HQ=2, HKV=2, D=32, dtype=F32, family="hot", layout="views", gpu=dict(N=400)),
        robust(N=330, HQ=1, HKV=1, family="needles", gpu=dict(N=520, HQ=2, HKV=2)),
        robust(N=100, HQ=2, HKV=2, D=32, dtype=F16, family="real", gpu=dict(N=256)),
        robust(N=193, HQ=1, HKV=1, dtype=F32, family="shift-", layout="guarded",
               gpu=dict(N=772, HQ=2, HKV=2)),
        robust(N=192, HQ=2, HKV=2, D=64, dtype=F32, family="needles", layout="transposed",
               gpu=dict(N=576)),
        robust(N=64, HQ=1, HKV=1, refill=True, gpu=dict(N=260, HQ=2, HKV=2)),
        robust(N=130, HQ=2, HKV=2, D=128, dtype=F16, repeats=2, gpu=dict(N=330, repeats=10)),
        robust(N=40, B=3, HQ=6, HKV=6, layout="views"),  # 18 heads in all, no power of two
        robust(N=193, HQ=1, HKV=1, dtype=F32, family="falling", gpu=dict(HQ=2, HKV=2)),
        robust(N=129, HQ=1, HKV=1, dtype=F16, family="deep", gpu=dict(HQ=2, HKV=2)),
        *own,
        robust(N=200, HQ=2, HKV=2, D=64, layout="guarded"),  # several tiles of 64 and of 128
        # Long enough for sums in 16 bits to lose digits.
        robust(N=640, HQ=1, HKV=1, family="heavy", gpu=dict(N=4100, HQ=2, HKV=2)),
        robust(N=128, HQ=1, HKV=1, dtype=F16, family="creeping", growth=True, gpu=dict(N=8192)),
        # The given backward computes these from the saved lse; rising shows an lse in 16 bits.
        course("gradients", N=70, B=2, HQ=2, HKV=2, family="rising", grads=QKV, repeats=2),
        *(course("gradients", N=20, HQ=2, HKV=2, grads=(name,)) for name in QKV[1:]),
        course("omitted arguments", N=70, HQ=2, HKV=2, bare=True),
        course("k shared by heads", N=70, HQ=2, HKV=2, layout="shared"),
        course("D = 80", N=128, HQ=1, HKV=1, D=80, dtype=F16, layout="guarded"),
        course("D = 8", N=40, HQ=1, HKV=1, D=8, dtype=F32),
        course("a last axis whose stride is not 1", N=70, HQ=2, HKV=2, D=32, layout="last"),
        course("permuted strides", N=70, B=2, HQ=3, HKV=3, layout="mixed"),
        course("float32 at D = 128", N=100, HQ=1, HKV=1, D=128, dtype=F32),
        *far("q", "k", "v"),
    ])


# Windows end beside a border of tiles of 64 keys (66, 130; 63, 127) and of 128 (130; 255): the
# first key of a window, or the key before the last row's first one, is then the last of a tile.
def shared_heads(sees: Callable[[int, int], dict], first: list[dict], own: list[dict] = (),
                 promised: list[dict] = ()) -> list[dict]:
    """Stages 5, 6 and 7: query heads share those of k and v.

    sees: window, sinks -> the fields of these that the stage has.  first: its own standard rows;
    own, promised: its own robust ones, and those of the course.
    """
    return rows(dict(dtype=HALF, is_causal=True), [
        *first,
        standard(N=256, HQ=4, HKV=2, **sees(128, 8), gpu=dict(N=2048, HQ=16)),
        standard(N=256, HQ=2, HKV=1, **sees(128, 8), gpu=dict(N=4096, HQ=16, HKV=2)),
        robust(N=65, B=2, HQ=4, HKV=2, **sees(17, 4), layout="guarded"),
        robust(N=1, HQ=3, HKV=1, **sees(100, 0), dtype=F32, layout="guarded"),
        robust(N=63, HQ=6, HKV=2, D=64, **sees(1, 1), layout="guarded", gpu=dict(N=255)),
        robust(N=127, HQ=2, HKV=2, D=128, **sees(1000, 70), dtype=F16, layout="transposed"),
        robust(N=194, HQ=4, HKV=2, **sees(66, 1), dtype=F32, layout="guarded", gpu=dict(N=773)),
        *own,
        robust(N=65, HQ=6, HKV=2, **sees(64, 1000), dtype=F16, family="shift-"),
        robust(N=161, HQ=2, HKV=2, **sees(40, 0), family="rising", gpu=dict(N=644)),
        robust(N=100, HQ=4, HKV=2, D=32, **sees(50, 65), dtype=F32, family="hot", layout="views",
               gpu=dict(N=400)),
        robust(N=130, HQ=3, HKV=1, **sees(63, 70), family="needles", gpu=dict(N=520)),
        robust(N=100, HQ=6, HKV=2, D=32, **sees(17, 9), dtype=F16, family="real", gpu=dict(N=256)),
        robust(N=193, HQ=2, HKV=2, **sees(127, 1), dtype=F32, family="shift-", layout="guarded",
               gpu=dict(N=772)),
        robust(N=192, HQ=4, HKV=2, D=64, **sees(130, 4), dtype=F32, family="needles",
               layout="transposed", gpu=dict(N=576)),
        robust(N=64, HQ=3, HKV=1, **sees(24, 0), refill=True,
               gpu=dict(N=260, HQ=4, HKV=2, **sees(24, 2))),
        robust(N=130, HQ=3, HKV=1, D=128, **sees(9, 1), dtype=F16, repeats=2,
               gpu=dict(N=330, HQ=2, HKV=2, repeats=10, **sees(9, 3))),
        robust(N=40, B=3, HQ=6, HKV=3, **sees(20, 2), layout="views"),  # 18 heads, as before
        robust(N=7, HQ=82, HKV=2, **sees(3, 2)),  # in float32 41 * (1 / 41) is below 1
        robust(N=193, HQ=1, HKV=1, **sees(60, 3), dtype=F32, family="falling",
               gpu=dict(HQ=2, HKV=2, **sees(60, 1))),
        robust(N=129, HQ=1, HKV=1, **sees(33, 5), dtype=F16, family="deep",
               gpu=dict(HQ=4, HKV=2)),
        # Over all keys: long enough for sums in 16 bits to lose digits.
        robust(N=640, HQ=1, HKV=1, **sees(5000, 0), family="heavy",
               gpu=dict(N=4100, HQ=4, HKV=2, **sees(5000, 2))),
        robust(N=128, HQ=1, HKV=1, **sees(32, 8), dtype=F16, family="creeping", growth=True,
               gpu=dict(N=8192, **sees(5000, 0))),
        course("gradients", N=70, B=2, HQ=4, HKV=2, **sees(40, 4), family="rising",
               grads=QKV, repeats=2),
        *(course("gradients", N=20, HQ=4, HKV=2, **sees(9, 4), grads=(name,)) for name in QKV[1:]),
        course("omitted arguments", N=160, HQ=2, HKV=1, **sees(128, 4), bare=True,
               gpu=dict(N=512, HQ=16, HKV=2)),
        *promised,
        course("k shared by heads", N=70, HQ=4, HKV=2, **sees(20, 4), layout="shared"),
        course("D = 80", N=128, HQ=2, HKV=1, D=80, **sees(33, 4), dtype=F16, layout="guarded"),
        course("D = 8", N=40, HQ=2, HKV=1, D=8, **sees(9, 4), dtype=F32),
        course("a last axis whose stride is not 1", N=70, HQ=4, HKV=2, D=32, **sees(20, 4),
               layout="last"),
        course("permuted strides", N=70, B=2, HQ=6, HKV=3, **sees(20, 4), layout="mixed"),
        course("float32 at D = 128", N=100, HQ=2, HKV=1, D=128, **sees(70, 4), dtype=F32),
        *far("q", "k", "v", **sees(128, 8)),
    ])


def first_two(N: int, **fields) -> list[dict]:
    """The first standard rows of stages 5, 6 and 7."""
    return [standard(N=N, HQ=4, HKV=1, gpu=dict(N=512, HQ=8, HKV=2), **fields),
            standard(N=N + 128, HQ=4, HKV=1, gpu=dict(N=1024, HQ=8, HKV=2), **fields)]


STAGE_3 = one_head_each(
    False,
    robust(N=200, HQ=1, HKV=1, family="cancel", gpu=dict(HQ=2, HKV=2)),
    # In bfloat16, the usual half, rising overflows nothing.
    robust(gpu_only=True, N=193, HQ=2, HKV=2, dtype=F16, family="steep"))
STAGE_4 = one_head_each(
    True, robust(N=193, HQ=1, HKV=1, dtype=F32, family="steep", gpu=dict(HQ=2, HKV=2)))

STAGE_5 = shared_heads(lambda window, sinks: {}, first_two(128))
STAGE_6 = shared_heads(
    lambda window, sinks: {"window": window}, first_two(256, window=128), [
        robust(N=400, HQ=1, HKV=1, window=130, dtype=F16, gpu=dict(N=404, HQ=4, HKV=2)),
        robust(N=400, HQ=1, HKV=1, window=255, dtype=F32,
               gpu=dict(N=300, HQ=4, HKV=2, dtype=HALF)),
        robust(N=2200, HQ=1, HKV=1, window=9, gpu=dict(HQ=4, HKV=2)),  # float16 counts to 2048
    ])
STAGE_7 = shared_heads(
    lambda window, sinks: {"window": window, "sinks": sinks},
    first_two(256, D=32, window=128, sinks=8), [
        robust(N=400, HQ=1, HKV=1, window=130, sinks=4, dtype=F16, gpu=dict(N=404, HQ=4, HKV=2)),
        robust(N=400, HQ=1, HKV=1, window=255, sinks=4, dtype=F32,
               gpu=dict(N=300, HQ=4, HKV=2, sinks=2, dtype=HALF)),
        robust(N=420, HQ=1, HKV=1, window=20, sinks=330, gpu=dict(HQ=4, HKV=2)),
        robust(N=2200, HQ=1, HKV=1, window=9, sinks=2, gpu=dict(HQ=4, HKV=2)),
        # N = 101 on a GPU: then the scores fall in steps of 2, which its matrix units represent
        # exactly.  A kernel must not be judged by how they round 200 * 98 / 99 to 10 bits.
        robust(N=100, HQ=1, HKV=1, window=20, sinks=0, dtype=F32, family="falling",
               gpu=dict(N=101, HQ=2, HKV=2, sinks=1)),
    ], [
        course("gradients", N=200, HQ=2, HKV=1, window=100, sinks=100, grads=QKV),
        course("any number of sinks", N=150, HQ=1, HKV=1, window=9, sinks=LARGEST,
               gpu=dict(HQ=4, HKV=2)),
    ])

STAGE_8 = rows(dict(dtype=HALF, is_causal=True, grads=QKV), [
    standard(N=128, HQ=2, HKV=2, gpu=dict(N=4096, HQ=16, HKV=16)),
    standard(N=128, HQ=2, HKV=1, gpu=dict(N=4096, HQ=16, HKV=8)),
    standard(N=128, HQ=4, HKV=1, gpu=dict(N=4096, HQ=16)),
    robust(N=1, HQ=2, HKV=1, dtype=F32, layout="guarded"),
    robust(N=65, B=2, HQ=3, HKV=3, layout="guarded"),
    robust(N=63, HQ=2, HKV=1, D=64, dout="expanded", gpu=dict(N=252)),
    robust(N=127, HQ=2, HKV=2, D=64, dtype=F32, dout="transposed", gpu=dict(N=508)),
    robust(N=65, HQ=2, HKV=1, scale=0.5, family="shift+"),
    robust(N=40, HQ=2, HKV=1, scale=1.0, grads=()),
    robust(N=193, HQ=1, HKV=1, dtype=F32, family="falling", grads=("q",), gpu=dict(HQ=2)),
    robust(N=100, HQ=2, HKV=2, dtype=F16, family="hot", gpu=dict(N=404, HKV=1)),
    robust(N=100, HQ=2, HKV=2, D=32, dtype=F32, family="needles", layout="transposed"),
    robust(N=90, HQ=3, HKV=1, D=32, dtype=F16, family="real", gpu=dict(N=250)),
    robust(N=130, HQ=2, HKV=1, D=128, dtype=F16),
    robust(N=40, B=3, HQ=6, HKV=3, layout="views", dout="transposed"),
    robust(N=100, HQ=4, HKV=2, D=64, dtype=F16, family="alike", dout="loud"),
    robust(N=130, HQ=2, HKV=1, dtype=F16, family="steep"),
    robust(N=65, HQ=2, HKV=1, dtype=F16, family="deep"),
    robust(N=300, HQ=1, HKV=1, dtype=F16, gpu=dict(HQ=2)),
    # The gradient of one input alone.
    robust(N=40, HQ=2, HKV=1, grads=("k",)),
    robust(N=41, HQ=2, HKV=1, dtype=F16, family="creeping", grads=("v",)),
    *(robust(N=40, HQ=2, HKV=1, grads=names) for names in PAIRS),
    robust(N=7, HQ=36, HKV=2, D=64, dtype=F32),  # too many heads to be summed in 16 bits
    robust(N=64, HQ=2, HKV=1, refill=True, gpu=dict(N=70)),
    robust(N=65, HQ=2, HKV=1, repeats=2, gpu=dict(N=260, D=32, dtype=F16, repeats=5)),
    robust(N=128, HQ=1, HKV=1, growth=True, gpu=dict(N=8190, HQ=2)),
    # The original assignment's wrapper has only the causal mask.
    course("no causal mask", N=170, HQ=2, HKV=1, D=32, is_causal=False, dtype=F16,
           layout="transposed", repeats=2),
    # Scores past N - 1 are 0, which become weights of 2^185 unless they are masked.
    course("no causal mask", N=40, HQ=2, HKV=1, D=32, is_causal=False, dtype=F16, family="shift-"),
    course("omitted arguments", N=70, HQ=2, HKV=1, bare=True),
    course("k shared by heads", N=70, HQ=2, HKV=2, layout="shared"),
    course("D = 80", N=100, HQ=2, HKV=2, D=80, is_causal=False, dtype=F16, layout="guarded"),
    course("D = 8", N=40, HQ=2, HKV=1, D=8, dtype=F32),
    course("a last axis whose stride is not 1", N=70, HQ=2, HKV=2, D=32, layout="last",
           dout="last"),
    course("permuted strides", N=37, B=2, HQ=6, HKV=3, layout="mixed", dout="transposed"),
    course("float32 at D = 128", N=100, HQ=2, HKV=1, D=128, dtype=F32),
    beyond("gradients of 2^-24", N=100, HQ=1, HKV=1, D=32, dtype=F32, dout="small",
           gpu=dict(HQ=2, HKV=2)),
    *far("q", "k", "v", "do", HQ=2),
])

LOGITS = dict(sink_logits=True, grads=(*QKV, "sink_logits"))

STAGE_9 = rows(dict(dtype=HALF, is_causal=True, grads=QKV), [
    standard(N=128, HQ=2, HKV=2, window=128, sinks=4, gpu=dict(N=4096, HQ=16, HKV=16, window=256)),
    standard(N=256, HQ=2, HKV=1, window=128, sinks=4, gpu=dict(N=4096, HQ=16, HKV=8, window=256)),
    standard(N=128, HQ=4, HKV=1, window=128, sinks=4, gpu=dict(N=4096, HQ=16, window=256)),
    robust(N=1, HQ=2, HKV=1, window=1, sinks=0, dtype=F32, layout="guarded"),
    robust(N=65, B=2, HQ=3, HKV=3, window=17, sinks=1, layout="guarded", gpu=dict(sinks=2)),
    robust(N=90, HQ=8, HKV=1, window=20, sinks=3, gpu=dict(N=360)),
    robust(N=127, HQ=2, HKV=2, D=64, window=33, sinks=4, dtype=F32, dout="transposed",
           gpu=dict(N=508)),
    robust(N=63, HQ=2, HKV=1, D=64, window=20, sinks=0, dout="expanded", gpu=dict(N=252)),
    robust(N=193, HQ=1, HKV=1, window=127, sinks=1, dtype=F16, gpu=dict(HQ=2, sinks=2)),
    robust(N=130, HQ=1, HKV=1, window=100, sinks=1, family="rising", grads=("q",),
           gpu=dict(N=520, HQ=2, sinks=2)),
    robust(N=130, HQ=2, HKV=2, D=32, window=66, sinks=3, dtype=F32, family="needles",
           layout="transposed", gpu=dict(N=520)),
    robust(N=90, HQ=3, HKV=1, D=32, window=40, sinks=4, dtype=F16, family="real", gpu=dict(N=256)),
    robust(N=50, HQ=4, HKV=1, D=128, window=9, sinks=1000),
    robust(N=40, B=3, HQ=6, HKV=3, window=20, sinks=2, layout="views", dout="transposed"),
    robust(N=100, HQ=4, HKV=2, D=64, window=1000, sinks=0, dtype=F16, family="alike", dout="loud"),
    robust(N=190, HQ=1, HKV=1, window=150, sinks=5, dtype=F16, gpu=dict(HQ=2)),
    robust(N=200, HQ=1, HKV=1, window=66, sinks=0),
    robust(N=400, HQ=1, HKV=1, window=17, sinks=330, gpu=dict(N=404, HQ=2)),
    robust(N=300, HQ=1, HKV=1, window=130, sinks=0),
    robust(N=400, HQ=1, HKV=1, window=255, sinks=4, dtype=F32, gpu=dict(N=404, HQ=2, dtype=HALF)),
    # The first query that loses a key is the last one of a tile of 64, and of 32.
    robust(N=160, HQ=1, HKV=1, D=64, window=127, sinks=0, dtype=F16, family="easing",
           gpu=dict(N=164, HQ=4, HKV=2)),
    robust(N=193, HQ=1, HKV=1, window=60, sinks=3, dtype=F32, family="falling", grads=("q",)),
    robust(N=65, HQ=2, HKV=1, window=33, sinks=5, dtype=F16, family="deep"),
    # The gradient of one input alone.
    robust(N=40, HQ=2, HKV=1, window=9, sinks=4, grads=("k",)),
    robust(N=41, HQ=2, HKV=1, window=9, sinks=4, dtype=F16, family="creeping", grads=("v",)),
    *(robust(N=40, HQ=2, HKV=1, window=9, sinks=4, grads=names) for names in PAIRS),
    robust(N=7, HQ=36, HKV=2, D=64, window=3, sinks=2, dtype=F32),
    robust(N=2200, HQ=1, HKV=1, window=9, sinks=2, gpu=dict(HQ=2)),  # float16 counts to 2048
    robust(N=128, HQ=2, HKV=1, window=24, sinks=0, refill=True, gpu=dict(N=130, sinks=2)),
    robust(N=65, HQ=2, HKV=1, window=30, sinks=4, repeats=2, gpu=dict(N=260, repeats=5)),
    # No window in effect: the weights inside of one would take memory that is linear in N, too.
    robust(N=128, HQ=1, HKV=1, window=5000, sinks=4, growth=True, gpu=dict(N=8190, sinks=0)),
    robust(N=65, HQ=2, HKV=1, window=1, sinks=70, scale=0.5, family="shift+"),
    robust(N=40, HQ=2, HKV=1, window=9, sinks=4, scale=1.0, grads=()),
    # Arguments that the assignment's signature does not have.
    course("sink logits", N=70, HQ=6, HKV=2, D=64, window=None, sinks=0, dtype=F16,
           layout="transposed", **LOGITS),
    course("sink logits", N=65, HQ=2, HKV=1, window=33, sinks=0, scale=0.5, **LOGITS,
           gpu=dict(sinks=2)),
    course("sink logits", N=100, HQ=2, HKV=2, window=17, sinks=4, dtype=F16, family="hot", **LOGITS,
           gpu=dict(N=400)),
    course("sink logits", N=40, HQ=2, HKV=1, window=9, sinks=4, grads=("sink_logits",),
           sink_logits=True, repeats=2),
    course("sink logits", N=40, B=3, HQ=4, HKV=4, window=20, sinks=2, family="alike",
           layout="views", dout="loud", **LOGITS),
    course("sink logits", N=65, HQ=4, HKV=1, is_causal=False, window=None, sinks=0, dtype=F32,
           family="shift-", level=True, **LOGITS),
    course("sink logits", N=40, HQ=2, HKV=1, window=9, sinks=2, refill=True, **LOGITS),
    course("sink logits", N=41, HQ=2, HKV=1, window=9, sinks=2, scale=0.5, grads=(),
           sink_logits=True),
    course("omitted arguments", N=70, HQ=1, HKV=1, window=20, sinks=0, bare=True),
    course("k shared by heads", N=70, HQ=2, HKV=2, window=20, sinks=2, layout="shared"),
    course("any number of sinks", N=150, HQ=1, HKV=1, window=9, sinks=LARGEST, gpu=dict(HQ=2)),
    course("no causal mask", N=170, HQ=2, HKV=1, is_causal=False, window=None, sinks=0, dtype=F32,
           level=True, **LOGITS),
    course("no causal mask", N=150, HQ=2, HKV=1, is_causal=False, window=None, sinks=0, dtype=F16),
    course("no causal mask", N=40, HQ=1, HKV=1, is_causal=False, window=None, sinks=0, dtype=F16,
           family="shift-", gpu=dict(HQ=2)),
    course("no window", N=200, HQ=1, HKV=1, window=None, sinks=0),
    course("D = 80", N=70, HQ=2, HKV=1, D=80, window=33, sinks=4, dtype=F16, layout="guarded"),
    course("D = 8", N=40, HQ=2, HKV=1, D=8, window=9, sinks=4, dtype=F32),
    course("a last axis whose stride is not 1", N=70, HQ=2, HKV=2, D=32, window=20, sinks=4,
           layout="last", dout="last"),
    course("permuted strides", N=37, B=2, HQ=6, HKV=3, window=20, sinks=2, layout="mixed",
           dout="transposed"),
    course("float32 at D = 128", N=100, HQ=2, HKV=1, D=128, window=70, sinks=4, dtype=F32),
    beyond("gradients of 2^-24", N=100, HQ=1, HKV=1, D=32, window=40, sinks=4, dtype=F32,
           dout="small", gpu=dict(HQ=2, HKV=2)),
    *far("q", "k", "v", "do", HQ=2, window=20, sinks=4),
])

TABLE = {1: STAGE_1, 2: STAGE_2, 3: STAGE_3, 4: STAGE_4, 5: STAGE_5, 6: STAGE_6, 7: STAGE_7,
         8: STAGE_8, 9: STAGE_9}


def listed(stage: int, device: str, has_bfloat16: bool) -> list[Case]:
    """The cases of a stage, standard ones first."""
    half, on_gpu, cases = torch.bfloat16 if has_bfloat16 else F16, device == "cuda", []
    for row in TABLE[stage]:
        if not row.get("gpu_only") or on_gpu:
            fields = row | (row.get("gpu", {}) if on_gpu else {})
            cases.append(Case(stage, **{
                name: half if value == HALF else value for name, value in fields.items()
                if name not in ("gpu", "gpu_only")}))
    return cases
