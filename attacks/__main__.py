"""python -m attacks [--kind K ...] [--stage N] [--only TEXT] [--seeds 20] [--jobs N]

Runs the catalogue and prints one line per entry: its name, the outcome it must get, the one it got,
seconds.  Exit code 0 if all agree.  With --results FILE a run that was cut short is resumed; from
that file python -m attacks.margin computes how far right and wrong are apart.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path

import torch

from attacks.catalogue import KINDS, attacks
from attacks.run import run_job
from grader.host.gpu_slots import GRADING_GIB


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--stage", type=int, action="append")
    parser.add_argument("--only", default="", help="entries with this text in their name")
    parser.add_argument("--every", type=int, default=1, help="only each N-th entry of a kind")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--needs-gpu", action="store_true", help="only what makes sense on a GPU")
    parser.add_argument("--seeds", type=int, default=1, help="runs of every honest entry")
    parser.add_argument("--jobs", type=int,
                        help="at a time; default: one a core, and what the GPU has memory for")
    parser.add_argument("--whole", action="store_true",
                        help="destructive entries through the command line, beside another stage")
    parser.add_argument("--every-case", action="store_true",
                        help="ask all, not up to the first that fails")
    parser.add_argument("--failures", action="store_true", help="print only what went wrong")
    parser.add_argument("--results", type=Path,
                        help="add a line of JSON a run there; runs that are there are not repeated")
    parser.add_argument("--limit", type=float, default=float("inf"),
                        help="start nothing new after so many seconds; in random order")
    parser.add_argument("--share", type=share, default=(0, 1), metavar="I/N",
                        help="only the I-th of N shares of the runs, for several GPUs or machines")
    arguments = parser.parse_args()
    chosen = [attack for attack in attacks(arguments.kind or KINDS)
              if attack.device in (arguments.device, "any")[:1 if arguments.needs_gpu else 2]
              and arguments.only in attack.name
              and (not arguments.stage or attack.stage in arguments.stage)]
    chosen = [attack for kind in KINDS
              for attack in [one for one in chosen if one.kind == kind][::arguments.every]]
    done = read(arguments.results, arguments.device)
    which, shares = arguments.share
    jobs = [(attack, arguments.device, seed, arguments.whole, arguments.every_case)
            for attack in chosen
            for seed in range(arguments.seeds if attack.kind == "honest" else 1)
            if (attack.kind, attack.name, seed) not in done]
    if arguments.limit < float("inf"):
        random.Random(0).shuffle(jobs)
    jobs = jobs[which::shares]
    width = arguments.jobs or _at_a_time(arguments.device)
    bad, ran, counts, start = 0, 0, {}, time.monotonic()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(width, mp_context=context) as pool:
        print(f"{'attack':<52} {'must get':<25} {'got':<12} {'s':>5}")
        for attack, seed, outcome in _finished(pool, jobs, width, start + arguments.limit):
            ran += 1
            passed, total = counts.get(attack.kind, (0, 0))
            counts[attack.kind] = passed + (not outcome.problem), total + 1
            bad += bool(outcome.problem)
            if arguments.results:
                with open(arguments.results, "a", encoding="utf-8") as file:
                    print(json.dumps(row(attack, seed, outcome, arguments.device)), file=file)
            if arguments.failures and not outcome.problem:
                continue
            name = f"{attack.kind}/{attack.name}" + (f" seed {seed}" if seed else "")
            print(f"{name:<52} {'/'.join(attack.outcomes):<25} {outcome.got:<12} "
                  f"{outcome.seconds:5.1f}", flush=True)
            if outcome.problem:
                print(f"    PROBLEM: {outcome.problem}\n    said: {outcome.said}", flush=True)
    for kind, (passed, total) in counts.items():
        print(f"{kind}: {passed} of {total} as they must")
    print(f"{ran} of {len(jobs)} runs on {arguments.device}, {time.monotonic() - start:.0f} s"
          + (f"; {len(done)} before" if done else ""))
    return 1 if bad else 0


def share(text: str) -> tuple[int, int]:
    """ "2/4" -> (1, 4): the first run, and the step to the next."""
    which, slash, shares = text.partition("/")
    if not (slash and which.isdecimal() and shares.isdecimal() and 1 <= int(which) <= int(shares)):
        raise argparse.ArgumentTypeError(f"want I/N with 1 <= I <= N, e.g. 2/4; got {text}")
    return int(which) - 1, int(shares)


def read(file: Path | None, device: str) -> dict[tuple, dict]:
    """The rows of a results file with the right outcome: (kind, name, seed) -> row."""
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return {(found["kind"], found["name"], found["seed"]): found for found in rows
            if found["device"] == device and not found["problem"]}


def row(attack, seed: int, outcome, device: str) -> dict:
    """A run's row in --results.  errors: the largest error over its limit per case, inf for NaN;
    failed: the cases that did not pass."""
    errors, failed = {}, []
    for check in outcome.result.checks if outcome.result else ():
        ratios = [max(e["fro"] / e["fro_limit"], e["row"] / e["row_limit"])
                  for e in check.errors.values()]
        failed += [check.name] * (check.outcome != "pass")
        if ratios:
            errors[check.name] = max(r if r == r else float("inf") for r in ratios)
    return {"kind": attack.kind, "name": attack.name, "stage": attack.stage, "seed": seed,
            "device": device, "want": list(attack.outcomes), "got": outcome.got,
            "seconds": round(outcome.seconds, 2), "problem": outcome.problem,
            "said": outcome.said, "errors": errors, "failed": failed}


def _at_a_time(device: str) -> int:
    cores = os.cpu_count() or 1
    if device == "cpu":
        return cores
    return max(1, min(cores, int(torch.cuda.mem_get_info()[0] / 2**30 / GRADING_GIB)))


def _finished(pool, jobs: list, width: int, deadline: float):
    """The results of run_job, as they come; after the deadline nothing new is begun."""
    waiting, running = list(reversed(jobs)), set()
    while waiting or running:
        while waiting and len(running) < width and time.monotonic() < deadline:
            running.add(pool.submit(run_job, waiting.pop()))
        if not running:
            return
        done, running = concurrent.futures.wait(
            running, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            yield future.result()


if __name__ == "__main__":
    sys.exit(main())
