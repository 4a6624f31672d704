"""Time the problem files, sink_attn and other libraries in one run: python -m benchmarks --help."""

import argparse
import os
import sys
import time
from datetime import date
from pathlib import Path

DONE, FAILED, USAGE = 0, 1, 2
OUT = Path("benchmarks/results")
HOST_PEERS = ("stages", "fast", "fa2", "cudnn")
SWEEP_ROUNDS = 3


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 the run ended early, 2 usage."""
    options = _parser().parse_args(argv)
    if options.plot:
        return _replot(options.plot)
    from benchmarks.peers import OURS, PEERS
    from benchmarks.workloads import SWEEP, TABLE

    works = [] if options.sweep_only else list(TABLE)
    works += [] if options.no_sweep else SWEEP
    if options.only:
        works = [w for w in works if any(part in w.label for part in options.only)]
        if not works:
            return _refuse(f"--only: want part of one of {_names(TABLE)}; "
                           f"got {', '.join(options.only)}")
    names = options.peers.split(",") if options.peers else [n for n in PEERS if n != "baseline"]
    names += ["baseline"] if options.baseline and "baseline" not in names else []
    for name in names:
        if name not in PEERS:
            return _refuse(f"--peers: want one of {', '.join(PEERS)}; got {name!r}")
    names = [name for name in PEERS if name in (*OURS, *names)]
    if options.rounds < 1 or options.warm_processes < 0:
        return _refuse(f"want --rounds >= 1 and --warm-processes >= 0; "
                       f"got {options.rounds}, {options.warm_processes}")
    if options.tutorial and not options.tutorial.is_file():
        return _refuse(f"--tutorial: want a file; got {options.tutorial}")
    if options.baseline and not (options.baseline / "problem_3.py").is_file():
        return _refuse(f"--baseline: want a folder with problem_3.py in it; got {options.baseline}")
    if options.list:
        return _list(works, names, options)

    import torch

    if not torch.cuda.is_available():
        return _refuse("want a CUDA GPU to time on; got none")
    return _run(works, names, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", action="append",
                        help="workloads with this text in their name; can be repeated")
    parser.add_argument("--peers", metavar="NAMES",
                        help="comma-separated; stages and fast are always included")
    parser.add_argument("--rounds", metavar="N", type=int, default=5,
                        help="measurements of each implementation (default: 5; the sweep: at most "
                             f"{SWEEP_ROUNDS})")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-sweep", action="store_true", help="the tables only")
    which.add_argument("--sweep-only", action="store_true", help="the figures' lengths only")
    parser.add_argument("--tutorial", metavar="FILE", type=Path,
                        help="Triton's tutorial 06-fused-attention.py, as one more peer")
    parser.add_argument("--baseline", metavar="DIR", type=Path,
                        help="another checkout, whose problem files are also timed")
    parser.add_argument("--out", metavar="DIR", type=Path, default=OUT,
                        help=f"where results go (default: {OUT})")
    parser.add_argument("--resume", action="store_true",
                        help="keep what DIR/results.json has; same GPU and versions only")
    parser.add_argument("--warm-processes", metavar="N", type=int, default=0,
                        help="compile first, with this many processes (default: 0, when needed)")
    parser.add_argument("--plot", metavar="FILE", type=Path,
                        help="only redraw the figures of this results.json; needs no GPU")
    parser.add_argument("--list", action="store_true",
                        help="only list the workloads and what would run; needs no GPU")
    return parser


def _run(works: list, names: list[str], options) -> int:
    if options.warm_processes:  # else what FlashAttention-4 compiles is lost with the process
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    from benchmarks import measure, results, tables
    from benchmarks.workloads import SWEEP, TABLE

    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    path, machine = options.out / "results.json", measure.machine()
    try:
        found = results.resume(path, machine) if options.resume else None
    except results.Mismatch as error:
        return _refuse(str(error))
    settings = {"rounds": options.rounds, "sweep_rounds": min(options.rounds, SWEEP_ROUNDS),
                "nap_s": measure.NAP_S, "warmup_ms": measure.WARMUP_MS, "rep_ms": measure.REP_MS,
                "limit": measure.LIMIT,
                "tutorial": options.tutorial.name if options.tutorial else ""}
    run = found or results.new(machine, date.today().isoformat(), settings)
    todo = [(work, peers) for work in works
            if (peers := results.peers_to_time(run, work, names))]
    print(f"{machine['gpu']}, torch {machine['torch']}, Triton {machine['triton']}: "
          f"{len(todo)} of {len(works)} workloads to time, results go to {path}", flush=True)
    code = DONE
    try:
        if options.warm_processes and todo:
            measure.warm([work for work, _ in todo], names, options, options.warm_processes)
            print(f"compiled ahead, {time.monotonic() - start:.0f} s", flush=True)
        if not options.only and not options.sweep_only and not run["host"]:
            stages = sorted({work.stage for work in works})
            run["host"] = measure.host_costs(stages, [n for n in HOST_PEERS if n in names], options)
            results.write(run, path)
        for i, (work, peers) in enumerate(todo, 1):
            rounds = settings["sweep_rounds" if work.group == "sweep" else "rounds"]
            record = measure.measure(
                work, [n for n in measure.PEERS if n in peers],
                argparse.Namespace(**vars(options) | {"rounds": rounds}))
            results.put(run, record, [*TABLE, *SWEEP])
            results.write(run, path)
            print(f"[{i:>3}/{len(todo)}] {_line(record)}", flush=True)
    except measure.GpuLost as lost:
        print(f"error: this process has lost the GPU: {lost}\n"
              "What was timed is kept. Leave that peer out with --peers, and add --resume.",
              file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        print("\nInterrupted; what was timed is kept. Continue with --resume.", file=sys.stderr)
        code = FAILED
    tables.write_csv(run, options.out / "results.csv")
    (options.out / "results.md").write_text(tables.as_markdown(run), encoding="utf-8")
    print("\n" + tables.as_text(run))
    _draw(run, options.out)
    print(f"{time.monotonic() - start:.0f} s; results in {options.out}")
    return code


def _line(record: dict) -> str:
    """Returns the line printed after a workload: times, failures, and the seconds it took."""
    from benchmarks.tables import digits

    told = []
    for name, entry in record["peers"].items():
        if "ms" in entry:
            told.append(f"{name} {digits(entry['ms'])}")
        elif "failed" in entry:
            told.append(f"{name} failed ({entry['failed'].splitlines()[0][:80]})")
    return f"{record['label']}: {', '.join(told)} ms  [{record['seconds']:.1f} s]"


def _list(works: list, names: list[str], options) -> int:
    from benchmarks.peers import PEERS

    for work in works:
        told = [f"{name} - ({reason})" if (reason := PEERS[name].cannot(work, options)) else name
                for name in names]
        print(f"{work.label} ({work.shape}): {', '.join(told)}")
    return DONE


def _replot(path: Path) -> int:
    from benchmarks import plots, results

    try:
        written = plots.draw(results.read(path), path.parent)
    except (results.Mismatch, plots.NoMatplotlib) as error:
        return _refuse(str(error))
    print("\n".join(map(str, written)) or f"nothing to draw in {path}")
    return DONE


def _draw(run: dict, folder: Path) -> None:
    from benchmarks import plots

    try:
        plots.draw(run, folder)
    except plots.NoMatplotlib as error:
        print(f"no figures: {error}")


def _names(works: list) -> str:
    return "; ".join(dict.fromkeys(work.name for work in works))


def _refuse(problem: str) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
