"""Plots of committed results, and of the error that the build computes."""

import re
from functools import cache

from benchmarks.tables import column
from guide.figures.pen import HATCHES, Pen
from guide.measured import CEILING, WORK, entry, flash_4, gluon, records

LENGTHS = [2**n for n in range(8, 17)]


def roofline(pen: Pen):
    """Roofline of an H200: work per second against FLOP per byte, with measured points."""
    import numpy

    figure, axis = pen.axes(4.7 if pen.narrow else 4.4)
    x = numpy.logspace(0.3, 4.3, 200)
    ridge, top = CEILING.flops / CEILING.bytes, CEILING.flops / 1e12
    axis.plot(x, numpy.minimum(CEILING.flops, x * CEILING.bytes) / 1e12, color=pen.ink)
    pen.write(axis, 6, 6 * CEILING.bytes / 1e12 * 1.35, f"memory, {CEILING.bytes / 1e12:.1f} TB/s",
              rotation=41 if pen.narrow else 30, rotation_mode="anchor", ha="center")
    pen.write(axis, 2.2e4, top * 1.12, f"matrix units, {top:.0f} TFLOP/s", ha="right", va="bottom")
    axis.plot([ridge, ridge], [0.08, top], color=pen.faint, linewidth=0.8, linestyle=":")
    pen.write(axis, ridge * 0.93, 0.1, f"ridge, {ridge:.0f}", ha="right", va="bottom", size=8)
    roof = CEILING.exponentials * 4 * 16 / 1e12  # at D = 64 it lies above that of the matrix units
    axis.plot([roof * 1e12 / CEILING.bytes, x[-1]], [roof, roof], "--", color=pen.ink, linewidth=1)
    words = f"exponentials at D = 16,\n{roof:.0f} TFLOP/s"
    start = roof * 1e12 / CEILING.bytes  # beside the line: there is no room on it
    at, to = ((1.4e4, roof), (2e4, 3)) if pen.narrow else ((start, roof), (start / 2.2, roof * 2.2))
    axis.annotate(words, at, to, ha="right", size=8, color=pen.ink,
                  arrowprops={"arrowstyle": "-", "color": pen.faint, "linewidth": 0.6})
    for marker, colour, name, told in (
            ("o", "a", "stages", "stages, on the least bytes"),
            ("^", "c", "fast", f"{column('fast')}, on the least bytes"),
            ("s", "b", "naive", "naive forward, on the bytes that it moves")):
        points = []
        for label, record in records().items():
            if record["group"] == "table" and "ms" in record["peers"].get(name, {}):
                work = WORK[label]
                if name == "naive" and work.is_backward:
                    continue
                points.append((label, work.flops() / _moved(work, name),
                               work.flops() / entry(label, name)["ms"] / 1e9))
        axis.plot([p[1] for p in points], [p[2] for p in points], marker, markersize=4.5,
                  color=getattr(pen, colour), label=told, linestyle="none",
                  markerfacecolor="none" if name == "fast" else getattr(pen, colour))
        if name == "stages" and not pen.narrow:
            for label, at, reached in points:
                if label in NAMED:
                    axis.annotate(label.removesuffix(", forward"), (at, reached), NAMED[label],
                                  textcoords="offset points",
                                  color=pen.ink, size=7, arrowprops={
                                      "arrowstyle": "-", "color": pen.faint, "linewidth": 0.6})
    axis.set(xscale="log", yscale="log", xlabel="FLOP per byte of device memory",
             ylabel="useful TFLOP/s", ylim=(0.08, 2500), xlim=(x[0], x[-1]))
    axis.grid(alpha=0.5)
    axis.legend(fontsize=8, labelcolor=pen.ink, frameon=False, **(
        {"loc": "upper right", "bbox_to_anchor": (1, -0.14)} if pen.narrow else
        {"loc": "lower right"}))
    return figure


# Workloads whose point has its name beside it, and where, in points.
NAMED = {"stage 3, D=64, forward": (48, -36),
         "stage 3, original shape, forward": (36, -26),
         "stage 4, original shape, forward": (24, -32),
         "stage 6, original shape, forward": (10, -16),
         "stage 9, GPT-OSS window, forward": (10, -20)}


def _moved(work, name: str) -> int:
    """Bytes of a call: the least, and for naive attention S and P, each written and read, too."""
    return work.bytes() + (4 * work.score_bytes() if name == "naive" else 0)


def _sweep(pen, stage):
    labels = [f"stage {stage}, N={N}, forward" for N in LENGTHS]
    labels = [label for label in labels if label in records()]
    lengths = [WORK[label].N for label in labels]
    figure, axes = pen.axes(2.9, 2)
    for axis, (key, unit, words) in zip(axes, (
            ("ms", 1, "ms per call"), ("extra_mib", 1024, "GiB allocated")), strict=True):
        for name, colour, line in (("stages", "a", "o-"), ("fast", "c", "s--"),
                                   ("cudnn", "e", "^:")):
            axis.plot(lengths, [entry(label, name)[key] / unit for label in labels], line,
                      markersize=3.5, color=getattr(pen, colour), label=column(name),
                      linewidth=1.4)
        axis.set(xscale="log", xlabel="N", ylabel=words)
        axis.set_xticks(lengths[::2], [f"{N}" if N < 1024 else f"{N // 1024}k"
                                       for N in lengths[::2]])
        axis.minorticks_off()
        axis.grid(alpha=0.5)
    axes[0].set_yscale("log")
    axes[1].plot(lengths, [WORK[label].score_bytes() / 2**30 for label in labels], "x-.",
                 color=pen.b, label="scores, if kept (counted)")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(fontsize=8, labelcolor=pen.ink, frameon=False, loc="upper left")
    return figure


def sweep_3(pen: Pen):
    """Time and memory of a call against N, without a mask: stage 3, sink_attn, cuDNN."""
    return _sweep(pen, 3)


def sweep_4(pen: Pen):
    """Time and memory of a call against N, causal: stage 4, sink_attn, cuDNN."""
    return _sweep(pen, 4)


@cache
def _errors(dtype: str) -> list[tuple[int, float]]:
    """(N, relative error of stage 1 against float64) of that dtype."""
    import torch

    import problem_1
    import reference

    points = []
    for N in (64, 256, 1024, 2048):
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 1, N, 64).to(getattr(torch, dtype))
        got, _ = problem_1.flash_attention_tiled(q, k, v)
        want = reference.attention(q, k, v)["o"]
        points.append((N, float((got.double() - want).norm() / want.norm())))
    return points


def error(pen: Pen):
    """Relative error of stage 1 against float64 over N, by dtype, beside one rounding of each."""
    import torch

    figure, axis = pen.axes(2.7)
    for dtype, colour, line in (("bfloat16", "b", "o-"), ("float16", "a", "s--"),
                                ("float32", "c", "^-.")):
        axis.plot(*zip(*_errors(dtype), strict=True), line, markersize=3.5, label=dtype,
                  color=getattr(pen, colour))
        axis.axhline(torch.finfo(getattr(torch, dtype)).eps / 4, color=getattr(pen, colour),
                     linestyle=":", linewidth=1)
    axis.set(xscale="log", yscale="log", xlabel="N", ylabel="‖o − truth‖ / ‖truth‖",
             ylim=(1e-8, 1e-2))
    axis.set_xticks([64, 256, 1024, 2048], ["64", "256", "1k", "2k"])
    axis.minorticks_off()
    axis.grid(alpha=0.5)
    axis.legend(fontsize=8, labelcolor=pen.ink, frameon=False, loc="center right")
    return figure


def bars(pen: Pen):
    """What each key weighs after one, two and three tiles: old bars shrink as the maximum grows."""
    from guide.worked import SCORES, TILE
    from guide.worked import bars as frames_of

    figure, axes = pen.axes(1.9, 3)
    for k, (axis, frame) in enumerate(zip(axes, frames_of(SCORES, TILE), strict=True), 1):
        weights, new = frame["weights"], frame["new"]
        for j, weight in enumerate(weights):
            kind = "cut" if j >= len(weights) - new else "whole"
            axis.bar(j, weight, width=0.8, color=getattr(pen, kind), edgecolor=pen.faint,
                     hatch=HATCHES.get(kind))
            pen.write(axis, j, weight + 0.06, f"{weight:.2g}", size=8)
        pen.write(axis, 2.5, 1.32, f"{k}: m_i = {frame['m']}, alpha = {frame['alpha']}", size=8.5)
        axis.set(xlim=(-0.6, 5.6), ylim=(0, 1.4), yticks=[], xlabel="key")
        axis.set_xticks(range(6), [str(j) for j in range(6)])
    return figure


def ladder(pen: Pen):
    """Rungs from the stage to FlashAttention-4 at D = 128: time of a forward call, with a line
    where FlashAttention-4 is."""
    figure, axes = pen.axes(2.6, 2)
    rungs = [("the stage", [entry(f"stage {stage}, D=128, forward", "stages")["ms"]
                            for stage in (3, 4)]),
             *((re.sub("^and", "+", words.partition(" (")[0]), [float(full), float(causal)])
               for words, full, causal in gluon().rows)]
    for k, (axis, title) in enumerate(zip(axes, ("full", "causal"), strict=True)):
        times = [ms[k] for _, ms in rungs]
        axis.barh(range(len(rungs)), times, height=0.7, color=[
            pen.a, pen.c, *[pen.d] * (len(rungs) - 2)])
        for y, ms in enumerate(times):
            pen.write(axis, 0.02 * max(times), y, f"{ms:.2f}", colour="paper", size=8, ha="left")
        axis.axvline(flash_4()[k], color=pen.b, linewidth=1.6, linestyle="--")
        pen.write(axis, flash_4()[k] * 0.97, len(rungs) - 0.3, "FlashAttention-4", colour="b",
                  size=8, ha="right")
        axis.set(yticks=range(len(rungs)), xlabel=f"{title}: ms per call", xlim=(0, max(times)),
                 ylim=(len(rungs), -0.6))
        axis.set_yticklabels([words for words, _ in rungs] if k == 0 or pen.narrow else [])
    return figure
