"""python -m benchmarks.picks: how far the pick of fast.attention is behind the better kernel.

On a Hopper.  Times plain Triton and Gluon, forward and backward, on shapes that the table in
fast/policy.py was not made from.  A line of JSON a shape goes to $OUT/picks.jsonl, without OUT to
the folder it is called from, as soon as it is timed: ms of each kernel, the pick, and its per cent
behind the better one.
"""

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.peers import PEERS, make_tensors
from benchmarks.workloads import Workload
from fast import policy

KERNELS = {"fast": "triton", "gluon": "gluon"}  # peers, as fast.attention calls them
DIRECTIONS = ("forward", "backward")
ROUNDS = 7  # of all four, in an order of their own
SECONDS = 240  # no shape is begun later

# B, HQ, HKV, N, D, causal, window, sink logits; the shapes of results/h200 are others.
SHAPES = [
    (2, 24, 24, 3072, 128, False, None, False),
    (8, 16, 4, 1024, 128, False, None, False),
    (1, 40, 8, 6144, 128, False, None, False),
    (1, 12, 12, 12000, 128, False, None, False),
    (2, 24, 24, 3072, 128, True, None, False),
    (16, 16, 16, 512, 128, True, None, False),
    (6, 28, 4, 2048, 128, True, None, False),
    (1, 64, 8, 5000, 128, True, None, False),
    (1, 40, 8, 10240, 128, True, None, True),
    (1, 16, 2, 24576, 128, True, None, False),
    (2, 32, 8, 6144, 128, True, 256, False),
    (2, 32, 8, 6144, 128, True, 512, False),
    (1, 32, 4, 12288, 128, True, 1024, False),
    (1, 24, 8, 20480, 128, True, 2048, True),
    (2, 32, 8, 6144, 128, True, 128, False),
    (2, 64, 8, 4096, 128, True, 128, True),
    (16, 12, 12, 512, 64, False, None, False),
    (6, 20, 20, 1536, 64, False, None, False),
    (4, 24, 24, 3000, 64, False, None, False),
    (1, 32, 8, 10240, 64, False, None, False),
    (12, 12, 12, 1024, 64, True, None, False),
    (4, 25, 25, 2048, 64, True, None, False),
    (2, 32, 8, 5000, 64, True, None, False),
    (1, 64, 8, 12288, 64, True, None, True),
    (1, 14, 2, 32768, 64, True, None, False),
    (2, 32, 8, 6144, 64, True, 256, False),
    (1, 64, 8, 10240, 64, True, 512, True),
    (1, 32, 4, 16384, 64, True, 2048, False),
    (2, 64, 8, 4096, 64, True, 128, True),
    (4, 16, 16, 4096, 64, True, 100, False),
]


def works(shape: tuple) -> list[Workload]:
    """Its forward and its backward."""
    B, HQ, HKV, N, D, causal, window, logits = shape
    return [
        Workload("pick", 9, B, HQ, HKV, N, D, causal, window, sink_logits=logits, direction=each)
        for each in DIRECTIONS
    ]


def timed(shape: tuple) -> dict:
    """Both kernels of both directions in turn -> the line of this shape."""
    from triton.testing import do_bench

    runs = {}
    for work in works(shape):
        tensors = make_tensors(work)
        for peer, kernel in KERNELS.items():
            run = measure.prepared(work, PEERS[peer].build(work, tensors, None))
            run()  # compiles
            runs[work.direction, kernel] = run
    rounds = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key in random.sample(list(runs), len(runs)):
            time.sleep(measure.NAP_S)
            rounds[key].append(do_bench(
                runs[key], warmup=measure.WARMUP_MS, rep=measure.REP_MS, return_mode="median"))
    line = {"shape": work.shape}
    for direction in DIRECTIONS:
        ms = {kernel: statistics.median(rounds[direction, kernel]) for kernel in KERNELS.values()}
        pick = policy.pick(direction, work.N, work.D, work.causal, work.window)
        behind = 100 * (ms[pick] / min(ms.values()) - 1)
        line[direction] = ms | {"pick": pick, "behind": round(behind, 2)}
    return line


def main() -> int:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("error: want a GPU of compute capability 9.0 (Hopper); got none", file=sys.stderr)
        return 2
    start, worst, told = time.monotonic(), {direction: (0.0, "") for direction in DIRECTIONS}, 0
    random.seed(0)
    print(measure.machine())
    with Path(os.environ.get("OUT", "."), "picks.jsonl").open("a", encoding="utf-8") as file:
        for shape in SHAPES:
            if time.monotonic() - start > SECONDS:
                break
            line = timed(shape)
            file.write(json.dumps(line) + "\n")
            file.flush()
            told += 1
            print(line["shape"], *(
                f"{direction}: {each['pick']}, Triton {each['triton']:.3f} ms, Gluon "
                f"{each['gluon']:.3f} ms, {each['behind']:.1f} % behind"
                for direction in DIRECTIONS for each in [line[direction]]
            ), sep="; ", flush=True)
            for direction in DIRECTIONS:
                found = line[direction]["behind"], line["shape"]
                worst[direction] = max(worst[direction], found)
    for direction, (behind, shape) in worst.items():
        print(f"{direction}: at most {behind:.1f} % behind the better kernel ({shape})")
    print(f"{told} of {len(SHAPES)} shapes, {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
