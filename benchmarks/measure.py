"""Measure one workload on one GPU: errors, memory per call, and times.

All implementations are timed in turn, in several rounds, with a pause before each measurement:
without it the chip heats up and lowers its clock, and whoever comes last is up to a tenth slower.
"""

import gc
import math
import multiprocessing
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict

import torch

from benchmarks.peers import OWN, PEERS, Call, Tensors, Unsupported, make_tensors
from benchmarks.workloads import Workload, floor, tiny

NAP_S = 0.03
WARMUP_MS, REP_MS = 10, 30  # of each measurement
LIMIT = 2e-2  # largest relative error of a right answer in bfloat16
ONE_ROUND_MS = 20.0  # a naive call slower than this is timed once
CHUNK = 1024  # queries of one head whose scores the check keeps at once
MIB = 2**20


class GpuLost(Exception):
    """A kernel failed in a way that leaves this process unable to use the GPU."""


def machine() -> dict:
    """Returns what the times depend on: name of the GPU, driver, versions."""
    import triton

    return {"gpu": torch.cuda.get_device_name(), "driver": _driver(),
            "torch": torch.__version__, "triton": triton.__version__}


def measure(work: Workload, names: list[str], options) -> dict:
    """Check and time implementations of one workload.

    Args:
        work: the workload.
        names: keys of PEERS.
        options: the command line's; rounds, and what the peers' builders read.

    Returns:
        The record that results.json keeps: work's fields and costs, seconds, and for each name an
        entry.  It has ms (median over rounds), rounds (ms of each), error (relative: our own
        against float32, the others against fast; None if not finite, or if fast has no answer) and
        extra_mib (peak of one call minus what was allocated before); or skipped, with the reason;
        or failed, with the text of the exception.

    Raises:
        GpuLost: a kernel failed so badly that nothing more can be timed.
    """
    start = time.monotonic()
    tensors = make_tensors(work)
    entries, runs, want = {}, {}, None
    for name in names:
        entries[name] = entry = {}
        if reason := PEERS[name].cannot(work, options):
            entry["skipped"] = reason
            continue

        def prepare(name=name, entry=entry):
            nonlocal want
            call = PEERS[name].build(work, tensors, options)
            run = prepared(work, call)
            got = [t if t is None else call.restore(t) for t in run()]
            if name == "fast":
                want = got
            if name in OWN:
                found = error_against_truth(work, tensors, got)
            else:
                found = math.inf if want is None else error(got, want)
            entry["error"] = found if math.isfinite(found) else None
            if any(t is None for t in got):
                entry["note"] = "no gradient for the sink logits"
            del got
            entry["extra_mib"] = extra_mib(run)
            runs[name] = run

        _guarded(entry, prepare)
        _free()
    want = None
    for _ in range(options.rounds):
        for name in list(runs):
            _guarded(entries[name], lambda name=name: _one_round(runs[name], entries[name]))
            slow = name == "naive" and entries[name].get("rounds", [0])[0] > ONE_ROUND_MS
            if slow or "rounds" not in entries[name]:
                del runs[name]
                _free()
    for entry in entries.values():
        if "rounds" in entry:
            entry["ms"] = statistics.median(entry["rounds"])
    runs.clear()
    _free()
    bound = floor(work, torch.cuda.get_device_name())
    return {"label": work.label, **asdict(work), "shape": work.shape, "pairs": work.pairs(),
            "flops": work.flops(), "exponentials": work.exponentials(), "bytes": work.bytes(),
            "floor_ms": bound and bound[0], "bound": bound and bound[1],
            "seconds": time.monotonic() - start, "peers": entries}


def prepared(work: Workload, call: Call) -> Callable[[], tuple]:
    """Returns the function that is timed, without arguments.

    It returns (o,), or the gradients of the inputs, None where a peer computes none.
    """
    if not work.is_backward:
        def run():
            with torch.no_grad():
                return (call.attend(*call.inputs),)
    else:
        o = call.attend(*call.inputs)

        def run():
            return torch.autograd.grad(
                o, call.inputs, call.do, retain_graph=True, allow_unused=True)
    return run


def medians(runs: dict, rounds: int) -> dict:
    """Time functions without arguments in turn, in a new random order in every round.

    Returns:
        The median over rounds of each, in ms.
    """
    times = {key: [] for key in runs}
    for _ in range(rounds):
        for key in random.sample(list(runs), len(runs)):
            times[key].append(_ms(runs[key]))
    return {key: statistics.median(ms) for key, ms in times.items()}


def extra_mib(run: Callable) -> float:
    """Returns the peak MiB of one call, outputs included, minus what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = run()
    torch.cuda.synchronize()
    del outputs
    return (torch.cuda.max_memory_allocated() - before) / MIB


def host_us(run: Callable, calls: int = 1000, repeats: int = 3) -> float:
    """Returns the microseconds the CPU needs to enqueue one call, the best of some repeats.

    Only for calls that take the GPU less time than the CPU; otherwise the queue fills up, and the
    wait for it is timed.
    """
    best = math.inf
    for repeat in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls if repeat else 20):  # the first repeat warms up
            run()
        if repeat:
            best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return 1e6 * best / calls


def host_costs(stages: list[int], names: list[str], options) -> dict:
    """Measure host_us of tiny calls.

    Returns:
        {"stage 3": {"stages": entry, ...}, ...}; an entry has us, skipped or failed.
    """
    costs = {}
    for stage in stages:
        work = tiny(stage)
        tensors = make_tensors(work)
        costs[f"stage {stage}"] = entries = {name: {} for name in names}
        for name, entry in entries.items():
            if reason := PEERS[name].cannot(work, options):
                entry["skipped"] = reason
                continue

            def measure_host(name=name, entry=entry, work=work, tensors=tensors):
                run = prepared(work, PEERS[name].build(work, tensors, options))
                entry["us"] = host_us(run)

            _guarded(entry, measure_host)
    return costs


def warm(works: list[Workload], names: list[str], options, processes: int) -> None:
    """Compile every kernel once, in parallel, so that the timing finds it in the disk caches."""
    context = multiprocessing.get_context("spawn")
    names = [name for name in names if name != "naive"]
    # What fails here fails again, and is recorded, when it is timed.
    with ProcessPoolExecutor(processes, mp_context=context) as pool, suppress(BrokenExecutor):
        for future in [pool.submit(_warm_one, work, names, options) for work in works]:
            future.exception()


def _warm_one(work: Workload, names: list[str], options) -> None:
    tensors = make_tensors(work)
    for name in names:
        if not PEERS[name].cannot(work, options):
            def once(name=name):
                prepared(work, PEERS[name].build(work, tensors, options))()

            _guarded({}, once)
    _free()


# -------------------------------------------------------------- right or wrong
def error(got: list, want: list) -> float:
    """Returns the largest relative Frobenius error of pairs of tensors, without None in got."""
    return max(_relative(x, y) for x, y in zip(got, want, strict=True) if x is not None)


def _relative(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x.float(), y.float()
    value = ((x - y).norm() / y.norm()).item()
    return value if math.isfinite(value) else math.inf


def error_against_truth(work: Workload, tensors: Tensors, got: list) -> float:
    """Returns our own relative error against float32, in the first and the last group of heads."""
    group = work.HQ // work.HKV
    worst = 0.0
    for b, kv_head in {(0, 0), (work.B - 1, work.HKV - 1)}:
        heads = slice(kv_head * group, (kv_head + 1) * group)
        want = truth(work, tensors, b, kv_head)
        mine = [got[0][b, heads]]
        if work.is_backward:
            mine += [got[1][b, kv_head], got[2][b, kv_head]]
        worst = max(worst, error(mine, want))
    return worst


def truth(work: Workload, tensors: Tensors, b: int, kv_head: int) -> list[torch.Tensor]:
    """Compute naive attention for one batch entry and one key/value head, CHUNK rows at a time.

    Returns:
        [o (group, N, D)], or for a backward [dq (group, N, D), dk (N, D), dv (N, D)], in float32.
    """
    group, scale = work.HQ // work.HKV, 1.0 / math.sqrt(work.D)
    k, v = tensors.k[b, kv_head].float(), tensors.v[b, kv_head].float()
    out = torch.empty(group, work.N, work.D, device=k.device)  # o, or dq
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    keys = torch.arange(work.N, device=k.device)
    for g in range(group):
        h = kv_head * group + g
        for start in range(0, work.N, CHUNK):
            rows = slice(start, start + CHUNK)
            q = tensors.q[b, h, rows].float()
            s = (q @ k.T * scale).masked_fill(~work.visible(keys[rows, None], keys), -torch.inf)
            lse = torch.logsumexp(s, dim=1, keepdim=True)
            if tensors.sinks is not None:
                lse = torch.logaddexp(lse, tensors.sinks[h].float())
            p = torch.exp(s - lse)
            if not work.is_backward:
                out[g, rows] = p @ v
                continue
            do = tensors.do[b, h, rows].float()
            dp = do @ v.T
            ds = p * (dp - (p * dp).sum(dim=1, keepdim=True))
            out[g, rows] = ds @ k * scale
            dk += ds.T @ q * scale
            dv += p.T @ do
    return [out, dk, dv] if work.is_backward else [out]


# ------------------------------------------------------------------ helpers
def _one_round(run: Callable, entry: dict) -> None:
    entry.setdefault("rounds", []).append(_ms(run))


def _ms(run: Callable) -> float:
    from triton.testing import do_bench

    time.sleep(NAP_S)
    return do_bench(run, warmup=WARMUP_MS, rep=REP_MS, return_mode="median")


def _guarded(entry: dict, action: Callable) -> None:
    """Run action and record an exception in entry; only a lost GPU ends the run."""
    try:
        action()
    except Unsupported as reason:
        entry["skipped"] = str(reason)
    except torch.OutOfMemoryError:
        entry.pop("rounds", None)
        entry["skipped"] = "memory"
    except Exception as failure:
        entry.pop("rounds", None)
        entry["failed"] = f"{type(failure).__name__}: {failure}"[:500]
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise GpuLost(entry["failed"]) from lost


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().split("\n")[0] or None
