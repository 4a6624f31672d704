"""python -m tests.attacks.margin [--device cuda] [--jobs N]: how far right and wrong lie apart.

Every error as a multiple of its limit, so that 1 is the line: for each stage, dtype and family of
inputs the largest of any honest submission, and the smallest that got a mutant rejected there; and
for each stage the mutant whose largest error over all cases is the smallest.
"""

import argparse
import collections
import concurrent.futures
import multiprocessing
import os

from grader.stages import STAGES
from tests.attacks.catalogue import ROOT, Attack, attacks


def measure(job) -> tuple[Attack, str, dict[str, float]]:
    """-> the outcome, and for every case the largest error over its limit; inf for NaN."""
    import torch

    from tests.attacks.run import run

    torch.set_num_threads(1)
    attack, device, seed = job
    outcome = run(attack, device, seed, stop_early=False)
    found = {}
    for check in outcome.result.checks:
        ratios = [max(e["fro"] / e["fro_limit"], e["row"] / e["row_limit"])
                  for e in check.errors.values()]
        if ratios:
            found[check.name] = max(r if r == r else float("inf") for r in ratios)
    return attack, outcome.got, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.margin")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--stage", type=int, action="append")
    arguments = parser.parse_args()
    solved = [Attack("honest", f"problem_{n}", n, "the solved file",
                     (ROOT / f"problem_{n}.py").read_bytes(), ("pass",)) for n in STAGES]
    chosen = [attack for attack in [*solved, *attacks(["honest", "mutants"])]
              if attack.device in ("any", arguments.device)
              and (not arguments.stage or attack.stage in arguments.stage)]
    chosen.sort(key=lambda attack: -attack.stage)  # the longest first
    cases = {(n, case.name): case for n in STAGES
             for case in STAGES[n].cases(arguments.device, arguments.device == "cuda")}
    honest, nearest = collections.defaultdict(float), collections.defaultdict(lambda: float("inf"))
    subtlest = collections.defaultdict(lambda: (float("inf"), ""))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        jobs = [(attack, arguments.device, 0) for attack in chosen]
        for attack, got, found in pool.map(measure, jobs):
            right = attack.outcomes == ("pass",)
            if (got == "pass") != right:
                print(f"{attack.kind}/{attack.name}: got {got}")
            for name, ratio in found.items():
                case = cases[attack.stage, name]
                key = attack.stage, str(case.dtype).removeprefix("torch."), case.family
                if right:
                    honest[key] = max(honest[key], ratio)
                elif ratio > 1:
                    nearest[key] = min(nearest[key], ratio)
            if not right and found:
                subtlest[attack.stage] = min(subtlest[attack.stage],
                                             (max(found.values()), attack.id))
    print(f"{'stage':<6} {'dtype':<9} {'family':<8} {'honest at most':>14} {'rejected from':>14}")
    for key in sorted(honest):
        stage, dtype, family = key
        print(f"{stage:<6} {dtype:<9} {family:<8} {honest[key]:14.2f} {nearest[key]:14.2f}")
    for stage, (ratio, name) in sorted(subtlest.items()):
        print(f"stage {stage}: the subtlest mutant, {name}, is {ratio:.2f} times over a limit")


if __name__ == "__main__":
    main()
