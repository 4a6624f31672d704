"""python -m attacks.seeds [--stage N ...] [--only TEXT] [--seeds 50]: does a seed decide a verdict?

Each wrong submission runs with one seed until a case has an error FAR times its limit, also with
two more seeds; then no seed can save it.  For the others, every case that came near a limit runs
with the other seeds.  Prints one line each: with how many seeds it is wrong, and the least and the
largest, over the seeds, of its worst error over its limit.  --kind honest runs all cases with all
seeds.  On the CPU; compilation, wasted tiles and memory are not checked.  Exit code 1 if a verdict
changes from seed to seed.
"""

import argparse
import collections
import contextlib
import multiprocessing
import sys

import torch

from attacks.catalogue import ROOT, Attack, attacks
from grader.assignment import submission
from grader.course.calls import SubmissionError
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host.options import Options, open_session
from grader.host.processes import confinement
from grader.judge.verdict import judge

FAR = 10.0  # times its limit: other numbers do not make that right
NEAR = 0.3  # of its limit: other numbers may be over it
TIMEOUT = 60.0


class Asked:
    """A file in a worker, which is replaced if it dies."""

    def __init__(self, attack: Attack):
        self.stage, self.source, self.session = STAGES[attack.stage], attack.source, None
        self.options = Options(ROOT, "cpu", 0, TIMEOUT, confinement=confinement((ROOT,)))

    def cases(self) -> list[Case]:
        """The cases that decide."""
        asked = listed(self.stage.number, "cpu", False)
        course = bool(submission.steps(self.source.decode()))
        return [case for case in asked if case.group != "beyond" and (course or not case.course)]

    def error(self, case: Case, seed: int) -> float:
        """The largest error over its limit; inf if there is no number, or another fault."""
        try:
            if self.session is None or self.session.gone:
                self.close()
                self.session = open_session(self.stage, self.options, self.source)
                self.session.load(self.stage.entry, self.stage.attribute, self.stage.positional)
            built = build(case, seed)
            check, _ = judge(self.stage, built, self.session.run(built.call), "cpu")
        except SubmissionError:
            return float("inf")
        found = [max(e["fro"] / e["fro_limit"], e["row"] / e["row_limit"])
                 for e in check.errors.values()]
        worst = max(found, default=0.0) if all(x == x for x in found) else float("inf")
        return worst if check.outcome == "pass" or worst > 1 else float("inf")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


def over_seeds(job: tuple[Attack, int]) -> tuple[Attack, list[float], str]:
    """-> the attack; for each seed used, the worst error over its limit; the case of it."""
    attack, seeds = job
    torch.set_num_threads(1)
    with contextlib.closing(Asked(attack)) as asked:
        honest, first = attack.outcomes == ("pass",), {}
        for case in asked.cases():
            first[case] = asked.error(case, 0)
            if not honest and first[case] >= FAR and all(
                    asked.error(case, seed) >= FAR for seed in (1, 2)):
                return attack, [first[case]], case.name
        likely = sorted((case for case in first if honest or first[case] >= NEAR),
                        key=first.get, reverse=True)
        worst, where = [max(first.values())], collections.Counter(
            {max(first, key=first.get).name: 1})
        for seed in range(1, seeds):
            found = {}
            for case in likely:
                found[case] = asked.error(case, seed)
                if found[case] > 1 and not honest:
                    break
            worst.append(max(found.values(), default=0.0))
            where[max(found, key=found.get).name if found else "-"] += 1
        return attack, worst, where.most_common(1)[0][0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.seeds")
    parser.add_argument("--kind", choices=("mutants", "honest"), default="mutants")
    parser.add_argument("--stage", type=int, action="append", choices=STAGES)
    parser.add_argument("--only", default="", help="entries with this text in their name")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    arguments = parser.parse_args()
    jobs = [(attack, arguments.seeds) for attack in attacks((arguments.kind,))
            if arguments.only in attack.name and attack.device in ("any", "cpu")
            and (not arguments.stage or attack.stage in arguments.stage)
            and (arguments.kind == "honest" or attack.outcomes != ("pass",))]
    far = changing = 0
    print(f"{'submission':<44} wrong in    least  largest  mostly in")
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for attack, worst, where in pool.imap_unordered(over_seeds, jobs):
            if len(worst) == 1 < arguments.seeds:
                far += 1
                continue
            wrong = sum(ratio > 1 for ratio in worst)
            changing += 0 < wrong < len(worst)
            print(f"{attack.name:<44} {wrong:3d} of {len(worst):3d} {min(worst):8.2f} "
                  f"{max(worst):8.2f}  {where}", flush=True)
    print(f"{len(jobs)} submissions; {far} are {FAR:g} times over a limit; {changing} get another "
          "verdict with another seed")
    return 1 if changing else 0


if __name__ == "__main__":
    sys.exit(main())
