"""Time training steps with one attention implementation: one line of JSON per length.

python -m examples.gpt_oss.measure starts one such process per implementation, so that none inherits
another's memory or compiled code, and none takes another with it when it dies.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import torch

from examples.gpt_oss.model import DTYPES, SIZES, build
from examples.gpt_oss.text import Text, packing, read_text
from examples.gpt_oss.train import optimizer_of, train_step

GIB = 2**30
WARMUPS = 2  # steps before the clock runs: compiling, the optimizer's state
PROBE = {"repeats": 1, "warmups": 1}  # to see only whether a row fits; a step may take a minute
REFINEMENTS = 3  # halvings of the gap between the longest row that fits and the shortest that fails


def one_length(model, optimizer, text: Text, N: int, repeats: int,
               warmups: int = WARMUPS, mean: int = 0) -> dict:
    """Time steps on one row of N tokens.

    Args:
        repeats, warmups: timed steps, and steps before them.
        mean: average tokens per packed sequence; 0: the row is one sequence.

    Returns:
        ms (median), spread_ms (largest minus smallest), and peak_gib: the most that PyTorch held at
        once, weights and optimizer included; None on a CPU.
    """
    device = model.device.type
    ids = text.batch(0, 1, N, seed=0, device=device)
    packed = packing(N, mean, device) if mean else {}
    for _ in range(warmups):
        train_step(model, optimizer, ids, 1e-6, **packed)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        train_step(model, optimizer, ids, 1e-6, **packed).item()  # waits for the loss ...
        if device == "cuda":
            torch.cuda.synchronize()  # ... and for the update after it
        times.append(1e3 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() / GIB if device == "cuda" else None
    return {"ms": statistics.median(times), "spread_ms": max(times) - min(times), "peak_gib": peak}


def try_length(model, optimizer, text: Text, N: int, repeats: int, **more) -> dict:
    """Returns what one_length does, or out_of_memory, or failed with the exception's text."""
    torch._dynamo.reset()  # compile for this length alone, as in a run that has one length
    try:
        result = one_length(model, optimizer, text, N, repeats, **more)
    except torch.OutOfMemoryError:
        result = {"out_of_memory": True}
    except Exception as failure:
        result = {"failed": f"{type(failure).__name__}: {failure}"[:500]}
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return result


def sweep(measure, probe, lengths: list[int], longest: int):
    """Measure every length up to the first that fails, then search for the longest that fits.

    Args:
        measure, probe: functions of N that return a result, for lengths and in the search.
        longest: where the search stops doubling; no search if it is at most the last of lengths.

    Yields:
        (N, result); results of the search have search=True.
    """
    fits, fails = 0, None
    for N in lengths:
        result = measure(N)
        yield N, result
        if "ms" not in result:
            fails = N
            break
        fits = N
    if longest <= lengths[-1] or (fails is not None and not result.get("out_of_memory")):
        return
    while fails is None and 2 * fits <= longest:
        result = probe(2 * fits)
        yield 2 * fits, result | {"search": True}
        if "ms" in result:
            fits *= 2
        elif result.get("out_of_memory"):
            fails = 2 * fits
        else:
            return
    step = max(1024, (fails or 0) // 64)
    for _ in range(REFINEMENTS if fails is not None else 0):
        middle = (fits + fails) // 2 // step * step
        if not fits < middle < fails:
            return
        result = probe(middle)
        yield middle, result | {"search": True}
        fits, fails = (middle, fails) if "ms" in result else (fits, middle)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.gpt_oss.steps")
    parser.add_argument("--attn", required=True)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--lengths", type=int, nargs="+", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--longest", type=int, required=True)
    parser.add_argument("--packed", type=int, default=0)
    options = parser.parse_args(argv)
    try:
        model = build(options.size, options.attn, dtype=DTYPES[options.dtype],
                      device=options.device, seed=0).train()
    except ImportError as missing:  # an attention that is not installed
        print(json.dumps({"attn": options.attn, "N": options.lengths[0],
                          "failed": str(missing).splitlines()[0]}))
        return 0
    optimizer, text = optimizer_of(model), Text(read_text())

    def measure(N: int) -> dict:
        return try_length(model, optimizer, text, N, options.repeats, mean=options.packed)

    def probe(N: int) -> dict:
        return try_length(model, optimizer, text, N, **PROBE, mean=options.packed)

    for N, result in sweep(measure, probe, options.lengths, options.longest):
        print(json.dumps({"attn": options.attn, "N": N} | result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
