"""Reads numbers and tables from committed results: benchmarks/results/h200/results.json, and pages.

A page asks for a number in words, such as {n}`ms stage 4, D=64, forward | stages`:

    ms LABEL | NAME                time of a call; LABEL as results.json has it, NAME as tables show
    mib LABEL | NAME               memory that a call allocates
    tflops LABEL | NAME            useful work per second
    share LABEL | NAME             floor over time, in per cent
    ratio LABEL | NAME | OTHER     time of OTHER over time of NAME
    saved LABEL | NAME | OTHER     memory of OTHER over memory of NAME
    spread NAME | OTHER            time of NAME over time of OTHER, over the benchmark's table
    ahead NAME | OTHER             in how many of that table's rows with both NAME is faster
    gflop LABEL, intensity LABEL, traffic LABEL, floor LABEL, scores LABEL, pairs LABEL
    asked LABEL | BLOCK            bytes of k and v that query tiles of BLOCK rows load
    delivered LABEL | NAME         bytes that device memory can deliver in the time of a call
    elsewhere LABEL | BLOCK        the least share of these loads that must come from L2
    clock WORK | WAY               time of a call by WAY, from timed.json
    cache N HKV D                  bytes of k and v of a sequence in one layer, in 16 bits
    host STAGE | NAME              CPU time of one call
    run WHAT                       how the benchmark was run
    machine, ceiling WHAT          the benchmark's machine; the rates measured on its GPU
    h200 WHAT                      from the maker's data sheet
    interpreted DTYPE              error of stage 3 in the interpreter, from seen.json
    cited FILE | TEXT | TOLD       TOLD, with the numbers of TEXT, which must be in FILE
"""

import json
import math
import re
import statistics
from functools import cache, partial

from benchmarks.peers import TITLES
from benchmarks.tables import column, is_off
from benchmarks.workloads import CEILINGS, SWEEP, TABLE
from guide.excerpts import ROOT
from guide.seen import seen
from guide.timed import WORKS, timed
from guide.worked import Table

RESULTS = ROOT / "benchmarks" / "results" / "h200" / "results.json"
WORK = {work.label: work for work in (*TABLE, *SWEEP)}
CEILING = CEILINGS["H200"]
KEYS = {title: name for name, title in TITLES.items()}  # by their titles in tables
# NVIDIA H200 data sheet; CUDA C++ Programming Guide, technical specifications of capability 9.0;
# L2: what torch.cuda.get_device_properties says on the card (an H100 has 50 MiB).
H200 = {"multiprocessors": "132", "registers": "256 KiB", "shared": "227 KiB", "l2": "60 MiB",
        "memory": "141 GB", "registers a thread": "255", "threads": "2,048"}
MIB, MB = 2**20, 1e6


@cache
def results() -> dict:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


@cache
def records() -> dict[str, dict]:
    return {record["label"]: record for record in results()["records"]}


def entry(label: str, name: str) -> dict:
    """The entry of one implementation in results.json.  Raises LookupError if it was not timed, or
    wrong."""
    name = KEYS.get(name, name)
    found = records()[label]["peers"][name]
    if "ms" not in found or is_off(found):
        raise LookupError(f"want a time of a right answer of {name} in {label}; got {found}")
    return found


def tflops(label, name) -> float:
    return WORK[label].flops() / entry(label, name)["ms"] / 1e9


def digits(x: float) -> str:
    """About three significant digits."""
    return f"{x:,.{0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2 if abs(x) >= 1 else 3}f}"


def where() -> str:
    machine = results()["machine"]
    return (f"{machine['gpu']}, torch {machine['torch'].split('+')[0]}, "
            f"Triton {machine['triton']}, {results()['date']}")


def cited(path: str, text: str, told: str) -> str:
    """A committed page's statement, in other words but with its numbers.  Raises LookupError."""
    page = " ".join((ROOT / path).read_text(encoding="utf-8").split())
    number = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")
    numbers = number.findall(told)
    if text not in page or not set(numbers) <= set(number.findall(text)):
        raise LookupError(f"want {path} to say {text!r}, with the numbers {numbers}; it does not")
    return told


def spread(name: str, other: str) -> str:
    """The range of time of `name` over time of `other`, over all workloads of the table."""
    ratios = sorted(entry(work.label, name)["ms"] / entry(work.label, other)["ms"]
                    for work in TABLE)
    return (f"{digits(ratios[0])} to {digits(ratios[-1])} "
            f"(median {digits(statistics.median(ratios))})")


def ahead(name: str, other: str) -> str:
    """ "5 of 9": in how many rows `name` takes less time than `other`, of those in which both are
    right."""
    won = []
    for work in TABLE:
        try:
            won.append(entry(work.label, name)["ms"] < entry(work.label, other)["ms"])
        except LookupError:
            continue
    return f"{sum(won)} of {len(won)}"


def _delivered(label: str, name: str) -> float:
    return entry(label, name)["ms"] / 1e3 * CEILING.bytes


def _interpreted(dtype: str) -> str:
    x = seen()["interpreted"][dtype]
    return f"{x:.1f}" if 0.1 < x < 100 else f"{x:.0e}".replace("e+0", "e").replace("e-0", "e-")


MEASURES = {
    "ms": lambda label, name: digits(entry(label, name)["ms"]) + " ms",
    "mib": lambda label, name: digits(entry(label, name)["extra_mib"]) + " MiB",
    "tflops": lambda label, name: digits(tflops(label, name)) + " TFLOP/s",
    "share": lambda label, name: (
        f"{100 * records()[label]['floor_ms'] / entry(label, name)['ms']:.0f} %"),
    "ratio": lambda label, name, other: digits(
        entry(label, other)["ms"] / entry(label, name)["ms"]),
    "saved": lambda label, name, other: digits(
        entry(label, other)["extra_mib"] / entry(label, name)["extra_mib"]),
    "gflop": lambda label: digits(WORK[label].flops() / 1e9) + " GFLOP",
    "intensity": lambda label: digits(WORK[label].flops() / WORK[label].bytes()) + " FLOP per byte",
    "traffic": lambda label: digits(WORK[label].bytes() / MB) + " MB",
    "asked": lambda label, block: digits(asked_bytes(label, int(block)) / 1e9) + " GB",
    "delivered": lambda label, name: digits(_delivered(label, name) / 1e9) + " GB",
    "elsewhere": lambda label, block: (
        f"{100 * (1 - _delivered(label, 'stages') / asked_bytes(label, int(block))):.0f} %"),
    "clock": lambda work, way: digits(timed()["clocks"][work][way]) + " ms",
    "cache": lambda sizes: digits(math.prod(map(int, sizes.split())) * 4 / MIB) + " MiB",
    "floor": lambda label: digits(records()[label]["floor_ms"]) + " ms",
    "scores": lambda label: digits(WORK[label].score_bytes() / MIB) + " MiB",
    "pairs": lambda label: f"{WORK[label].pairs():,}",
    "machine": where,
    "host": lambda stage, name: f"{results()['host'][stage][name]['us']:.0f} µs",
    "run": lambda what: {"rounds": str(results()["settings"]["rounds"]),
                         "nap": f"{1e3 * results()['settings']['nap_s']:.0f} ms",
                         "warm-up": f"{results()['settings']['warmup_ms']} ms",
                         "each": f"{results()['settings']['rep_ms']} ms"}[what],
    "cited": cited,
    "spread": spread,
    "ahead": ahead,
    "interpreted": _interpreted,
    "h200": lambda what: H200[what],
    "ceiling": lambda what: {
        "flops": f"{CEILING.flops / 1e12:.0f} TFLOP/s",
        "exponentials": f"{CEILING.exponentials / 1e12:.1f} T exponentials/s",
        "bytes": f"{CEILING.bytes / 1e12:.1f} TB/s",
        "ridge": f"{CEILING.flops / CEILING.bytes:.0f} FLOP per byte"}[what],
}


def value(text: str) -> str:
    """One number; the text is as listed at the top of this file.  Raises LookupError."""
    measure, _, rest = text.partition(" ")
    arguments = [part.strip() for part in rest.split("|")] if rest else []
    if measure == "cited" and len(arguments) > 3:  # the citation may be a row of a table, with bars
        arguments = [arguments[0], " | ".join(arguments[1:-1]), arguments[-1]]
    try:
        return MEASURES[measure](*arguments)
    except TypeError as error:
        raise LookupError(f"want arguments for {measure}; got {arguments}") from error


# -------------------------------------------------------------------- tables
def _ms(label, name):
    found = records()[label]["peers"].get(name, {})
    return "wrong" if is_off(found) else digits(found["ms"]) if "ms" in found else "–"


def _mib(label, name):
    found = records()[label]["peers"].get(name, {})
    return digits(found["extra_mib"]) if "ms" in found else "–"


def cost(stage: int, lengths=(1024, 4096, 16384, 65536)) -> Table:
    """Time and memory of a stage against N, and the memory that all scores would take."""
    rows = []
    for N in lengths:
        label = f"stage {stage}, N={N}, forward"
        if label not in records():
            continue
        work = WORK[label]
        rows.append([f"{work.B} x {N:,}", digits(work.flops() / 1e9), digits(work.bytes() / MB),
                     *(_ms(label, name) for name in ("stages", "fast", "cudnn")),
                     _mib(label, "stages"), digits(work.score_bytes() / MIB)])
    head = ["B x N", "GFLOP", "least MB", "stage ms", "sink_attn ms", "cuDNN ms", "stage MiB",
            "scores, if kept"]
    shape = records()[f"stage {stage}, N=1024, forward"]["shape"].split(", ")
    return Table(head, rows, f"{shape[1]} heads, D = {shape[3]}, {', '.join(shape[4:])}, "
                 f"bfloat16; the last two columns in MiB; results.json of {where()}")


def asked_bytes(label: str, block: int) -> float:
    """Bytes of k and v that are loaded if every query tile of a head loads all of them."""
    work = WORK[label]
    return -(-work.N // block) * work.B * work.HQ * 2 * work.N * work.D * 2


def asked(label="stage 3, D=64, forward") -> Table:
    """How taller query tiles reduce the loads of k and v, before any cache."""
    rows = []
    for block in (1, 16, 32, 64, 128, 256):
        bytes_ = asked_bytes(label, block)
        rows.append([block, digits(bytes_ / 1e9), digits(WORK[label].flops() / bytes_),
                     digits(bytes_ / CEILING.bytes * 1e3)])
    return Table(["rows per query tile", "GB of k and v asked for", "FLOP per byte",
                  "ms, all from device memory"], rows,
                 f"{label.removesuffix(', forward')}; counted; the last column over the measured "
                 f"{CEILING.bytes / 1e12:.1f} TB/s")


def excess(block=64) -> Table:
    """The causal kernel's time beyond its share of tiles, in tiles per query tile."""
    rows = []
    for N in (1024, 2048, 4096, 8192, 16384):
        row, T = [f"{N:,}"], N // block
        for name in ("stages", "cudnn"):
            full, causal = (entry(f"stage {stage}, N={N}, forward", name)["ms"] for stage in (3, 4))
            if name == "stages":
                row += [digits(full), digits(causal), T, digits((T + 1) / 2),
                        digits(causal / full * T)]
            row.append(digits(causal / full * T - (T + 1) / 2))
        rows.append(row)
    return Table(["N", "stage 3 ms", "stage 4 ms", "all tiles", "visited", "paid for",
                  "more", "more, cuDNN"], rows,
                 "tiles per query tile; 16 heads, D = 64, 16,384 tokens, bfloat16; paid for: time "
                 f"of stage 4 over that of stage 3, times T; results.json of {where()}")


def operands(D=64) -> Table:
    """Where stage 3's kernel for sm_90 keeps the factors and sums of its two products."""
    found = next(one for one in seen()["compiled"] if one["D"] == D)
    rows = [[f"`{code}`", *found[name]] for name, code in (
        ("scores", "s = tl.dot(q, tl.trans(k))"), ("output", "acc = tl.dot(p, v, acc)"))]
    return Table(["product", "left factor", "right factor", "sum"], rows,
                 f"stage 3, forward, D = {D}, bfloat16, compiled for sm_90 by Triton "
                 f"{seen()['triton']} on {seen()['date']} without a GPU (guide/seen.py)")


def programs(warps: int, registers: int, shared: int) -> dict[str, int]:
    """How many programs of a kernel each resource of a multiprocessor of capability 9.0 has room
    for; the smallest of these numbers fits."""
    return {"registers": 65536 // (-(-registers // 8) * 8 * 32 * warps),  # allocated in eights
            "shared memory": 228 * 1024 // (shared + 1024),
            "threads": 2048 // (32 * warps)}


def _fit(choice: dict) -> list:
    """-> [how many programs fit, the resource that is then used up]."""
    room = programs(choice["warps"], choice["registers"], choice["shared"])
    fit = min(room.values())
    return [fit, " and ".join(name for name, number in room.items() if number == fit)]


def choices() -> Table:
    """The needs of stage 3's kernel with other tiles, warps and stages, and how many fit."""
    rows = [[f"{x['rows']} x {x['rows']}", x["warps"], x["stages"], x["registers"], x["stack"],
             f"{x['shared'] // 1024}", *_fit(x)] for x in seen()["chosen"]]
    return Table(["tiles", "warps", "stages", "registers per thread", "bytes spilled", "KiB shared",
                  "programs that fit", "what stops one more"], rows,
                 f"stage 3, forward, D = 128, bfloat16, compiled for sm_90 by Triton "
                 f"{seen()['triton']} on {seen()['date']} without a GPU (guide/seen.py); the last "
                 "two columns are computed")


def compared() -> Table:
    """The error of a program's l_i and m_i after each tile, for a right and a wrong kernel."""
    names = {"None": "problem_3.py", "sum_not_rescaled": "mistake A", "no_log2e": "mistake B"}
    found = seen()["compared"]
    rows = [[names[name], *one] for name, one in found.items()]
    return Table(["file", *(f"after tile {i}" for i in range(len(rows[0]) - 1))], rows,
                 "largest difference of (m_i + log2(l_i)) ln 2 from logsumexp of the keys so far; "
                 f"N = 64, D = 16, tiles of 16, interpreter, Triton {seen()['triton']}, "
                 f"{seen()['date']} (guide/seen.py)")


def rounds() -> Table:
    """The rounds of the benchmark, to show how much the same kernel varies."""
    rows = []
    for label in ("stage 3, original shape, forward", "stage 3, D=64, forward",
                  "stage 6, Mistral, forward"):
        found = entry(label, "stages")["rounds"]
        rows.append([label.removesuffix(", forward"), *(f"{ms:.4f}" for ms in found),
                     f"{100 * (max(found) / min(found) - 1):.1f} %"])
    head = ["workload, ms", *(f"round {i}" for i in range(1, len(rows[0]) - 1)), "apart"]
    return Table(head, rows,
                 f"stages, bfloat16, forward; results.json of {where()}")


# Tables from timed.json, for {timed}; there are none before the first measurement.
def _timed_where() -> str:
    machine = timed()["machine"]
    return (f"bfloat16, {machine['gpu']}, driver {machine['driver']}, torch "
            f"{machine['torch'].split('+')[0]}, Triton {machine['triton']}, {timed()['date']} "
            "(guide/timed.py)")


def clocks() -> Table:
    """The same call, timed in several ways."""
    found = timed()["clocks"]
    rows = [[way, *(digits(found[name][way]) for name in WORKS)] for way in found[WORKS[0]]]
    return Table(["ms per call", *WORKS], rows, f"forward, {_timed_where()}")


def choices_timed() -> Table:
    """The table choices(), compiled and timed on a real GPU."""
    rows = [[f"{x['rows']} x {x['rows']}", x["warps"], x["stages"], x["registers"], x["spills"],
             f"{x['shared'] // 1024}", _fit(x)[0], f"{x['ms']:.2f}"] for x in timed()["choices"]]
    return Table(["tiles", "warps", "stages", "registers per thread", "spills, as Triton counts",
                  "KiB shared", "programs that fit", "ms"], rows,
                 f"stage 3, D = 128, forward, {_timed_where()}; how many fit is computed")


def profile() -> Table:
    """Where the time of naive attention and of stage 3 goes, by Proton."""
    rows = [[f"`{name[:60]}`", calls, f"{ms:.3f}"] for name, calls, ms in timed()["profile"]]
    return Table(["kernel", "calls", "ms, all calls"], rows, "naive attention of one head with N = "
                 f"4,096 and D = 64, and {WORKS[1]}, {_timed_where()}")


TIMED = {"clocks": clocks, "choices": choices_timed, "profile": profile}


def workloads(stage: int, direction: str) -> Table:
    """The workloads of one stage: the least time that each can take, and its time."""
    rows = []
    for work in TABLE:
        if (work.stage, work.direction) == (stage, direction):
            rows.append([work.name.split(", ", 1)[1], work.shape, digits(work.flops() / 1e9),
                         digits(work.bytes() / MB), records()[work.label]["bound"],
                         digits(records()[work.label]["floor_ms"]), _ms(work.label, "stages"),
                         _ms(work.label, "naive"), _mib(work.label, "stages"),
                         _mib(work.label, "naive")])
    head = ["workload", "B, HQ/HKV, N, D, mask", "GFLOP", "least MB", "binds", "floor ms",
            "stage ms", "naive ms", "stage MiB", "naive MiB"]
    return Table(head, rows, f"bfloat16, {direction}; – : out of memory, or not timed; "
                 f"results.json of {where()}")


def stages(direction: str) -> Table:
    """All workloads of the table: work, bytes, and the lowest ceiling."""
    rows = [[work.name, digits(work.flops() / 1e9), digits(work.bytes() / MB),
             digits(work.flops() / work.bytes()), records()[work.label]["bound"],
             digits(records()[work.label]["floor_ms"]), _ms(work.label, "stages")]
            for work in TABLE if work.direction == direction]
    head = ["workload", "GFLOP", "least MB", "FLOP/byte", "binds", "floor ms", "stage ms"]
    return Table(head, rows, f"bfloat16, {direction}; results.json of {where()}")


def ladder(direction: str) -> Table:
    """Our three forms beside the peers."""
    names = ["stages", "fast", "gluon", "cudnn", "flex", "fa4"]
    rows = [[work.name, *(_ms(work.label, name) for name in names)]
            for work in TABLE if work.direction == direction]
    return Table(["workload, ms", *(column(name) for name in names)], rows,
                 f"bfloat16; wrong: its answers were; results.json of {where()}")


def gpt_oss() -> Table:
    """Times for both masks of GPT-OSS, in both directions."""
    rows = [[work.name, work.direction, *(_ms(work.label, n) for n in ("naive", "stages", "fast")),
             _mib(work.label, "naive"), _mib(work.label, "stages")]
            for work in TABLE if "GPT-OSS" in work.name]
    return Table(["layer", "direction", "naive ms", "stage ms", "sink_attn ms", "naive MiB",
                  "stage MiB"], rows, f"1 x 8,192 tokens, 64/8 heads, D = 64; "
                 f"results.json of {where()}")


def gluon() -> Table:
    """The steps to the Gluon kernel, from sink_attn/README.md."""
    lines = (ROOT / "sink_attn" / "README.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| | full | causal |")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|") or line.startswith("| all but"):
            break
        rows.append([cell.strip(" *") for cell in line.strip("|").split("|")])
    return Table(["D = 128, forward, ms", "full", "causal"], rows, "sink_attn/README.md")


def split() -> Table:
    """Steps of causal attention on one GPU and on two, from context_parallel.jsonl."""
    lines = (RESULTS.parent / "context_parallel.jsonl").read_text(encoding="utf-8").splitlines()
    times, rows = {}, []
    for line in map(json.loads, lines):
        if "ms" in line and line["window"] is None and line.get("sequences", 1) == 1:
            work = f"{line['heads'][0]}/{line['heads'][1]}, {line['D']}", line["N"]
            times.setdefault(work, {})[line["who"]] = line
    for (heads, N), line in sorted(times.items(), reverse=True):
        found = [line.get(who) for who in ("alone", "ours", "torch")]
        rows.append([heads, f"{N:,}", *(digits(x["ms"]) if x else "–" for x in found),
                     digits(found[0]["ms"] / found[1]["ms"]),
                     *(digits(x["gib"]) if x else "–" for x in found)])
    head = ["HQ/HKV, D", "tokens", "one GPU, ms", "two, ms", "PyTorch on two, ms",
            "one / two", "one GPU, GiB", "two, GiB", "PyTorch on two, GiB"]
    return Table(head, rows, "bfloat16, forward + backward of one causal layer; GPT-OSS's has sink "
                 "logits, except in PyTorch's column; context_parallel.jsonl of benchmarks/results/"
                 "h200: two H200s, torch 2.11, Triton 3.6")


def flash_4() -> tuple[float, float]:
    """ms of FlashAttention-4, full and causal, in the run that the table gluon() begins with."""
    text = (ROOT / "sink_attn" / "README.md").read_text(encoding="utf-8")
    full, causal = (re.search(rf"^\| {row} \| \*\*.*?\*\* \| ([\d.]+) ", text, re.MULTILINE)[1]
                    for row in ("full, B=4, 16 heads, N=4096", "causal, the same"))
    return float(full), float(causal)


TABLES = {f"cost {stage}": partial(cost, stage) for stage in (3, 4)}
TABLES |= {f"workloads {work.stage} {work.direction}":
           partial(workloads, work.stage, work.direction) for work in TABLE}
TABLES |= {f"{make.__name__} {direction}": partial(make, direction)
           for make in (stages, ladder) for direction in ("forward", "backward")}
TABLES |= {"gpt_oss": gpt_oss, "gluon": gluon, "excess": excess, "operands": operands,
           "asked": asked, "choices": choices, "compared": compared, "rounds": rounds,
           "split": split}
