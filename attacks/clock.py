"""python -m attacks.clock [--stage N ...]: compares the grader's clock with CUDA events.

For the solved stages at the benchmark's two shapes it prints ms per call as the grader measures
them, from outside the process that runs the file, and by CUDA events in a trusted process.  For an
honest file they agree; the grader uses only the first.
"""

import argparse
import importlib
import statistics

import torch

from attacks.catalogue import ROOT
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host import processes, worker_pool
from grader.host.processes import Worker
from grader.host.session import Session
from grader.judge import timing

CALLS, ROUNDS = 50, 5


def by_events(stage, case) -> float:
    """Median ms per call."""
    found = getattr(importlib.import_module(f"problem_{stage.number}"), stage.entry)
    function = found if stage.attribute is None else getattr(found, stage.attribute)
    built = build(case, 0)
    tensors = {name: t.cuda() for name, t in built.tensors.items()}
    for name in case.grads:
        tensors[name].requires_grad_()
    dout = None if built.dout is None else built.dout.cuda()
    kwargs = built.call.kwargs
    args = [tensors[arg[1:]] if isinstance(arg, str) else arg for arg in built.call.args]

    def once():
        result = function(*args, **kwargs)
        if case.grads:
            torch.autograd.grad(result, [tensors[name] for name in case.grads], dout)

    found = []
    for _ in range(1 + ROUNDS):  # the first compiles
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        once()
        start.record()
        for _ in range(CALLS):
            once()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / CALLS)
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attacks.clock")
    parser.add_argument("--stage", type=int, nargs="+", choices=STAGES, default=list(STAGES))
    stages = parser.parse_args().stage
    confined = processes.confinement((ROOT,))
    replay = worker_pool.workers("cuda", 60.0, confined).replay
    print(f"{'stage':<5} {'case':<44} {'outside ms':>10} {'events ms':>10} {'ratio':>6}")
    for number in stages:
        stage = STAGES[number]
        source = (ROOT / stage.filename).read_bytes()
        with Session(Worker(source, stage.filename, device="cuda", interpret=False,
                            confinement=confined), 60.0) as session:
            session.load(stage.entry, stage.attribute, stage.positional)
            for case in timing.shapes(stage):
                row, _ = timing._measure_submission(stage, session, replay, build(case, 0))
                name = case.name.removeprefix("standard/")
                if row.ms is None:
                    print(f"{number:<5} {name:<44} {row.note:>10}")
                    continue
                events = by_events(stage, case)
                print(f"{number:<5} {name:<44} {row.ms:10.4f} {events:10.4f} "
                      f"{row.ms / events:6.3f}", flush=True)
    worker_pool.end_all()


if __name__ == "__main__":
    main()
