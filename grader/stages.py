"""One table: stage -> title, file, entry point, points, cases, forbidden shortcuts, steps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from grader.cases import Case
from grader.sandbox.plan import allowed

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Stage:
    """One stage of the course.  cases(device, has_bfloat16) -> its cases, standard ones first."""

    number: int
    title: str
    entry: str
    attribute: str | None  # "apply" where the entry point is an autograd.Function
    positional: tuple[str, ...]  # the arguments a submission must take, in this order
    points: int
    cases: Callable[[str, bool], list[Case]]
    steps: dict[str, str]  # symptom, as diagnosis.py names it -> the step to look at
    origins: dict[str, str] = field(default_factory=dict)  # step -> where it is carried over from
    optional: bool = False
    needs_triton: bool = True

    @property
    def filename(self) -> str:
        return f"problem_{self.number}.py"

    @property
    def grads(self) -> tuple[str, ...]:
        """The inputs whose gradients are judged: only where gradients are the lesson."""
        return ("q", "k", "v") if self.number >= 8 else ()

    def forbidden(self, operations: tuple[str, ...]) -> list[str]:
        """Which of these PyTorch operations a right answer may not be made of.

        From stage 2 on that is all but allocating, moving, computing one by one and reducing; in
        stage 1 only whole attentions, for its products are PyTorch's.
        """
        if self.needs_triton:
            found = {name for name in operations if not allowed(name)}
        else:
            found = {name for name in operations
                     if "attention" in name or not name.startswith("aten::")}
        return sorted({name.removeprefix("aten::").partition(".")[0] for name in found})


# The assignment's own shapes, for a GPU: (HQ, HKV, N, D).  The interpreter gets short ones.
_ORIGINAL = {
    1: ((8, 8, 512, 16), (8, 8, 1024, 16), (16, 16, 2048, 16), (16, 16, 4096, 16)),
    5: ((8, 2, 512, 16), (8, 2, 1024, 16), (16, 2, 2048, 16), (16, 2, 4096, 16)),
    7: ((8, 2, 512, 32), (8, 2, 1024, 32), (16, 2, 2048, 16), (16, 2, 4096, 16)),
    8: ((16, 16, 4096, 16), (16, 8, 4096, 16), (16, 1, 4096, 16)),
}
_SHORT = {
    3: ((2, 2, 64, 16), (2, 2, 128, 16), (2, 2, 192, 16), (2, 2, 256, 16)),
    5: ((4, 1, 64, 16), (4, 1, 128, 16), (4, 2, 128, 16), (4, 2, 192, 16)),
    7: ((4, 1, 64, 32), (4, 1, 128, 32), (4, 2, 128, 16), (4, 2, 192, 16)),
    8: ((2, 2, 128, 16), (2, 1, 128, 16), (4, 1, 128, 16)),
}


def _cases_1(device: str, bf16: bool) -> list[Case]:
    on_gpu = device == "cuda"
    base = Case(1, "standard", 0, dtype=BF16 if bf16 else F16)
    shapes = _ORIGINAL[1] if on_gpu else ((8, 8, 512, 16), (8, 8, 1024, 16), (16, 16, 768, 16))
    cases = [replace(base, HQ=hq, HKV=hkv, N=n, D=d, is_causal=i > 0)
             for i, (hq, hkv, n, d) in enumerate(shapes)]
    r = replace(base, group="robust", HQ=2, HKV=2)
    half = BF16 if bf16 else F16
    cases += [
        replace(r, N=1, dtype=F32),
        replace(r, N=65, HQ=3, HKV=3, B=2, dtype=F16, layout="guarded"),
        replace(r, N=129, D=40, dtype=F32, is_causal=True, layout="guarded"),
        replace(r, N=70, NK=257, dtype=half),
        replace(r, N=257, NK=63, D=64, dtype=F32),
        replace(r, N=200, D=80, dtype=half, is_causal=True, layout="transposed"),
        replace(r, N=127, D=128, dtype=F16, is_causal=True, layout="last"),
        replace(r, N=193, dtype=half, family="shift+", is_causal=True),
        replace(r, N=193, dtype=F16, family="shift-"),
        replace(r, N=129, dtype=F32, family="deep", is_causal=True),
        replace(r, N=193, dtype=half, family="falling"),
        replace(r, N=190, dtype=half, family="steep", is_causal=True),
        replace(r, N=64, NK=2000, HQ=1, HKV=1, dtype=half, family="cancel"),
        replace(r, N=64, NK=2000, HQ=1, HKV=1, dtype=half, family="heavy"),
        replace(r, N=70, B=2, HQ=3, HKV=3, dtype=half, layout="mixed", is_causal=True),
        replace(r, N=300, dtype=half, family="rising"),
        replace(r, N=257, D=64, dtype=F16, family="hot", is_causal=True),
        replace(r, N=150, dtype=half, family="needles", is_causal=True),
        replace(r, N=256, D=32, HQ=6, HKV=6, dtype=F16, family="real", is_causal=True),
        replace(r, N=130, dtype=F32, refill=True),
        replace(r, N=130, dtype=half, is_causal=True, repeats=3),
        replace(r, N=1024, HQ=1, HKV=1, dtype=F16, growth=True),
    ]
    return cases


def _cases_2(device: str, bf16: bool) -> list[Case]:
    on_gpu = device == "cuda"
    half = BF16 if bf16 else F16
    shapes = ((512, 1024), (1024, 4096), (2048, 8192), (4096, 8192)) if on_gpu else (
        (32, 256), (64, 512), (96, 1024), (128, 1024))
    cases = [Case(2, "standard", n, M=m, dtype=half) for m, n in shapes]
    r = Case(2, "robust", 0)
    more = 10 if on_gpu else 1
    return cases + [
        replace(r, M=1, N=1, dtype=F32),
        replace(r, M=1, N=300, dtype=F16, layout="guarded"),
        replace(r, M=17, N=1, dtype=half, layout="guarded"),
        replace(r, M=32 * more + 1, N=127, dtype=half, layout="guarded"),
        replace(r, M=15, N=128 * more + 1, dtype=F32, layout="guarded"),
        replace(r, M=64, N=63, dtype=F16, layout="transposed"),
        replace(r, M=19, N=200, dtype=F32, layout="last"),
        replace(r, M=31, N=512 * more + 1, dtype=half, family="hot"),
        replace(r, M=23, N=256 * more + 1, dtype=F16, family="needles"),
        replace(r, M=3, N=20000, dtype=half, family="cancel"),
        replace(r, M=18, N=170, dtype=F16, layout="mixed"),
        *[replace(r, M=3, N=300, dtype=half, layout="far")] * on_gpu,
        replace(r, M=20, N=150, dtype=half, refill=True),
        replace(r, M=40 * more, N=140, dtype=F32, repeats=10 if on_gpu else 2),
    ]


def _attention_cases(number: int, heads: tuple, windows: tuple = (), sinks: tuple = ()):
    """Cases of stages 3-7.  heads, windows and sinks are dealt in turn to the robust cases."""
    original = _ORIGINAL[7 if sinks else 5 if windows or len(heads) > 2 else 1]
    short = _SHORT[7 if sinks else 5 if windows or len(heads) > 2 else 3]

    def cases(device: str, bf16: bool) -> list[Case]:
        on_gpu = device == "cuda"
        half = BF16 if bf16 else F16
        base = Case(number, "standard", 0, dtype=half, is_causal=number > 3)
        first = {"window": 128 if on_gpu else 32} if windows else {}
        first |= {"sinks": 8} if sinks else {}
        standard = [replace(base, HQ=hq, HKV=hkv, N=n, D=d, **first)
                    for hq, hkv, n, d in (original if on_gpu else short)]
        more = 4 if on_gpu else 1  # lengths 4 n + something: still ragged
        r = replace(base, group="robust")
        robust = [
            replace(r, N=65, B=2, dtype=half, layout="guarded"),
            replace(r, N=1, D=8, dtype=F32, layout="guarded"),
            replace(r, N=63 + 64 * (more - 1), D=64, dtype=half, layout="guarded"),
            replace(r, N=127, D=80, dtype=F16, layout="transposed"),
            replace(r, N=193 * more + 1, dtype=F32, layout="guarded"),
            replace(r, N=65, dtype=half, family="shift+"),
            replace(r, N=65, dtype=F16, family="shift-"),
            replace(r, N=161 * more, dtype=half, family="rising"),
            replace(r, N=100 * more, D=40, dtype=F32, family="hot", layout="last"),
            replace(r, N=130 * more, dtype=half, family="needles"),
            replace(r, N=256 if on_gpu else 100, D=32, dtype=F16, family="real"),
            replace(r, N=193 * more, dtype=F32, family="shift-", layout="guarded"),
            replace(r, N=576 if on_gpu else 192, D=64, dtype=F32, family="needles",
                    layout="transposed"),
            replace(r, N=64 * more, dtype=half, refill=True),
            replace(r, N=320 if on_gpu else 192, D=128, dtype=F16, repeats=10 if on_gpu else 2),
        ]
        dealt = []
        for i, case in enumerate(robust):
            hq, hkv = heads[i % len(heads)]
            case = replace(case, HQ=hq, HKV=hkv)
            if windows:
                case = replace(case, window=windows[i % len(windows)])
            if sinks:
                case = replace(case, sinks=sinks[i % len(sinks)])
            dealt.append(case)
        hq, hkv = (6, 3) if len(heads) > 2 else (6, 6)
        steep = "steep" if number > 3 else "falling"
        for i, (family, n, dtype) in enumerate((("randn", 70, half), (steep, 193, F32),
                                                ("deep", 129, F16), ("cancel", 200, half),
                                                ("randn", 190, F16), ("randn", 200, half))):
            case = replace(r, N=n, D=128 if i == 5 else 16, dtype=dtype, family=family)
            if windows:
                case = replace(case, window=(20, 60, 33, 1000, 150, 150)[i])
            if sinks:
                case = replace(case, sinks=(2, 3, 5, 0, 4, 1)[i])
            if i == 0:  # 18 heads in all, no power of two
                case = replace(case, B=3, HQ=hq, HKV=hkv, layout="mixed")
            if i < 4 or windows:  # the last two are for windows longer than the default
                dealt.append(case)
        if not windows:  # several tiles, ragged and whole, of 64 and of 128
            hq, hkv = heads[0]
            dealt += [replace(r, HQ=hq, HKV=hkv, N=200, D=64, dtype=half, layout="guarded"),
                      replace(r, HQ=hq, HKV=hkv, N=256, D=64, dtype=half)]
        # Long enough for sums in 16 bits to lose something.
        all_keys = {"window": 5000} if windows else {}
        all_keys |= {"sinks": 0} if sinks else {}
        dealt.append(replace(r, N=4096 if on_gpu else 1000, dtype=half, family="heavy", **all_keys))
        if number == 3 and on_gpu:  # where half is bfloat16, rising overflows nothing
            dealt.append(replace(r, N=193, dtype=F16, family="steep"))
        growth = replace(r, N=8192 if on_gpu else 128, dtype=F16, family="creeping",
                         **(first | all_keys if on_gpu else first), growth=True)
        far = [replace(r, N=64, B=3, dtype=half, layout="far", **first)] * on_gpu
        return standard + dealt + far + [growth]

    return cases


def _cases_8(device: str, bf16: bool) -> list[Case]:
    on_gpu = device == "cuda"
    half = BF16 if bf16 else F16
    all_three = ("q", "k", "v")
    base = Case(8, "standard", 0, dtype=half, is_causal=True, grads=all_three)
    standard = [replace(base, HQ=hq, HKV=hkv, N=n, D=d)
                for hq, hkv, n, d in (_ORIGINAL[8] if on_gpu else _SHORT[8])]
    more = 4 if on_gpu else 1
    r = replace(base, group="robust", HQ=2, HKV=1)
    return standard + [
        replace(r, N=1, D=8, dtype=F32, layout="guarded"),
        replace(r, N=65, HQ=3, HKV=3, B=2, dtype=half, layout="guarded"),
        *[replace(r, N=64, B=3, dtype=half, layout="far")] * on_gpu,
        replace(r, N=63 * more, D=64, dtype=half, dout="expanded"),
        replace(r, N=70, HQ=4, HKV=2, D=64, dtype=F16),
        replace(r, N=127 * more, HKV=2, D=40, dtype=F32, dout="transposed"),
        replace(r, N=70, HQ=6, HKV=2, D=80, dtype=F16, layout="transposed", is_causal=False),
        replace(r, N=65, dtype=half, family="shift+", scale=0.5),
        replace(r, N=65, HKV=2, dtype=F16, family="shift-"),
        replace(r, N=130 * more, HQ=1, dtype=half, family="rising", grads=("q",)),
        replace(r, N=100 * more, HKV=2, dtype=F16, family="hot"),
        replace(r, N=100, HKV=2, D=32, dtype=F32, family="needles", layout="last", dout="small"),
        replace(r, N=256 if on_gpu else 90, HQ=3, D=32, dtype=F16, family="real"),
        replace(r, N=50, HQ=4, D=128, dtype=half),
        replace(r, N=37, B=3, HQ=6, HKV=3, dtype=half, layout="mixed", dout="transposed"),
        replace(r, N=130, dtype=F32, family="steep"),
        replace(r, N=65, dtype=F16, family="deep"),
        replace(r, N=150, HQ=1, dtype=half, family="cancel"),
        replace(r, N=40, dtype=F16, grads=("k",)),
        replace(r, N=41, dtype=half, grads=("v",)),
        replace(r, N=64, dtype=half, refill=True),
        replace(r, N=65 * more, dtype=half, repeats=5 if on_gpu else 2),
        replace(r, N=8192 if on_gpu else 128, HQ=1, dtype=half, growth=True),
    ]


def _cases_9(device: str, bf16: bool) -> list[Case]:
    on_gpu = device == "cuda"
    half = BF16 if bf16 else F16
    base = Case(9, "standard", 0, dtype=half, is_causal=True, grads=("q", "k", "v"),
                window=256 if on_gpu else 32, sinks=4)
    standard = [replace(base, HQ=hq, HKV=hkv, N=n, D=d)
                for hq, hkv, n, d in (_ORIGINAL[8] if on_gpu else _SHORT[8])]
    more = 4 if on_gpu else 1
    r = replace(base, group="robust", HQ=2, HKV=1)
    with_logits = {"sink_logits": True, "grads": ("q", "k", "v", "sink_logits")}
    return standard + [
        replace(r, N=1, D=8, dtype=F32, window=1, sinks=0, layout="guarded"),
        *[replace(r, N=64, B=3, dtype=half, layout="far")] * on_gpu,
        replace(r, N=65, HQ=3, HKV=3, B=2, dtype=half, window=17, sinks=1, layout="guarded"),
        replace(r, N=63 * more, D=64, dtype=half, window=20, sinks=0, dout="expanded",
                **with_logits),
        replace(r, N=70, HQ=4, HKV=2, D=64, dtype=F16, window=None, sinks=0),
        replace(r, N=90 * more, HQ=8, dtype=half, window=20, sinks=3, **with_logits),
        replace(r, N=127 * more, HKV=2, D=40, dtype=F32, window=33, dout="transposed"),
        replace(r, N=70, HQ=6, HKV=2, D=80, dtype=F16, window=None, sinks=0, layout="transposed",
                **with_logits),
        replace(r, N=65, dtype=half, window=1, sinks=70, family="shift+", scale=0.5),
        replace(r, N=65, HKV=2, dtype=F16, window=1000, sinks=0, family="shift-"),
        replace(r, N=80, HKV=2, dtype=F32, window=None, sinks=0, is_causal=False),
        replace(r, N=130 * more, HQ=1, dtype=half, window=100, sinks=1, family="rising",
                grads=("q",)),
        replace(r, N=100 * more, HKV=2, dtype=F16, window=17, family="hot", **with_logits),
        replace(r, N=130 * more, HKV=2, D=32, dtype=F32, window=66, sinks=3, family="needles",
                layout="last", dout="small"),
        replace(r, N=256 if on_gpu else 90, HQ=3, D=32, dtype=F16, window=40, family="real"),
        replace(r, N=50, HQ=4, D=128, dtype=half, window=9, sinks=1000),
        replace(r, N=37, B=3, HQ=6, HKV=3, dtype=half, window=20, sinks=2, layout="mixed",
                dout="transposed", **with_logits),
        replace(r, N=150, HQ=1, dtype=half, window=None, sinks=0),
        replace(r, N=190, HQ=1, dtype=F16, window=150, sinks=5),
        replace(r, N=200, HQ=1, D=64, dtype=half, window=127, sinks=0),
        replace(r, N=140, HQ=1, dtype=half, window=66, sinks=0),
        replace(r, N=260, HQ=1, dtype=half, window=17, sinks=70),
        replace(r, N=160, HQ=1, D=64, dtype=half, window=159, sinks=0, family="needles"),
        replace(r, N=193, dtype=F32, window=60, sinks=3, family="steep"),
        replace(r, N=65, dtype=F16, window=33, sinks=5, family="deep"),
        replace(r, N=150, HQ=1, dtype=half, window=1000, sinks=0, family="cancel"),
        replace(r, N=40, dtype=F16, window=9, grads=("k",)),
        replace(r, N=41, dtype=half, window=9, grads=("v",)),
        replace(r, N=40, dtype=half, window=9, sink_logits=True, grads=("sink_logits",)),
        replace(r, N=128, dtype=half, window=24, sinks=0, layout="gapped", refill=True),
        replace(r, N=65 * more, dtype=half, window=30, repeats=5 if on_gpu else 2,
                **with_logits),
        replace(r, N=8192 if on_gpu else 128, HQ=1, dtype=half, growth=True),
    ]


_EQUAL = ((2, 2), (1, 1))
_GROUPS = ((4, 2), (3, 1), (6, 2), (2, 2))
_QKV = ("q", "k", "v")
# One a robust case.  Two past a tile's end, and one before it: there a window's first key is the
# last of a tile of 64 or 128, or the one before its last row's first key is.
_WINDOWS = (17, 100, 1, 1000, 66, 17, 64, 40, 50, 63, 17, 127, 130, 24, 9)

STAGES: dict[int, Stage] = {stage.number: stage for stage in (
    Stage(1, "FlashAttention in PyTorch", "FlashAttention2Function", "apply",
          (*_QKV, "is_causal"), 200, _cases_1,
          {"mask": "1.1", "numbers": "1.3", "overflow": "1.3", "nan": "1.3", "rescale": "1.4",
           "lse": "1.5", "tail": "1.2"}, needs_triton=False),
    Stage(2, "Weighted Row-Sum in Triton", "weighted_row_sum_forward", None, ("x", "w"), 100,
          _cases_2, {"tail": "2.2", "stride": "2.2", "nan": "2.2", "numbers": "2.3"}),
    Stage(3, "Non-Causal Flash Attention", "flash_attention_forward", None,
          (*_QKV, "is_causal"), 200, _attention_cases(3, _EQUAL),
          {"numbers": "3.5", "overflow": "3.5", "rescale": "3.5", "mask": "3.4", "tail": "3.2",
           "nan": "3.1", "batch": "3.1", "head": "3.1", "stride": "3.7", "width": "3.7"}),
    Stage(4, "Causal Flash Attention", "flash_attention_forward", None,
          (*_QKV, "is_causal"), 100, _attention_cases(4, _EQUAL),
          {"numbers": "4.2", "tail": "4.2", "mask": "4.6", "nan": "4.1", "batch": "4.1",
           "head": "4.1", "overflow": "4.5", "rescale": "4.5", "stride": "4.7", "width": "4.7"}),
    Stage(5, "Grouped-Query Attention", "flash_attention_forward", None,
          (*_QKV, "is_causal"), 50, _attention_cases(5, _GROUPS),
          {"numbers": "5.2", "head": "5.2", "batch": "5.2", "stride": "5.2", "nan": "5.1",
           "width": "5.8",
           "tail": "5.3", "overflow": "5.6", "rescale": "5.6", "mask": "5.7"}),
    Stage(6, "Sliding-Window Attention", "flash_attention_forward", None,
          (*_QKV, "is_causal", "window_size"), 50,
          _attention_cases(6, _GROUPS, windows=_WINDOWS),
          {"numbers": "6.7", "overflow": "6.7", "rescale": "6.7", "nan": "6.7", "window": "6.8",
           "mask": "6.8", "tail": "6.3", "batch": "6.1", "head": "6.2", "stride": "6.9",
           "width": "6.9"}),
    Stage(7, "Attention Sinks", "flash_attention_forward", None,
          (*_QKV, "is_causal", "window_size", "sink_size"), 50,
          _attention_cases(7, _GROUPS, windows=_WINDOWS,
                           sinks=(4, 0, 1, 70, 1, 1000, 4, 0, 65, 70, 9, 1, 4, 0, 1)),
          {"numbers": "7.4", "tail": "7.4", "sinks": "7.8", "window": "7.8", "mask": "7.8",
           "overflow": "7.7", "rescale": "7.7", "nan": "7.7", "batch": "7.1", "head": "7.2",
           "stride": "7.9", "width": "7.9"}),
    Stage(8, "Backward Pass with GQA", "flash_attention_gqa", None,
          (*_QKV, "is_causal", "softmax_scale"), 200, _cases_8,
          {"numbers": "8.3", "mask": "8.18", "nan": "8.11", "tail": "8.14", "d_q": "8.12",
           "d_k": "8.17", "d_v": "8.17", "overflow": "8.6", "rescale": "8.6", "batch": "8.1",
           "head": "8.2", "stride": "8.19", "width": "8.19"}, optional=True),
    Stage(9, "Backward Pass with GQA, Window and Sinks", "flash_swda_with_sink", None,
          (*_QKV, "window_size", "sink_size", "is_causal", "scale"), 200, _cases_9,
          {"numbers": "9.3", "mask": "9.21", "window": "9.21", "sinks": "9.21", "tail": "9.20",
           "d_q": "9.12", "d_k": "9.16", "d_v": "9.16", "d_sink_logits": "9.11",
           "overflow": "9.7", "rescale": "9.7", "nan": "9.7", "batch": "9.1", "head": "9.2",
           "stride": "9.22", "width": "9.22"}, optional=True),
)}
