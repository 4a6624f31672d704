"""Draw loss curves, and the time and memory of a training step by length."""

from pathlib import Path

PANELS = (("time of a step (ms)", "ms"), ("peak memory (GiB)", "peak_gib"))
STYLES = ("-", "--", ":", "-.")
HINT = "want matplotlib for the figures; got none: pip install matplotlib, then --plot"


class NoMatplotlib(Exception):
    """matplotlib is missing; the text says what to install."""


def _told(settings: dict) -> str:
    return (f"{settings['gpu']}, torch {settings['torch']}, Triton {settings['triton']}, "
            f"Transformers {settings['transformers']}, {settings['dtype']}, {settings['date']}")


def _figure(panels: int):
    try:
        import matplotlib
    except ImportError as error:
        raise NoMatplotlib(HINT) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, panels, figsize=(5.5 * panels, 4.2), layout="constrained", squeeze=False
    )
    return figure, axes[0]


def _save(figure, title: str, settings: dict, path: Path) -> None:
    from matplotlib import pyplot

    figure.suptitle(f"{title}\n{_told(settings)}", fontsize="small")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def loss(curves: dict[str, list[list[float]]], title: str, settings: dict, path: Path) -> None:
    """Draw loss curves: the mean over seeds, and their range.

    Args:
        curves: attention implementation -> one list of losses per seed, in nats per token.
        title, settings: what is said above the figure.
        path: of the PNG.
    """
    figure, (axis,) = _figure(1)
    for i, (name, runs) in enumerate(curves.items()):
        steps = range(1, 1 + min(map(len, runs)))
        columns = list(zip(*runs, strict=False))
        mean = [sum(column) / len(column) for column in columns]
        label = name if len(runs) == 1 else f"{name}, mean of {len(runs)} seeds"
        axis.plot(steps, mean, STYLES[i % len(STYLES)], color=f"C{i}", label=label,
                  linewidth=2.5 if i == 0 else 1.2)
        if len(runs) > 1:
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axis.fill_between(steps, low, high, color=f"C{i}", alpha=0.15)
    axis.set(xlabel="step", ylabel="loss (nats per token)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    _save(figure, title, settings, path)


def steps(points: list[dict], settings: dict, row: str, path: Path) -> None:
    """Draw the time and, on a GPU, the peak memory of a step over the length of its row.

    Args:
        points: dicts with attn, N, and either ms and peak_gib or out_of_memory, drawn as a cross.
        settings: as in loss.
        row: what a row of a step holds, for the title.
        path: of the PNG.
    """
    points = [point for point in points if not point.get("search")]
    names = list(dict.fromkeys(point["attn"] for point in points))
    panels = [panel for panel in PANELS if any(point.get(panel[1]) for point in points)]
    figure, axes = _figure(len(panels))
    for axis, (label, key) in zip(axes, panels, strict=True):
        for i, name in enumerate(names):
            mine = sorted((p["N"], p[key]) for p in points if p["attn"] == name and p.get(key))
            if not mine:
                continue
            axis.plot(*zip(*mine, strict=True), STYLES[i % len(STYLES)], marker="o", markersize=4,
                      color=f"C{i}", label=name, linewidth=4.0 if i == 0 else 1.2)
            failed = [p["N"] for p in points if p["attn"] == name and p.get("out_of_memory")]
            if failed:
                axis.plot(min(failed), mine[-1][1], marker="x", markersize=9, color=f"C{i}",
                          linestyle="none", label=f"{name}: out of memory")
        axis.set(xscale="log", yscale="log", xlabel="tokens in the row", ylabel=label)
        ticks = sorted({p["N"] for p in points})
        axis.set_xticks(ticks, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    _save(figure, f"One training step of GPT-OSS, {row}", settings, path)
