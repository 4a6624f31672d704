"""python -m benchmarks.packed [ours alone flex fa4 fla]: time attention of packed sequences.

GPT-OSS's and Llama-3's heads in bfloat16, sequences of equal and of different lengths. Without
names, all are timed: `ours` is sink_attn.attention_varlen; `alone` calls sink_attn.attention once
per sequence, with the kernels it chooses; `flex` is flex_attention with a document mask, which
takes minutes to compile; `fa4` is FlashAttention-4 and `fla` is parallel_attn of
flash-linear-attention, if they are installed. Whole calls are timed in turn, and the median of 5
rounds counts. One line of JSON per packing is appended to packed.jsonl, in the folder $OUT or else
the current one.
"""

import functools
import itertools
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import sink_attn
from benchmarks import measure

ROUNDS = 5


@dataclass(frozen=True)
class Packing:
    """One call: lengths of the sequences; numbers of query heads and of key/value heads."""

    lengths: tuple[int, ...]
    heads: tuple[int, int] = (64, 8)
    D: int = 64
    window: int | None = None
    sink_logits: bool = True

    def __str__(self) -> str:
        seen = f"window {self.window}" if self.window else "causal"
        return (f"{len(self.lengths)} sequences of {min(self.lengths)} to {max(self.lengths)}, "
                f"{self.heads[0]}/{self.heads[1]} heads, D {self.D}, {seen}")


def mixed(sequences: int, T: int) -> tuple[int, ...]:
    """Cut T tokens at random places; returns the lengths, most of them short."""
    cuts = sorted(random.Random(sequences).sample(range(1, T), sequences - 1))
    return tuple(b - a for a, b in itertools.pairwise([0, *cuts, T]))


LENGTHS = [mixed(40, 8192), mixed(400, 16384), (2048,) * 8, mixed(4, 32768), (16384,)]
PACKINGS = [Packing(lengths, window=window) for lengths in LENGTHS for window in (128, None)]
PACKINGS += [Packing(lengths, (32, 8), 128, sink_logits=False) for lengths in LENGTHS[:3]]


# ------------------------------------------------------------- implementations
# Each takes a packing and its borders, and returns a function of q, k, v (T, H, D) and sink logits.
def ours(work: Packing, cu_seqlens):
    return lambda q, k, v, x: sink_attn.attention_varlen(
        q, k, v, cu_seqlens, cu_seqlens, max(work.lengths), window_size=work.window, sink_logits=x
    )


def alone(work: Packing, cu_seqlens):
    def attend(q, k, v, x):
        parts = zip(*(t.split(work.lengths) for t in (q, k, v)), strict=True)
        return torch.cat([
            sink_attn.attention(*(t.transpose(0, 1)[None] for t in part), window_size=work.window,
                           sink_logits=x)[0].transpose(0, 1)
            for part in parts
        ])

    return attend


def flex(work: Packing, cu_seqlens):
    import torch._functorch.config as functorch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    functorch.donated_buffer = False  # else the graph serves one backward only
    numbers = torch.arange(len(work.lengths), device="cuda")
    document, T = numbers.repeat_interleave(cu_seqlens.diff()), sum(work.lengths)
    window = work.window or T

    def visible(b, h, query, key):
        same = document[query] == document[key]
        return same & (key <= query) & (query - key < window)

    block_mask = create_block_mask(visible, None, None, T, T, device="cuda", _compile=True)

    @functools.partial(torch.compile, dynamic=False, fullgraph=True)
    def attend(q, k, v, x):
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        o, lse = flex_attention(
            q, k, v, block_mask=block_mask, enable_gqa=work.heads[0] != work.heads[1],
            return_lse=True,
        )
        if x is not None:  # lse does not include the sinks yet
            o = (o * torch.sigmoid(lse - x[None, :, None].float())[..., None]).to(o.dtype)
        return o[0].transpose(0, 1)

    return attend


def fa4(work: Packing, cu_seqlens):
    from flash_attn.cute import flash_attn_varlen_func

    longest = max(work.lengths)
    window = (None, None) if work.window is None else (work.window - 1, 0)

    def attend(q, k, v, x):
        o = flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=longest,
            max_seqlen_k=longest, causal=True, window_size=window, learnable_sink=x,
        )
        return o[0] if isinstance(o, tuple) else o

    return attend


def fla(work: Packing, cu_seqlens):
    from fla.ops.attn import parallel_attn

    def attend(q, k, v, x):
        return parallel_attn(
            *(t[None] for t in (q, k, v)), window_size=work.window, cu_seqlens=cu_seqlens.long(),
            sink_bias=x,
        )[0]

    return attend


OURS = ("ours", "alone")
KERNELS = {"ours": ours, "alone": alone, "flex": flex, "fa4": fa4, "fla": fla}


# --------------------------------------------------------------------- timing
def timed(work: Packing, names=tuple(KERNELS)) -> dict:
    """Time one packing.

    Returns:
        {"work": what it is, name: {"forward": ms, "backward": ms, "error": relative error against
        the first name's results}, or the text of its exception}.
    """
    torch.manual_seed(0)
    (HQ, HKV), T = work.heads, sum(work.lengths)
    q, k, v, do = (torch.randn(T, H, work.D, device="cuda", dtype=torch.bfloat16)
                   for H in (HQ, HKV, HKV, HQ))
    x = torch.randn(HQ, device="cuda", dtype=torch.bfloat16) if work.sink_logits else None
    leaves = [t.requires_grad_() for t in (q, k, v, x) if t is not None]
    borders = torch.tensor([0, *itertools.accumulate(work.lengths)], dtype=torch.int32)
    cu_seqlens, line, runs, answers = borders.cuda(), {"work": str(work)}, {}, {}
    for name in names:
        try:
            attend = KERNELS[name](work, cu_seqlens)
            o = attend(q, k, v, x)

            def forward(attend=attend):
                with torch.no_grad():
                    attend(q, k, v, x)

            def backward(o=o):
                return torch.autograd.grad(o, leaves, do, retain_graph=True, allow_unused=True)

            answers[name] = [o.detach(), *backward()[:3]]
            forward()
            runs |= {(name, "forward"): forward, (name, "backward"): backward}
        except Exception as error:  # a peer that cannot is a result
            if name in OURS:
                raise
            line[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    want = next(iter(answers.values()), None)
    for name, got in answers.items():
        line[name] = {"error": max(
            ((a - b).float().norm() / b.float().norm()).item()
            for a, b in zip(got, want, strict=True)
        )}
    for (name, direction), ms in measure.medians(runs, ROUNDS).items():
        line[name][direction] = ms
    return line


def main() -> int:
    if not torch.cuda.is_available():
        print("error: want a CUDA GPU to time on; got none", file=sys.stderr)
        return 2
    names = sys.argv[1:] or list(KERNELS)
    if unknown := set(names) - set(KERNELS):
        print(f"error: want some of {', '.join(KERNELS)}; got {', '.join(unknown)}",
              file=sys.stderr)
        return 2
    random.seed(0)
    print(measure.machine())
    wrong = 0
    with Path(os.environ.get("OUT", "."), "packed.jsonl").open("a", encoding="utf-8") as file:
        for work in PACKINGS:
            line = timed(work, names)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line["work"], *(
                f"{name} {got['forward']:.3f} + {got['backward']:.3f} ms"
                if isinstance(got := line[name], dict) else f"{name} {got}" for name in names
            ), sep="; ", flush=True)
            off = [name for name in names
                   if isinstance(line[name], dict) and not line[name]["error"] <= measure.LIMIT]
            wrong += len(off)
            if off:
                print(f"  {', '.join(off)} differ from {names[0]} by more than {measure.LIMIT}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
