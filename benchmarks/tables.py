"""Print results as tables: text, Markdown and CSV.  Needs no GPU."""

import csv
import itertools
import statistics
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import LIMIT
from benchmarks.peers import HOPPER_PEERS, OURS, OWN, PEERS, TITLES, TRITON_PEERS

DIRECTIONS = ("forward", "backward")


class Table(NamedTuple):
    """Strings only.  A cell that ends in * is the fastest of its row."""

    title: str
    header: list[str]
    rows: list[list[str]]


# ----------------------------------------------------------- what is compared
def is_off(entry: dict) -> bool:
    """Whether this was timed although its answer is wrong or not finite."""
    return "ms" in entry and (entry["error"] is None or entry["error"] > LIMIT)


def ranked(record: dict) -> dict[str, float]:
    """Returns the ms of every implementation that was timed and whose answer is right."""
    return {name: entry["ms"] for name, entry in record["peers"].items()
            if "ms" in entry and not is_off(entry)}


def ratios(record: dict, own: str) -> dict[str, float]:
    """Returns ms of the others over ms of own, one of OURS: above 1 where own is faster.

    Empty if own has no time.
    """
    times = ranked(record)
    mine = times.pop(own, None)
    return {} if mine is None else {name: ms / mine for name, ms in times.items()}


def best_peer(record: dict, names=None) -> str | None:
    """Returns the fastest peer among names, or among all but naive and our own."""
    found = {name: ms for name, ms in ranked(record).items()
             if (name in names if names else name not in ("naive", *OWN))}
    return min(found, key=found.get, default=None)


def best_ratio(record: dict, own: str, names=None) -> float | None:
    """Returns the ratio to own of the fastest peer among names, or among all but naive."""
    return ratios(record, own).get(best_peer(record, names))


def summary(results: dict) -> list[str]:
    """Returns three lines for each of ours that was timed: how it compares over the table.

    The times of the original shapes depend mostly on the host, so each line also has the mean
    without them, and on how many of the others our own is slower.
    """
    lines = []
    timed = _names(_group(results, "table"))
    ours = [*OURS, "gluon"] if "gluon" in timed else OURS
    for own, names in itertools.product(ours, (TRITON_PEERS, ("fa2",), HOPPER_PEERS)):
        title = _fastest([column(name) for name in names if name in timed])
        found = [(ratio, record["label"]) for record in _group(results, "table")
                 if (ratio := best_ratio(record, own, names)) is not None]
        if not found:
            lines.append(f"{column(own)} against {title}: nothing to compare")
            continue
        large = [ratio for ratio, label in found if "original shape" not in label]
        without = (f"; without the original shapes {statistics.geometric_mean(large):.2f}x, "
                   f"over {len(large)} workloads, slower on {sum(r < 1 for r in large)}"
                   if large else "")
        mean = statistics.geometric_mean(ratio for ratio, _ in found)
        lines.append(f"{column(own)} against {title}: at least {min(found)[0]:.2f}x "
                     f"({min(found)[1]}), geometric mean {mean:.2f}x, over {len(found)} "
                     f"workloads{without}")
    return lines


def _fastest(titles: list[str]) -> str:
    """Returns the name of whom ours is compared with, from the titles of those that were timed."""
    if len(titles) < 2:
        return "".join(titles) or "nobody"
    return f"the {'faster' if len(titles) == 2 else 'fastest'} of {', '.join(titles)}"


def tflops(record: dict, ms: float) -> float:
    return record["flops"] / ms / 1e9


def share(record: dict, ms: float) -> float | None:
    """Returns the least time that the GPU allows over the time taken, ms; None if it is unknown."""
    return None if record["floor_ms"] is None else record["floor_ms"] / ms


def digits(ms: float) -> str:
    """Returns ms with three digits."""
    return f"{ms:#.3g}".rstrip(".")


def column(name: str) -> str:
    """Returns the header of an implementation's column."""
    return TITLES.get(name, name)


# --------------------------------------------------------------------- tables
def tables(results: dict) -> list[Table]:
    """Returns all tables for which there are results."""
    made = []
    for group, title in (("table", ""), ("sweep", ", sweep over N")):
        for direction in DIRECTIONS:
            records = [r for r in _group(results, group) if r["direction"] == direction]
            if records:
                made.append(_times(f"{direction.capitalize()}{title}: ms (TFLOP/s)", records))
            if records and group == "table":
                made.append(_fast(f"{direction.capitalize()}: {column('fast')}, and the bound",
                                  records))
                for own in OURS:
                    words = f"{direction.capitalize()}: ms of the others / ms of {column(own)}"
                    made.append(_ratios(words, records, own))
    if results["host"]:
        made.append(_host(results["host"]))
    return made


def _times(title: str, records: list[dict]) -> Table:
    names = _names(records)
    rows = []
    for record in records:
        times = ranked(record)
        best = min(times, key=times.get, default=None)
        cells = [_time_cell(record, name) + ("*" if name == best else "") for name in names]
        rows.append([record["name"], record["shape"], *cells])
    return Table(title, ["workload", "B, HQ/HKV, N, D, mask", *map(column, names)], rows)


def _time_cell(record: dict, name: str) -> str:
    entry = record["peers"].get(name, {})
    if "failed" in entry:
        return "failed"
    if "ms" not in entry:
        return "memory" if entry.get("skipped") == "memory" else "-"
    wrong = "wrong: " if is_off(entry) else ""
    return f"{wrong}{digits(entry['ms'])} ({tflops(record, entry['ms']):.0f})"


def _fast(title: str, records: list[dict]) -> Table:
    header = ["workload", "ms", "min..max", "TFLOP/s", "bound", "share", "best peer's", "MiB",
              "error"]
    rows = []
    for record in records:
        entry = record["peers"].get("fast", {})
        if "ms" not in entry:
            rows.append([record["name"], _time_cell(record, "fast")] + ["-"] * 7)
            continue
        ms = entry["ms"]
        others = {name: x for name, x in ranked(record).items() if name not in OWN}
        spread = f"{digits(min(entry['rounds']))}..{digits(max(entry['rounds']))}"
        best = share(record, min(others.values())) if others else None
        rows.append([record["name"], digits(ms), spread, f"{tflops(record, ms):.0f}",
                     record["bound"] or "-", _percent(share(record, ms)), _percent(best),
                     f"{entry['extra_mib']:.1f}",
                     "nan" if entry["error"] is None else f"{entry['error']:.1e}"])
    return Table(title, header, rows)


def _ratios(title: str, records: list[dict], own: str) -> Table:
    names = [name for name in _names(records) if name != own]
    rows = []
    for record in records:
        found = ratios(record, own)
        cells = [f"{found[name]:.2f}" if name in found else "-" for name in names]
        best = best_ratio(record, own)
        rows.append([record["name"], *cells, "-" if best is None else f"{best:.2f}"])
    return Table(title, ["workload", *map(column, names), "best peer"], rows)


def _host(host: dict) -> Table:
    names = [name for name in PEERS if any(name in entries for entries in host.values())]
    rows = [[stage, *(f"{entries[name]['us']:.1f}" if "us" in entries.get(name, {}) else "-"
                      for name in names)] for stage, entries in host.items()]
    return Table("Host: microseconds to enqueue one small forward call",
                 ["stage", *map(column, names)], rows)


def header(results: dict) -> str:
    """Returns one line that says where and when this was measured."""
    machine = results["machine"]
    driver = f"driver {machine['driver']}, " if machine.get("driver") else ""
    return (f"{machine['gpu']}, {driver}torch {machine['torch']}, Triton {machine['triton']}, "
            f"{results['date']}; bfloat16 (tutorial: float16), median of "
            f"{results['settings']['rounds']} rounds, all implementations in turn")


NOTES = [
    "original shape: the last one of the assignment this course descends from, 1 batch entry, "
    "16 query heads, N = 4096, D = 16, with the stage's key/value heads and mask.",
    "TFLOP/s count visible (query, key) pairs only: 4 D FLOP per pair forward, 10 D backward.",
    "* fastest.  -: cannot do this workload (reasons in results.json).  wrong: differs from the "
    f"right answer by more than {LIMIT:g}, not ranked.",
    "share: the least time that matrix units, exponentials or memory allow, over the time taken.  "
    "MiB: allocated by one call.",
]


def as_text(results: dict) -> str:
    """Returns all tables for a terminal, with the summary at the end."""
    blocks = [header(results)]
    for table in tables(results):
        lines = [table.header, *table.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
        body = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                .rstrip() for line in lines]
        body.insert(1, "-" * max(map(len, body)))
        blocks.append("\n".join([f"--- {table.title} ---", *body]))
    return "\n\n".join([*blocks, "\n".join(NOTES), "\n".join(summary(results))]) + "\n"


def as_markdown(results: dict) -> str:
    blocks = ["# Benchmarks", header(results)]
    for table in tables(results):
        lines = [table.header, ["---"] * len(table.header), *map(_bold, table.rows)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        blocks += [f"## {table.title}", body]
    notes = "\n".join(f"- {note}".replace("* fastest", "bold: fastest") for note in NOTES)
    return "\n\n".join([*blocks, notes, "\n".join(f"- {x}" for x in summary(results))]) + "\n"


COLUMNS = ["workload", "direction", "group", "stage", "B", "HQ", "HKV", "N", "D", "causal",
           "window", "sinks", "sink_logits", "implementation", "outcome", "reason", "ms", "min_ms",
           "max_ms", "tflops", "bound", "floor_ms", "share_of_bound", "extra_mib", "error",
           *(f"ratio_to_{own}" for own in OURS)]


def csv_rows(results: dict) -> list[dict]:
    """Returns a row per workload, direction and implementation; times in ms, memory in MiB."""
    rows = []
    for record in results["records"]:
        ratio = {own: ratios(record, own) for own in OURS}
        for name, entry in record["peers"].items():
            row = {column: record.get(column) for column in COLUMNS}
            row |= {"workload": record["name"], "implementation": name, "error": entry.get("error"),
                    "extra_mib": entry.get("extra_mib"),
                    **{f"ratio_to_{own}": ratio[own].get(name) for own in OURS},
                    "reason": entry.get("failed") or entry.get("skipped") or entry.get("note")}
            if "ms" in entry:
                ms, rounds = entry["ms"], entry["rounds"]
                row |= {"outcome": "wrong" if is_off(entry) else "timed", "ms": ms,
                        "min_ms": min(rounds), "max_ms": max(rounds),
                        "tflops": tflops(record, ms), "share_of_bound": share(record, ms)}
            else:
                row["outcome"] = "failed" if "failed" in entry else "skipped"
            rows.append(row)
    return rows


def write_csv(results: dict, path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(csv_rows(results))


# ------------------------------------------------------------------ helpers
def _group(results: dict, group: str) -> list[dict]:
    return [record for record in results["records"] if record["group"] == group]


def _names(records: list[dict]) -> list[str]:
    """Implementations of these records, in the order of PEERS."""
    return [name for name in PEERS if any(name in record["peers"] for record in records)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _bold(row: list[str]) -> list[str]:
    return [f"**{cell[:-1]}**" if cell.endswith("*") else cell for cell in row]
