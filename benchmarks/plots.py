"""Draw the results: one figure per stage, and an overview.  matplotlib is optional."""

from pathlib import Path

from benchmarks.peers import OURS, PEERS
from benchmarks.tables import best_peer, best_ratio, column, is_off

HINT = "want matplotlib for the figures; got none: pip install matplotlib"
DRAWN = {"stages": "o", "fast": "s", "gluon": "D"}  # ours -> its mark in the overview
PANELS = (("time of a call (ms)", "ms"), ("memory it allocates (MiB)", "extra_mib"))


class NoMatplotlib(Exception):
    """matplotlib is missing; the text says what to install."""


def draw(results: dict, folder: Path) -> list[Path]:
    """Write stage_N.png for every stage of the sweep, and overview.png.

    Args:
        results: as results.read returns them.
        folder: where the figures go.

    Returns:
        The paths of the figures.

    Raises:
        NoMatplotlib: matplotlib is not installed.
    """
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
    compared = [(record["label"], best_peer(record),
                 {own: best_ratio(record, own) for own in DRAWN})
                for record in results["records"]
                if record["group"] == "table" and best_ratio(record, "fast") is not None]
    if compared:
        _draw_overview(compared, results, folder / "overview.png")
        written.append(folder / "overview.png")
    return written


def _draw_stage(records: list[dict], results: dict, path: Path) -> None:
    """Draw time, on a logarithmic axis, and memory over N.  Dashed lines are backward passes."""
    from matplotlib import pyplot, ticker

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
        axis.set(xscale="log", xlabel="N", ylabel=label)
        axis.set_xticks(sorted({record["N"] for record in records}))
        axis.xaxis.set_major_formatter(lambda n, _: f"{n:.0f}" if n < 1024 else f"{n / 1024:.0f}k")
        if key == "ms":
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
        else:
            axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6,
                  fontsize="small")
    figure.suptitle(f"Stage {records[0]['stage']}: {_told(records[-1])}\n{_where(results)}",
                    fontsize="medium")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _points(records: list[dict], name: str, direction: str, key: str) -> list[tuple]:
    """Returns (N, value) of one line, without wrong answers and what log axes cannot show."""
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
    """Draw a bar per workload: ms of the best peer over ms of the faster of our fast kernels.

    Right of 1 ours is faster.  Each of DRAWN has a mark.
    compared: (label, the best peer's name, {one of DRAWN: its ratio, or None}).
    """
    from matplotlib import pyplot

    labels, names, found = zip(*reversed(compared), strict=True)
    values = [max(ratio[own] or 0 for own in DRAWN if own != "stages") for ratio in found]
    figure, axis = pyplot.subplots(figsize=(9, 1 + 0.32 * len(values)), layout="constrained")
    bars = axis.barh(labels, values, color=["#9ec5e8" if value >= 1 else "#d0d0d0"
                                            for value in values])
    told = [f"{value:.2f} {name}" for value, name in zip(values, names, strict=True)]
    axis.bar_label(bars, told, padding=6, fontsize="small",
                   bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    for own, mark in DRAWN.items():
        points = [(ratio[own], label) for ratio, label in zip(found, labels, strict=True)
                  if ratio[own]]
        if points:
            axis.plot(*zip(*points, strict=True), mark, color="black", markersize=5,
                      markerfacecolor="black" if own == "stages" else "white", label=column(own))
    axis.legend(loc="upper right", fontsize="small")
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set_xlim(0, 1.15 * max(*values, 1.0))
    axis.margins(y=0.02)
    axis.set_xlabel("time of the best peer (named) / our time: right of 1, ours is faster")
    figure.suptitle(_where(results), fontsize="medium")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
