"""Figures from the results: a figure a stage, and an overview.  matplotlib is optional."""

from pathlib import Path

from benchmarks.peers import OURS, PEERS
from benchmarks.tables import best_peer, best_ratio, column, is_off

HINT = "want matplotlib for the figures; got none: pip install matplotlib"
PANELS = (("time of a call (ms)", "ms"), ("memory it allocates (MiB)", "extra_mib"))


class NoMatplotlib(Exception):
    """Says what to install."""


def draw(results: dict, folder: Path) -> list[Path]:
    """Write stage_N.png for every stage of the sweep, and overview.png.  -> what was written."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoMatplotlib(HINT) from error
    matplotlib.use("Agg")
    sweep = [record for record in results["records"] if record["group"] == "sweep"]
    written = []
    for stage in sorted({record["stage"] for record in sweep}):
        path = folder / f"stage_{stage}.png"
        _draw_stage([record for record in sweep if record["stage"] == stage], results, path)
        written.append(path)
    compared = [(record["label"], best_peer(record), *(best_ratio(record, own) for own in OURS))
                for record in results["records"]
                if record["group"] == "table" and best_ratio(record, "fast") is not None]
    if compared:
        _draw_overview(compared, results, folder / "overview.png")
        written.append(folder / "overview.png")
    return written


def _draw_stage(records: list[dict], results: dict, path: Path) -> None:
    """Two panels over N, log axes: time and memory.  Dashed: backward."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for axis, (label, key) in zip(axes, PANELS, strict=True):
        for i, name in enumerate(PEERS):
            for direction, style in (("forward", "-"), ("backward", "--")):
                points = _points(records, name, direction, key)
                if points:
                    suffix = ", backward" if direction == "backward" else ""
                    axis.plot(*zip(*points, strict=True), style, marker="o", markersize=3,
                              color=f"C{i}", label=column(name) + suffix,
                              linewidth=2.2 if name in OURS else 1.2)
        axis.set(xscale="log", yscale="log", xlabel="N", ylabel=label)
        axis.set_xticks(sorted({record["N"] for record in records}))
        axis.xaxis.set_major_formatter(lambda n, _: f"{n:.0f}" if n < 1024 else f"{n / 1024:.0f}k")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6,
                  fontsize="small")
    figure.suptitle(f"Stage {records[0]['stage']}: {_told(records[-1])}\n{_where(results)}",
                    fontsize="medium")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _points(records: list[dict], name: str, direction: str, key: str) -> list[tuple]:
    """(N, value) of one line; what log axes cannot show, and wrong answers, left out."""
    entries = [(record["N"], record["peers"].get(name, {})) for record in records
               if record["direction"] == direction]
    return sorted((N, entry[key]) for N, entry in entries
                  if entry.get(key) and "ms" in entry and not is_off(entry))


def _told(record: dict) -> str:
    mask = record["shape"].split(", ", 4)[4]
    return f"{record['HQ']}/{record['HKV']} heads, D = {record['D']}, {mask}"


def _where(results: dict) -> str:
    machine = results["machine"]
    return (f"{machine['gpu']}, torch {machine['torch']}, Triton {machine['triton']}, "
            f"{results['date']}")


def _draw_overview(compared: list[tuple], results: dict, path: Path) -> None:
    """Horizontal bars: ms of the best peer over ms of fast, a dot for stages.  Beyond 1: faster.

    compared: (label, the best peer's name, its ratio to stages or None, its ratio to fast).
    """
    from matplotlib import pyplot

    labels, names, plain, values = zip(*reversed(compared), strict=True)
    figure, axis = pyplot.subplots(figsize=(9, 1 + 0.32 * len(values)), layout="constrained")
    bars = axis.barh(labels, values, color=["C0" if value >= 1 else "C7" for value in values])
    told = [f"{value:.2f} {name}" for value, name in zip(values, names, strict=True)]
    axis.bar_label(bars, told, padding=3, fontsize="small",
                   bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    dots = [(ratio, label) for ratio, label in zip(plain, labels, strict=True) if ratio]
    if dots:
        axis.plot(*zip(*dots, strict=True), "o", color="black", markersize=4, label="stages")
        axis.legend(loc="lower right", fontsize="small")
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set_xlim(0, 1.15 * max(*values, 1.0))
    axis.margins(y=0.02)
    axis.set_xlabel("ms of the best peer / ms of fast (right of the line, fast is faster)")
    figure.suptitle(_where(results), fontsize="medium")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
