"""Lists the features that are checked, and the cases of each.

A case differs from one without its feature in that feature alone.  Only where that one is right
does the case say anything about the feature.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from grader.check.adapter import QKV, Adapter
from grader.course.cases import Case

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WINDOW, SINKS, HEADS = 17, 4, dict(HQ=6, HKV=2)
FEATURES = {  # what --only takes -> the words in the table
    "output": "output", "lengths": "any length", "causal": "causal", "dq": "dq", "dk": "dk",
    "dv": "dv", "lse": "lse", "dlse": "gradient of lse", "scale": "scale", "groups": "HQ != HKV",
    "nq_nk": "NQ != NK", "window": "window", "sink_tokens": "sink tokens",
    "sink_logits": "sink logits", "dsink": "their gradient", "together": "all together",
    "dtypes": "dtypes", "head_dims": "head dims", "scores": "large scores", "views": "views",
    "nan_around": "NaN around", "twice": "called twice", "far": "offsets > 2^31",
}
LARGE = ("shift+", "shift-", "deep", "rising", "steep", "falling", "hot", "needles")


@dataclass(frozen=True)
class Asked:
    """One call.  with_lse: it returns (o, lse), and with gradients lse has one, too.  last: with a
    causal mask from the bottom right corner, how many of the case's queries are sent."""

    case: Case
    with_lse: bool = False
    last: int = 0


@dataclass(frozen=True)
class Trial:
    """A call, and those that must be right before it says anything.  tensor: the one that counts;
    "" for all.  is_remark: right 16-bit arithmetic may be far off there.  whole: the call for all
    gradients; a function that refuses it need not refuse a call for some of them."""

    asked: Asked
    without: tuple[Asked, ...] = ()
    tensor: str = ""
    is_remark: bool = False
    whole: Asked | None = None


def needs(feature: str) -> tuple[str, ...]:
    """The arguments that an adapter must take."""
    return {"scale": ("scale",), "window": ("is_causal", "window_size"),
            "sink_tokens": ("is_causal", "window_size", "sink_size"), "causal": ("is_causal",),
            "sink_logits": ("sink_logits",), "dsink": ("sink_logits",)}.get(feature, ())


def trials(feature: str, plain: Case, adapter: Adapter) -> Iterator[Trial]:
    """The trials of a feature.  plain: the call that has no feature at all."""
    ragged = replace(plain, N=93, B=1, HQ=3, HKV=3)
    shapes = (plain, ragged)
    masked = replace(ragged, is_causal="is_causal" in adapter.claims)

    def beside(*changes: dict, of=shapes, grads=((), QKV), **before) -> Iterator[Trial]:
        """The shapes with these fields, each with what changes, forward and backward."""
        for change, shape, names in itertools.product(changes, of, grads):
            case = replace(shape, grads=names, **before)
            yield Trial(Asked(replace(case, **change)), (Asked(case),))

    match feature:
        case "output":
            yield Trial(Asked(plain))
            yield Trial(Asked(replace(plain, N=256, B=1, HQ=3, HKV=3)))
        case "lengths":
            yield from beside({"N": 1}, {"N": 93}, {"N": 129}, of=shapes[:1])
        case "causal":
            yield from beside({"is_causal": True})
        case "dq" | "dk" | "dv":
            alone = [Asked(replace(plain, grads=(name,))) for name in QKV]
            one, tensor = alone[QKV.index(feature[1])], f"d_{feature[1]}"
            whole = Asked(replace(plain, grads=QKV))
            yield Trial(one, (Asked(plain),), tensor, whole=whole)
            yield Trial(whole, tuple(alone), tensor, whole=whole)
        case "lse":
            for shape in (plain, replace(ragged, dtype=torch.bfloat16)):  # float32 in both
                yield Trial(Asked(shape, with_lse=True), (Asked(shape),))
            for case in _masked(plain, ragged, adapter):
                yield Trial(Asked(case, with_lse=True),
                            (Asked(plain, with_lse=True), Asked(case)))
            for large in _large_sinks(masked, adapter):
                yield Trial(Asked(large, with_lse=True),
                            (Asked(replace(large, sink_logits=False), with_lse=True),
                             Asked(large)), is_remark=plain.dtype != torch.float32)
        case "dlse":
            for case in (*shapes, *_masked(plain, ragged, adapter)):
                for names in (QKV, (*QKV, "sink_logits"))[:1 + case.sink_logits]:
                    both = replace(case, grads=names)
                    yield Trial(Asked(both, with_lse=True),
                                (Asked(plain, with_lse=True), Asked(case, with_lse=True),
                                 Asked(both)))
        case "scale":
            yield from beside({"scale": 0.3})
            yield from beside({"scale": 1.0}, of=(plain, replace(ragged, D=48)))
        case "groups":
            yield from beside(HEADS, {"HQ": 4, "HKV": 1})
        case "nq_nk":
            for N, NK in ((64, 128), (128, 64), (70, 200)):
                yield from beside({"N": N, "NK": NK}, of=shapes[:1], is_causal=False)
                if adapter.align == "top-left":
                    yield from beside({"N": N, "NK": NK}, of=shapes[:1], is_causal=True)
                elif adapter.align and NK > N:
                    for names in ((), QKV):
                        square = replace(plain, N=NK, is_causal=True, grads=names)
                        yield Trial(Asked(square, last=N), (Asked(square),))
        case "window":
            yield from beside({"window": WINDOW}, {"window": 1}, {"window": 1000}, is_causal=True)
        case "sink_tokens":
            windowed = dict(is_causal=True, window=WINDOW)
            yield from beside({"sinks": SINKS}, **windowed)
            yield from beside({"sinks": 1}, of=(plain,), **windowed)
            yield from beside({"sinks": 40}, of=(ragged,), **windowed)  # more than a tile
        case "sink_logits":  # among few keys a sink has a large share
            for is_causal in dict.fromkeys((masked.is_causal, plain.is_causal)):
                yield from beside({"sink_logits": True}, is_causal=is_causal,
                                  of=(replace(ragged, N=13), *shapes))
            for large in _large_sinks(masked, adapter):
                yield Trial(Asked(large), (Asked(replace(large, sink_logits=False)), Asked(
                    replace(masked, sink_logits=True))), is_remark=plain.dtype != torch.float32)
        case "dsink":
            # B=3: of half the sum over two batch entries nobody can say that it is their mean.
            for shape in (replace(plain, N=13, B=3, HQ=4, HKV=4), ragged,
                          replace(plain, HQ=4, HKV=4)):
                with_sink = replace(shape, sink_logits=True)
                alone = replace(with_sink, grads=("sink_logits",))
                three = replace(with_sink, grads=QKV)
                whole = Asked(replace(three, grads=(*QKV, "sink_logits")))
                yield Trial(Asked(alone), (Asked(with_sink),), whole=whole)
                yield Trial(whole, (Asked(three), Asked(alone)), whole=whole)
        case "together":
            yield from _together(plain, adapter)
        case "dtypes":
            for dtype in DTYPES:
                if dtype != plain.dtype:
                    yield from beside({"dtype": dtype})
            for change in ({"family": "shift-"}, {"family": "alike"}, {"dout": "loud"}):
                for trial in beside(change, dtype=torch.float16, of=shapes[:1], grads=(QKV,)):
                    yield replace(trial, is_remark=True)
        case "head_dims":
            yield from beside(*({"D": D} for D in (8, 16, 32, 80, 128, 256)), of=shapes[:1])
        case "scores":
            for trial in beside(*({"family": name} for name in LARGE), of=(plain, masked)):
                yield replace(trial, is_remark=plain.dtype != torch.float32)
        case "views":
            for dtype in dict.fromkeys((plain.dtype, torch.float16)):  # 16 bits: other kernels
                yield from beside(*({"layout": name} for name in (
                    "transposed", "views", "gapped", "mixed", "last", "shared")), dtype=dtype)
            yield from beside({"dout": "transposed"}, {"dout": "expanded"}, grads=(QKV,))
        case "nan_around":
            for dtype in dict.fromkeys((plain.dtype, torch.float16)):
                yield from beside({"layout": "guarded"}, dtype=dtype)
        case "twice":
            yield from beside({"repeats": 2})
            yield from beside({"refill": True}, of=shapes[:1])
            for names in ((), QKV)[:1 + adapter.lse_has_gradient]:
                once = replace(ragged, grads=names)
                two = replace(once, repeats=2)
                yield Trial(Asked(two, with_lse=True), (Asked(once, with_lse=True), Asked(two)))
        case "far":
            half = replace(plain, B=3, N=60, dtype=torch.float16)
            yield from beside(*({"layout": "far", "apart": name} for name in QKV), of=(half,))


def _options(adapter: Adapter) -> list[dict]:
    """Each of the windows and sinks that an adapter takes, as fields of a case."""
    made = [{"is_causal": True, "window": WINDOW}] * ("window_size" in adapter.claims)
    made += [{"sink_logits": True}] * ("sink_logits" in adapter.claims)
    if {"sink_size", "window_size"} <= {*adapter.claims}:
        made.append({"is_causal": True, "window": WINDOW, "sinks": SINKS})
    return made


def _masked(plain: Case, ragged: Case, adapter: Adapter) -> Iterator[Case]:
    """The cases in which lse must follow what the adapter takes: one option each, then all."""
    options = [{"is_causal": True}] * ("is_causal" in adapter.claims) + _options(adapter)
    yield from (replace(ragged, **one) for one in options)
    yield replace(plain, **dict(item for one in (HEADS, *options) for item in one.items()))


def _large_sinks(case: Case, adapter: Adapter) -> list[Case]:
    """Sink logits near 128 beside such scores, and sinks far above scores near -128."""
    case = replace(case, sink_logits=True)
    return [replace(case, family="shift+", level=case.dtype == torch.float32),
            replace(case, family="shift-")] * ("sink_logits" in adapter.claims)


def _together(plain: Case, adapter: Adapter) -> Iterator[Trial]:
    """Several features in one call, each of them right alone; all of them with a scale, too."""
    single = [HEADS, *_options(adapter)]
    scale = [{"scale": 0.3}] * ("scale" in adapter.claims)
    many = [pair for pair in itertools.combinations(single, 2)] + [(*single, *scale)] * (
        len(single) > 2)
    for features, names in itertools.product(many, ((), QKV)):
        fields = {name: value for one in features for name, value in one.items()}
        alone = [Asked(replace(plain, grads=names, **one)) for one in features]
        yield Trial(Asked(replace(plain, grads=names, **fields)), tuple(alone))
