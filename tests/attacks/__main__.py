"""python -m tests.attacks [--kind K ...] [--stage N] [--only TEXT] [--seeds 20] [--jobs N]

Runs the catalogue and prints a line an entry: what it is, what it must get, what it got, seconds.
Exit code 0 if every one got what it must.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import time

from tests.attacks.catalogue import KINDS, attacks
from tests.attacks.run import run_job


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--stage", type=int, action="append")
    parser.add_argument("--only", default="", help="entries with this text in their name")
    parser.add_argument("--every", type=int, default=1, help="only each N-th entry of a kind")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=1, help="runs of every honest entry")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--whole", action="store_true",
                        help="destructive entries through the command line, beside another stage")
    parser.add_argument("--failures", action="store_true", help="print only what went wrong")
    parser.add_argument("--json", help="write the matrix there too")
    arguments = parser.parse_args()
    chosen = [attack for attack in attacks(arguments.kind or KINDS)
              if attack.device in ("any", arguments.device) and arguments.only in attack.name
              and (not arguments.stage or attack.stage in arguments.stage)]
    chosen = [attack for kind in KINDS
              for attack in [one for one in chosen if one.kind == kind][::arguments.every]]
    jobs = [(attack, arguments.device, seed, arguments.whole)
            for attack in chosen
            for seed in range(arguments.seeds if attack.kind == "honest" else 1)]
    bad, counts, rows, start = 0, {}, [], time.monotonic()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        print(f"{'attack':<52} {'must get':<16} {'got':<12} {'s':>5}")
        for attack, seed, outcome in pool.map(run_job, jobs):
            passed, total = counts.get(attack.kind, (0, 0))
            counts[attack.kind] = passed + (not outcome.problem), total + 1
            known = attack.known if outcome.got == "pass" else ""
            bad += bool(outcome.problem) and not known
            name = f"{attack.kind}/{attack.name}" + (f" seed {seed}" if seed else "")
            rows.append({"attack": name, "tries": attack.tries, "want": list(attack.outcomes),
                         "got": outcome.got, "seconds": round(outcome.seconds, 2),
                         "problem": outcome.problem, "said": outcome.said, "open": known})
            if arguments.failures and (known or not outcome.problem):
                continue
            print(f"{name:<52} {'/'.join(attack.outcomes):<16} {outcome.got:<12} "
                  f"{outcome.seconds:5.1f}", flush=True)
            if known:
                print(f"    OPEN: {known}", flush=True)
            elif outcome.problem:
                print(f"    PROBLEM: {outcome.problem}\n    said: {outcome.said}", flush=True)
    for kind, (passed, total) in counts.items():
        print(f"{kind}: {passed} of {total} as they must")
    print(f"{len(jobs)} runs on {arguments.device}, {time.monotonic() - start:.0f} s")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
