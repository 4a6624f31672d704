"""python -m benchmarks.picks: how much slower than the better kernel is sink_attn.attention's pick?

Needs a Hopper GPU.  Times plain Triton and Gluon, forward and backward, on shapes that the table in
sink_attn/policy.py was not made from.  One line of JSON per shape is appended to picks.jsonl, in
the folder $OUT or else the current one: ms of each kernel, the pick, and by how many percent it is
slower than the better one.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.peers import PEERS, make_tensors
from benchmarks.workloads import Workload
from sink_attn import policy

KERNELS = {"fast": "triton", "gluon": "gluon"}  # peers, as sink_attn.attention calls them
DIRECTIONS = ("forward", "backward")
ROUNDS = 7  # of all four, each in a new random order
SECONDS = 240  # no shape is started after this time

# B, HQ, HKV, N, D, causal, window, sink logits; the shapes of results/h200 are others.
SHAPES = [
    (1, 20, 20, 5120, 128, False, None, False),
    (4, 32, 8, 1536, 128, False, None, False),
    (1, 28, 4, 7000, 128, False, None, False),
    (1, 16, 16, 14336, 128, False, None, False),
    (4, 20, 20, 1792, 128, True, None, False),
    (8, 12, 12, 768, 128, True, None, False),
    (2, 40, 8, 2560, 128, True, None, False),
    (1, 48, 8, 3584, 128, True, None, False),
    (1, 32, 4, 7168, 128, True, None, True),
    (1, 24, 8, 14000, 128, True, None, False),
    (1, 64, 8, 9216, 128, True, 320, False),
    (3, 24, 8, 5120, 128, True, 640, False),
    (1, 40, 8, 15360, 128, True, 1280, False),
    (1, 32, 8, 20000, 128, True, 3072, True),
    (2, 24, 24, 7168, 128, True, 96, False),
    (1, 64, 8, 6000, 128, True, 200, True),
    (8, 16, 16, 640, 64, False, None, False),
    (4, 12, 12, 2560, 64, False, None, False),
    (2, 20, 20, 3500, 64, False, None, False),
    (1, 24, 8, 12288, 64, False, None, False),
    (16, 12, 12, 768, 64, True, None, False),
    (3, 32, 8, 3072, 64, True, None, False),
    (2, 16, 4, 6144, 64, True, None, False),
    (1, 32, 8, 9000, 64, True, None, True),
    (1, 28, 4, 20480, 64, True, None, False),
    (1, 40, 8, 9216, 64, True, 384, False),
    (1, 64, 8, 14336, 64, True, 768, True),
    (2, 24, 8, 10240, 64, True, 3000, False),
    (1, 64, 8, 7168, 64, True, 160, True),
    (2, 32, 8, 8192, 64, True, 1536, False),
]


def works(shape: tuple) -> list[Workload]:
    """Returns the forward and the backward of a shape."""
    B, HQ, HKV, N, D, causal, window, logits = shape
    return [
        Workload("pick", 9, B, HQ, HKV, N, D, causal, window, sink_logits=logits, direction=each)
        for each in DIRECTIONS
    ]


def timed(shape: tuple) -> dict:
    """Time both kernels in both directions.

    Returns:
        The shape, and per direction: ms of "triton" and of "gluon", pick, and behind, in percent.
    """
    runs = {}
    for work in works(shape):
        tensors = make_tensors(work)
        for peer, kernel in KERNELS.items():
            run = measure.prepared(work, PEERS[peer].build(work, tensors, None))
            run()  # compiles
            runs[work.direction, kernel] = run
    times = measure.medians(runs, ROUNDS)
    line = {"shape": work.shape}
    for direction in DIRECTIONS:
        ms = {kernel: times[direction, kernel] for kernel in KERNELS.values()}
        pick = policy.pick(
            direction, work.B * work.HKV, work.N, work.D, work.causal, work.window)
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
