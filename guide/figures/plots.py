"""Plots of committed results, and of the error that the build computes."""

from guide.figures.pen import Pen
from guide.measured import CEILING, MIB, WORK, entry, records

LENGTHS = [2**n for n in range(8, 17)]


def roofline(pen: Pen):
    """Roofline of an H200: work a second against FLOP a byte, with the stages' measured points."""
    import numpy

    figure, axis = pen.axes(3.6)
    x = numpy.logspace(0.3, 4.3, 200)
    roof = numpy.minimum(CEILING.flops, x * CEILING.bytes) / 1e12
    axis.plot(x, roof, color=pen.ink, linewidth=1.5)
    for marker, colour, name, told in (("o", "a", "stages", "stages"), ("^", "c", "fast", "fast"),
                                       ("s", "b", "naive", "naive, on the bytes it moves")):
        points = []
        for label, record in records().items():
            if record["group"] == "table" and "ms" in record["peers"].get(name, {}):
                work = WORK[label]
                moved = work.bytes() + (4 * work.score_bytes() if name == "naive" else 0)
                if name == "naive" and work.is_backward:
                    continue
                points.append((work.flops() / moved,
                               work.flops() / entry(label, name)["ms"] / 1e9))
        axis.plot(*zip(*points, strict=True), marker, color=getattr(pen, colour), markersize=4.5,
                  label=told, linestyle="none")
    axis.set(xscale="log", yscale="log", xlabel="FLOP a byte of device memory",
             ylabel="TFLOP/s", ylim=(0.08, 1500))
    axis.grid(alpha=0.5)
    axis.legend(loc="lower right", fontsize=8, labelcolor=pen.ink, frameon=False)
    return figure


def _sweep(pen, stage):
    labels = [f"stage {stage}, N={N}, forward" for N in LENGTHS]
    labels = [label for label in labels if label in records()]
    lengths = [WORK[label].N for label in labels]
    figure, axes = pen.axes(2.9, 2)
    for axis, key, words in zip(axes, ("ms", "extra_mib"), ("ms a call", "MiB allocated"),
                                strict=True):
        for name, colour in (("stages", "a"), ("fast", "c"), ("cudnn", "e")):
            axis.plot(lengths, [entry(label, name)[key] for label in labels], marker="o",
                      markersize=3, color=getattr(pen, colour), label=name, linewidth=1.4)
        axis.set(xscale="log", yscale="log", xlabel="N", ylabel=words)
        axis.set_xticks(lengths[::2], [f"{N}" if N < 1024 else f"{N // 1024}k"
                                       for N in lengths[::2]])
        axis.minorticks_off()
        axis.grid(alpha=0.5)
    axes[1].plot(lengths, [WORK[label].score_bytes() / MIB for label in labels], "--",
                 color=pen.b, label="scores, if kept (counted)")
    axes[1].legend(fontsize=8, labelcolor=pen.ink, frameon=False)
    return figure


def sweep_3(pen: Pen):
    """Time and memory of a call against N, without a mask: stage 3, fast, cuDNN."""
    return _sweep(pen, 3)


def sweep_4(pen: Pen):
    """Time and memory of a call against N, causal: stage 4, fast, cuDNN."""
    return _sweep(pen, 4)


def error(pen: Pen):
    """Relative error of stage 1 against float64 over N, by dtype, beside one rounding of each."""
    import torch

    import problem_1
    import reference

    figure, axis = pen.axes(2.7)
    for dtype, colour in ((torch.bfloat16, "b"), (torch.float16, "a"), (torch.float32, "c")):
        points = []
        for N in (64, 256, 1024, 2048):
            torch.manual_seed(0)
            q, k, v = torch.randn(3, 1, 1, N, 64).to(dtype)
            got, _ = problem_1.flash_attention_tiled(q, k, v)
            want = reference.attention(q, k, v)["o"]
            points.append((N, float((got.double() - want).norm() / want.norm())))
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=str(dtype)[6:],
                  color=getattr(pen, colour))
        axis.axhline(torch.finfo(dtype).eps / 4, color=getattr(pen, colour), linestyle=":",
                     linewidth=1)
    axis.set(xscale="log", yscale="log", xlabel="N", ylabel="‖o − truth‖ / ‖truth‖",
             ylim=(1e-8, 1e-2))
    axis.set_xticks([64, 256, 1024, 2048], ["64", "256", "1k", "2k"])
    axis.minorticks_off()
    axis.grid(alpha=0.5)
    axis.legend(fontsize=8, labelcolor=pen.ink, frameon=False, loc="center right")
    return figure
