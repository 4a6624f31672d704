"""python -m benchmarks.context_parallel [--gpus 2] [--tokens 65536 131072 262144]

Time training steps (forward + backward) of attention over a row that is split over several GPUs of
one host: `alone` is sink_attn.attention on one GPU, `ours` is sink_attn.context_parallel.attention,
and `torch` is PyTorch's context_parallel with scaled_dot_product_attention, which has the causal
mask only, and no sink logits.  Some rows hold 16 packed sequences; `alone` is attention_varlen
then.  First o and the gradients are compared with float64.  One line of JSON per check and per time
is appended to context_parallel.jsonl, in the folder $OUT or else the current one.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import reference
import sink_attn
from benchmarks import measure, packed
from sink_attn import context_parallel

ROUNDS = 3
ENOUGH_MS = 50.0  # steps follow each other without a pause for this long, as in training
RAGGED = 12011  # tokens of the check of all gradients; not a multiple of anything
ROWS = 16  # sampled from long sequences


@dataclass(frozen=True)
class Work:
    heads: tuple[int, int]
    D: int
    window: int | None = None
    sink_size: int = 0
    sink_logits: bool = True
    sequences: int = 1  # packed in the row, of different lengths

    @property
    def mask(self) -> dict:
        return dict(window_size=self.window, sink_size=self.sink_size)

    def lengths(self, N: int) -> tuple[int, ...]:
        return packed.mixed(self.sequences, N) if self.sequences > 1 else (N,)

    def split(self, N: int, device) -> dict:
        """Returns what context_parallel's functions get besides tensors."""
        if self.sequences == 1:
            return {}
        borders = [0, *itertools.accumulate(self.lengths(N))]
        return dict(cu_seqlens=_kept(tuple(borders), device))

    def alone(self, q, k, v, x):
        """Returns o, computed on one GPU."""
        cu_seqlens = self.split(q.shape[2], q.device).get("cu_seqlens")
        if cu_seqlens is None:
            return sink_attn.attention(q, k, v, sink_logits=x, **self.mask)
        q, k, v = (t[0].transpose(0, 1) for t in (q, k, v))
        longest = max(self.lengths(len(q)))
        o = sink_attn.attention_varlen(
            q, k, v, cu_seqlens, cu_seqlens, longest, sink_logits=x, **self.mask
        )
        return o.transpose(0, 1)[None]


@functools.cache
def _kept(borders: tuple[int, ...], device) -> torch.Tensor:
    """A tensor of the borders, one for all calls, as all layers of a model have."""
    return torch.tensor(borders, dtype=torch.int32, device=device)


GPT_OSS_WINDOW = Work((64, 8), 64, 128)
GPT_OSS_FULL = Work((64, 8), 64)
LLAMA = Work((32, 8), 128, sink_logits=False)
PACKED = [replace(work, sequences=16) for work in (GPT_OSS_WINDOW, GPT_OSS_FULL)]
CHECKED = [
    GPT_OSS_WINDOW, GPT_OSS_FULL, LLAMA, Work((32, 8), 128, 1000), Work((32, 8), 128, 1000, 4),
    *PACKED, Work((32, 8), 128, 1000, 4, sequences=16),
]
TIMED = [GPT_OSS_WINDOW, GPT_OSS_FULL, LLAMA, *PACKED]


class Rank:
    """One process of a group, and its GPU."""

    def __init__(self, rank: int, size: int, store: str, device: str):
        self.device, self.cuda = torch.device(device), device != "cpu"
        self.rank, self.size = rank, size
        if self.cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if self.cuda else "gloo", init_method=f"file://{store}", rank=rank,
            world_size=size, timeout=timedelta(minutes=5),
        )

    def tensors(self, work: Work, N: int, dtype=torch.bfloat16):
        """Returns q, k, v, do of the whole sequence, the same on all ranks, and sink logits."""
        torch.manual_seed(N)
        (HQ, HKV), new = work.heads, dict(device=self.device, dtype=dtype)
        q, k, v, do = (torch.randn(1, H, N, work.D, **new) for H in (HQ, HKV, HKV, HQ))
        return q, k, v, do, torch.randn(HQ, **new) if work.sink_logits else None

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()
        dist.barrier()

    # ---------------------------------------------------------------- right?
    def check(self, work: Work, N: int, dtype=torch.bfloat16) -> dict:
        """Returns relative errors of o and all gradients, in the first group of heads."""
        q, k, v, do, x = self.tensors(work, N, dtype)
        answers = {"ours": self._ours(work, q, k, v, do, x)}
        answers["alone"] = _run(work.alone, q, k, v, do, x)
        group = work.heads[0] // work.heads[1]
        q, do = q[:, :group], do[:, :group]
        names = ("o", "q", "k", "v", "sink_logits")
        wants = [
            reference.attention(
                *part[:3], dout=part[3], is_causal=True, **work.mask,
                sink_logits=None if x is None else x[:group],
            ) for part in zip(
                *(t.split(work.lengths(N), 2) for t in (q, k[:, :1], v[:, :1], do)), strict=True)
        ]
        want = {name: torch.cat([w[name] for w in wants], 2) for name in names[:4]}
        if x is not None:
            want["sink_logits"] = sum(w["sink_logits"] for w in wants)
        errors = {}
        for who, answer in answers.items():
            for name, got in zip(names, answer, strict=False):
                got = got[:group] if got.dim() == 1 else got[:, :want[name].shape[1]]
                errors[f"{who} {name}"] = _error(got, want[name])
        return errors

    def check_rows(self, work: Work, N: int, dtype=torch.bfloat16) -> dict:
        """Returns relative errors of o and dq, in ROWS rows of all heads."""
        q, k, v, do, x = self.tensors(work, N, dtype)
        o, dq, *_ = self._ours(work, q, k, v, do, x)
        rows = torch.randperm(N, device=self.device)[:ROWS].sort().values
        rows[-1] = N - 1
        want = [torch.cat(part) for part in zip(
            *(_rows(work, h, rows, q, k, v, do, x) for h in range(work.heads[0])), strict=True
        )]
        return {name: _error(got[0, :, rows].flatten(0, 1), truth)
                for name, got, truth in zip(("o", "q"), (o, dq), want, strict=True)}

    def _ours(self, work, q, k, v, do, x) -> list[torch.Tensor]:
        """Returns o and all gradients of the whole sequence."""
        N, split = q.shape[2], work.split(q.shape[2], self.device)
        parts = [context_parallel.shard(t, **split) for t in (q, k, v, do)]
        out = _run(
            lambda *t: context_parallel.attention(
                *t[:3], sink_logits=t[3], **work.mask, **split), *parts, x
        )
        for t in out[4:]:
            dist.all_reduce(t)
        return [context_parallel.unshard(t, N, **split) for t in out[:4]] + out[4:]

    # ----------------------------------------------------------------- fast?
    def times(self, work: Work, N: int, who: str, dtype=torch.bfloat16) -> dict:
        """Returns ms of a step, median and all rounds, and the peak memory of rank 0's GPU, GiB.

        The slowest rank's time counts.  differs: how far PyTorch's o is from ours, relatively.
        """
        q, k, v, do, x = self.tensors(work, N, dtype)
        split = work.split(N, self.device)
        if who != "alone":
            q, k, v, do = (context_parallel.shard(t, **split) for t in (q, k, v, do))
        leaves = [t.requires_grad_() for t in (q, k, v, x) if t is not None]
        attend = {
            "alone": lambda: work.alone(q, k, v, x),
            "ours": lambda: context_parallel.attention(
                q, k, v, sink_logits=x, **work.mask, **split),
            "torch": lambda: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True),
        }[who]

        def step():
            torch.autograd.grad(attend(), leaves, do, allow_unused=True)

        ms, out = [], {}
        with _torch_context(self) if who == "torch" else contextlib.nullcontext():
            if who != "alone" or self.rank == 0:
                step()  # compiles
            self.wait()
            if self.cuda:
                torch.cuda.reset_peak_memory_stats()
            steps = 1
            for _ in range(1 + ROUNDS):
                self.wait()
                start = time.perf_counter()
                if who != "alone" or self.rank == 0:
                    for _ in range(steps):
                        step()
                if self.cuda:
                    torch.cuda.synchronize()
                took = torch.tensor([(time.perf_counter() - start) * 1e3], device=self.device)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                ms.append(took.item() / steps)
                steps = max(1, min(100, int(ENOUGH_MS / ms[0])))
            if self.cuda:
                out["gib"] = torch.cuda.max_memory_allocated() / 2**30
            if who == "torch" and x is None:
                out["differs"] = _error(attend(), context_parallel.attention(q, k, v).double())
        return {"ms": statistics.median(ms[1:]), "rounds": ms[1:]} | out


def _torch_context(rank: Rank):
    """PyTorch's context parallelism, for inputs that are sharded already, in the same layout."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel as theirs
    from torch.nn.attention import SDPBackend, sdpa_kernel

    stack = contextlib.ExitStack()
    mesh = init_device_mesh(rank.device.type, (rank.size,))
    stack.enter_context(sdpa_kernel(SDPBackend.FLASH_ATTENTION))
    unused = torch.zeros(1, 1, 2 * rank.size, 1, device=rank.device)
    stack.enter_context(theirs(mesh, buffers=[unused], buffer_seq_dims=[2]))
    return stack


def _run(attend, q, k, v, do, x) -> list[torch.Tensor]:
    leaves = [t.detach().requires_grad_() for t in (q, k, v, x) if t is not None]
    o = attend(*leaves, *[None] * (4 - len(leaves)))
    return [o.detach(), *torch.autograd.grad(o, leaves, do)]


def _rows(work, h, rows, q, k, v, do, x):
    """Returns o and dq of some rows of head h, in float64."""
    kv = h // (work.heads[0] // work.heads[1])
    q, do, k, v = (t.double() for t in (q[0, h, rows], do[0, h, rows], k[0, kv], v[0, kv]))
    s = q @ k.T * work.D**-0.5
    key = torch.arange(len(k), device=k.device)
    first = torch.tensor([0, *itertools.accumulate(work.lengths(len(k)))], device=k.device)
    first = first[torch.searchsorted(first, rows, right=True) - 1][:, None]  # of its sequence
    age = rows[:, None] - key
    hidden = (age < 0) | (key < first)
    if work.window:
        hidden |= (age >= work.window) & (key >= first + work.sink_size)
    s = s.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(s, 1, keepdim=True)
    p = torch.exp(s - (lse if x is None else torch.logaddexp(lse, x[h].double())))
    o = p @ v
    ds = p * (do @ v.T - (do * o).sum(1, keepdim=True))
    return o, ds @ k * work.D**-0.5


def _error(got, want) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def work(index: int, size: int, store: str, tokens: list[int], file: str, dtype, checked: int):
    """Run all checks and times in one of `size` processes; rank 0 writes them."""
    cuda = torch.cuda.is_available()
    rank = Rank(index, size, store, f"cuda:{index}" if cuda else "cpu")

    def tell(**line):
        if index == 0:
            with Path(file).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")
            print(*(f"{name} {x}" for name, x in line.items()), sep="; ", flush=True)
        torch.cuda.empty_cache()

    tell(gpus=size, **(measure.machine() if cuda else {}))
    for form in CHECKED:
        tell(**asdict(form), N=checked, errors=rank.check(form, checked, dtype))
    for N in sorted(tokens):
        for form in TIMED:
            tell(**asdict(form), N=N, errors=rank.check_rows(form, N, dtype))
            for who in ("alone", "ours", "torch"):
                if who == "torch" and (form.window or form.sequences > 1):
                    continue
                try:
                    tell(**asdict(form), N=N, who=who, **rank.times(form, N, who, dtype))
                except Exception as error:  # that a peer cannot is a result
                    if who != "torch":
                        raise
                    tell(**asdict(form), N=N, who=who, failed=str(error).splitlines()[0][:200])
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.context_parallel")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536, 131072, 262144])
    options = parser.parse_args()
    if torch.cuda.device_count() < options.gpus:
        print(f"error: want {options.gpus} CUDA GPUs; got {torch.cuda.device_count()}",
              file=sys.stderr)
        return 2
    file = str(Path(os.environ.get("OUT", "."), "context_parallel.jsonl").absolute())
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            work, (options.gpus, f"{folder}/store", options.tokens, file, torch.bfloat16, RAGGED),
            nprocs=options.gpus,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
