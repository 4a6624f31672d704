"""Measure GPT-OSS with our kernels and with others: python -m examples.gpt_oss.measure --help.

There are four parts: gradients against float64, loss curves, and the time and memory of a training
step by length, for one sequence per row (sweep) and for packed rows (packed).  Results go to --out.
results.json is written after every part, in the last two after every attention implementation, and
keeps the parts that are not run again.  results.md, loss.png, steps.png and packed.png are made
from it; --plot only does that.
"""

import argparse
import functools
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from examples.gpt_oss import gradients, plots, train
from examples.gpt_oss.model import DTYPES, OURS, SIZES, default_device, default_dtype

PARTS = ("gradients", "curves", "sweep", "packed")
FA4 = "flash_attention_4"
WINDOW = 10  # losses are compared as means over this many steps


# ------------------------------------------------------------------ parts
def curves(options) -> dict:
    """Train with eager attention and with ours, with every seed.

    Returns:
        N and B (tokens per row, rows per step), losses ({attn: one list of nats per seed}), and
        what compare returns.
    """
    runs = {"eager": [], OURS: []}
    with tempfile.TemporaryDirectory() as folder:
        for attn, seed in itertools.product(runs, range(options.seeds)):
            words = ["--attn", attn, "--seed", seed, "--steps", options.steps, "--size",
                     options.size, "--seq-len", options.curve_length, "--batch-size",
                     options.curve_batch, "--dtype", options.dtype, "--device", options.device,
                     "--save-every", 0, "--out", Path(folder) / f"{attn}-{seed}"]
            settings = train.parser().parse_args([str(word) for word in words])
            records = train.train(settings, show=sys.stderr.isatty())
            runs[attn].append([record["loss"] for record in records])
    return {"N": options.curve_length, "B": options.curve_batch, "losses": runs,
            **compare(runs["eager"], runs[OURS])}


def compare(eager: list[list[float]], ours: list[list[float]]) -> dict:
    """Compare the loss curves of eager attention and ours.

    Args:
        eager, ours: one list of losses per seed, in nats per token, one loss per step.

    Returns:
        difference (ours minus eager's, same seed) and spread (standard deviation between eager's
        seeds): root mean squares over means of WINDOW steps, in nats; largest_difference, of these
        means; agree, whether difference is at most spread.
    """
    def means(losses):
        return [statistics.fmean(losses[i : i + WINDOW]) for i in range(0, len(losses), WINDOW)]

    eager, ours = [means(run) for run in eager], [means(run) for run in ours]
    apart = [x - y for a, b in zip(ours, eager, strict=True) for x, y in zip(a, b, strict=True)]
    spread = [statistics.stdev(column) for column in zip(*eager, strict=True)]
    difference, spread = (statistics.fmean(x * x for x in xs) ** 0.5 for xs in (apart, spread))
    return {"difference": difference, "largest_difference": max(map(abs, apart)),
            "spread": spread, "agree": difference <= spread}


def sweep(options, part: str, points: list[dict], keep) -> None:
    """Run steps.py once per attention implementation.

    Args:
        part: "sweep", or "packed", which runs only what keeps packed sequences apart.
        points: earlier measurements, of other implementations.
        keep: called with {"points": [...]} after each implementation.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # leave the memory that earlier parts held to the processes
    for attn in options.attns:
        if part == "sweep" or attn in (OURS, FA4):
            points = points + _child(options, attn, part)
            keep({"points": points})


def _child(options, attn: str, part: str) -> list[dict]:
    """Returns the points of one attention; if its process dies or is too slow, the last says so."""
    words = [sys.executable, "-m", "examples.gpt_oss.steps", "--attn", attn,
             "--size", options.size, "--dtype", options.dtype, "--device", options.device,
             "--repeats", options.repeats, "--lengths", *options.lengths]
    words += (["--longest", options.longest] if part == "sweep" else
              ["--longest", 0, "--packed", options.packed])
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).resolve().parents[2])
    alarm = threading.Timer(options.limit, process.kill)
    alarm.start()
    start, points = time.monotonic(), []
    for line in process.stdout:
        points.append(json.loads(line))
        print(_told(points[-1]), flush=True)
    code = process.wait()
    alarm.cancel()
    if code != 0:
        late = time.monotonic() - start >= options.limit
        why = f"stopped after {options.limit} s" if late else f"exit code {code}"
        done = [point["N"] for point in points]
        missing = [N for N in options.lengths if N not in done]
        at = {"N": missing[0]} if missing else {"N": done[-1], "search": True}
        points.append({"attn": attn, "failed": why} | at)
    return points


# ---------------------------------------------------------------- results
def table(results: dict) -> str:
    """Returns results.json as Markdown."""
    lines = ["# GPT-OSS with the course's kernel, measured", "",
             "Made by `python -m examples.gpt_oss.measure`, from results.json."]
    for part in PARTS:
        if part in results:
            settings = results[part]["settings"]
            lines += ["", f"## {part.capitalize()}", "", f"{_where(settings)}.", ""]
            lines += TABLES[part](results[part])
    return "\n".join(lines) + "\n"


def _where(settings: dict) -> str:
    return (f"{settings['gpu']}, torch {settings['torch']}, Triton {settings['triton']}, "
            f"Transformers {settings['transformers']}, {settings['dtype']}, config "
            f"`{settings['size']}`, {settings['date']}")


def _gradient_table(part: dict) -> list[str]:
    lines = []
    for look in ("layers", "parameters"):
        entries = part[look]
        bad = [f"{e['where']} {e['tensor']}" for e in entries if not e["accepted"]]
        lines += [f"{look}: {len(entries) - len(bad)} of {len(entries)} tensors accepted"
                  + (f"; not: {', '.join(bad)}" if bad else "") + "."]
    lines += ["", "| where | tensor | ours, all | eager, all | ours, worst row "
              "| eager, worst row | accepted |", "|---|---|---|---|---|---|---|"]
    for e in part["layers"] + part["parameters"]:
        numbers = [f"{e[key]:.1e}" for key in ("fro", "eager_fro", "row", "eager_row")]
        lines.append(f"| {e['where']} | {e['tensor'] if e['where'].startswith('layer ') else ''} | "
                     + " | ".join(numbers) + f" | {'yes' if e['accepted'] else 'no'} |")
    return lines


def _curve_table(part: dict) -> list[str]:
    losses = part["losses"]
    lines = [f"{part['B']} rows of {part['N']} bytes per step.  Ours minus eager's: "
             f"{part['difference']:.4f} nats, at most {part['largest_difference']:.4f}; between "
             f"seeds: {part['spread']:.4f} nats (root mean squares over means of {WINDOW} steps).",
             "", "| attention | seed | first loss | mean of the last 10 |", "|---|---|---|---|"]
    return lines + [
        f"| {attn} | {seed} | {run[0]:.4f} | {statistics.fmean(run[-WINDOW:]):.4f} |"
        for attn, runs in losses.items() for seed, run in enumerate(runs)
    ]


def _sweep_table(part: dict, packed: bool = False) -> list[str]:
    points = part["points"]
    names = list(dict.fromkeys(point["attn"] for point in points))
    lengths = sorted({p["N"] for p in points if not p.get("search")})
    mean = part["settings"].get("packed")
    row = f"one row of packed sequences, {mean} tokens on average" if packed else "one row"
    lines = [f"Milliseconds per step (forward, backward, update; {row}) and peak GiB, weights and "
             "optimizer included.", "", "| N | " + " | ".join(names) + " |",
             "|---" * (1 + len(names)) + "|"]
    for N in lengths:
        cells = [next((_cell(p) for p in points if (p["attn"], p["N"]) == (name, N)), "-")
                 for name in names]
        lines.append(f"| {N} | " + " | ".join(cells) + " |")
    for name in names:
        fits = [p["N"] for p in points if p["attn"] == name and "ms" in p]
        fails = [p["N"] for p in points if p["attn"] == name and p.get("out_of_memory")]
        if fits and any(p.get("search") for p in points if p["attn"] == name):
            lines += ["", f"{name}: longest row that fitted {max(fits)}"
                      + (f", shortest that did not {min(fails)}." if fails else ".")]
    return lines


TABLES = {"gradients": _gradient_table, "curves": _curve_table, "sweep": _sweep_table,
          "packed": functools.partial(_sweep_table, packed=True)}


def _cell(point: dict) -> str:
    if "ms" in point:
        peak = "" if point["peak_gib"] is None else f", {point['peak_gib']:.1f} GiB"
        return f"{point['ms']:.1f} ms{peak}"
    return "out of memory" if point.get("out_of_memory") else "failed"


def _told(point: dict) -> str:
    why = f" ({point['failed']})" if "failed" in point else ""
    return f"{point['attn']:15} N={point['N']:<7} {_cell(point)}{why}"


def draw(results: dict, out: Path) -> list[Path]:
    """Write results.md and the figures of the parts that were measured.  Returns the paths."""
    written = [out / "results.md"]
    written[0].write_text(table(results))
    if part := results.get("curves"):
        written.append(out / "loss.png")
        title = "GPT-OSS from random weights, on Python's standard library"
        plots.loss(part["losses"], title, part["settings"], written[-1])
    for name, file, row in (("sweep", "steps.png", "one row"),
                            ("packed", "packed.png", "one packed row")):
        part = results.get(name)
        if part and any("ms" in point for point in part["points"]):
            written.append(out / file)
            plots.steps(part["points"], part["settings"], row, written[-1])
    return written


def _others(old: dict | None, part: str, options) -> list[dict]:
    """Returns the points that are not measured again, if all other settings are unchanged."""
    same = ["size", "dtype", "gpu", "torch", "triton", "transformers"]
    same += ["packed"] * (part == "packed")
    now = _settings(options)
    if old is None or any(old["settings"][key] != now[key] for key in same):
        return []
    return [point for point in old["points"] if point["attn"] not in options.attns]


def _settings(options) -> dict:
    chosen = {key: value for key, value in vars(options).items()
              if key not in ("out", "plot", "parts")}
    return chosen | train.where_and_when(options.device)


# ---------------------------------------------------------------- command line
def parser() -> argparse.ArgumentParser:
    device = default_device()
    gpu = device == "cuda"
    parser = argparse.ArgumentParser(
        prog="python -m examples.gpt_oss.measure",
        description="Measure GPT-OSS with our kernel: gradients, loss curves, time and memory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, number = parser.add_argument, train.at_least
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--out", default="runs/gpt_oss_measured", help="folder for results and figures")
    add("--plot", action="store_true", help="only draw what results.json in --out has")
    add("--size", choices=SIZES, default="20b-attention" if gpu else "tiny")
    add("--dtype", choices=DTYPES, default=default_dtype(device))
    add("--device", default=device)
    add("--gradient-length", type=number(8), default=1024 if gpu else 50, help="tokens per row")
    add("--seeds", type=number(2), default=3, help="runs of each loss curve")
    add("--steps", type=number(1), default=200 if gpu else 20, help="of each loss curve")
    add("--curve-length", type=number(2), default=1024 if gpu else 48, help="tokens per row")
    add("--curve-batch", type=number(1), default=4 if gpu else 1, help="rows per step")
    add("--attns", nargs="+", default=["eager", "flex_attention", FA4, OURS],
        help=f"for the sweep; {FA4} and {OURS} also packed")
    add("--lengths", type=number(2), nargs="+",
        default=[2**n * 1024 for n in range(2, 7)] if gpu else [32, 64, 128])
    add("--packed", type=number(1), default=1024 if gpu else 8,
        help="tokens of a packed sequence on average")
    add("--repeats", type=number(1), default=5 if gpu else 1, help="timed steps per length")
    add("--longest", type=int, default=2**20 if gpu else 0,
        help="search for the longest row that fits, up to here; 0: no search")
    add("--limit", type=number(1), default=300, help="seconds for one attention of the sweep")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 a gradient or a loss curve is not as expected."""
    options = parser().parse_args(argv)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for part in () if options.plot else options.parts:
        start = time.monotonic()

        def keep(measured: dict, part=part, start=start) -> None:
            seconds = time.monotonic() - start
            results[part] = {"settings": _settings(options), "seconds": seconds} | measured
            train.write(file, json.dumps(results, indent=1) + "\n")
            print(f"{part}: {seconds:.0f} s", flush=True)

        if part == "gradients":
            keep(gradients.measure(options))
        elif part == "curves":
            keep(curves(options))
        else:
            sweep(options, part, _others(results.get(part), part, options), keep)
    try:
        print(*draw(results, out), sep="\n")
    except plots.NoMatplotlib as missing:
        print(missing)
    verdicts = _verdicts(results)
    for name, right in verdicts.items():
        print(f"{name}: {'as expected' if right else 'NOT as expected'}")
    return 0 if all(verdicts.values()) else 1


def _verdicts(results: dict) -> dict[str, bool]:
    """Returns whether gradients and curves are as expected, if they were measured."""
    verdicts = {}
    if part := results.get("gradients"):
        verdicts["gradients"] = all(e["accepted"] for e in part["layers"] + part["parameters"])
    if part := results.get("curves"):
        verdicts["curves"] = part["agree"]
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
