"""Provides the colours, letters and few shapes that all figures use."""

import os
import tempfile

os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())

import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402

from guide.colours import THEMES  # noqa: E402

WIDTHS = {"wide": 7.0, "narrow": 3.7}  # inches; narrow is for phones, with equally large words
HATCHES = {"cut": "////", "sink": "....", "skipped": ""}  # so that colour alone carries no meaning


class Pen:
    """One theme and width: colours as attributes, and the figures made with them."""

    def __init__(self, theme: str, form: str = "wide"):
        self.__dict__.update(THEMES[theme])
        self.width, self.narrow = WIDTHS[form], form == "narrow"

    def axes(self, height: float, columns: int = 1, across: int = 1):
        """A figure with axes of that height; a narrow one has `across` columns side by side, and
        the others below."""
        if not self.narrow:
            across = columns
        rows = -(-columns // across)
        colours = {"text.color": self.ink, "axes.labelcolor": self.ink,
                   "axes.edgecolor": self.faint,
                   "xtick.color": self.faint, "ytick.color": self.faint, "grid.color": self.line,
                   "axes.titlecolor": self.ink, "legend.labelcolor": self.ink}
        with pyplot.rc_context(colours | {"font.size": 9, "axes.titlesize": 9,
                                          "legend.frameon": False}):
            figure, axes = pyplot.subplots(rows, across, figsize=(self.width, rows * height),
                                           layout="constrained")
        if columns > 1:
            for axis in axes.flat[columns:]:
                axis.remove()
            axes = axes.flat[:columns]
        for axis in axes if columns > 1 else [axes]:
            axis.set_facecolor("none")
            axis.spines[["top", "right"]].set_visible(False)
        return figure, axes

    def canvas(self, width: float, height: float, columns: int = 1, across: int = 1):
        """A figure to draw shapes on: x from 0 to width, y from 0 at the top to height, square."""
        figure, axes = self.axes(
            self.width / (across if self.narrow else columns) * height / width, columns, across)
        for axis in axes if columns > 1 else [axes]:
            axis.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
            axis.axis("off")
        return figure, axes

    def box(self, axis, x, y, width, height, text="", fill="paper", edge="faint", size=8.5, **more):
        """A rectangle with words in its middle."""
        axis.add_patch(Rectangle((x, y), width, height, facecolor=getattr(self, fill),
                                 edgecolor=getattr(self, edge), linewidth=1.0))
        self.hatch(axis, x, y, width, height, fill)
        box = {"facecolor": getattr(self, fill), "linewidth": 0, "pad": 1.5}
        self.write(axis, x + width / 2, y + height / 2, text, size=size, **({"bbox": box} if
                   text and HATCHES.get(fill) else {}) | more)

    def hatch(self, axis, x, y, width, height, kind):
        """Draw the lines or dots over an area of that kind."""
        if HATCHES.get(kind):
            axis.add_patch(Rectangle((x, y), width, height, facecolor="none", linewidth=0,
                                     edgecolor=self.faint, hatch=HATCHES[kind]))

    def write(self, axis, x, y, text, colour="ink", size=8.5, **more):
        axis.text(x, y, text, color=getattr(self, colour), size=size,
                  **({"ha": "center", "va": "center"} | more))

    def arrow(self, axis, start, end, colour="faint", **more):
        axis.add_patch(FancyArrowPatch(
            start, end, color=getattr(self, colour),
            **({"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.1} | more)))

    def save(self, figure, path) -> None:
        """As SVG with letters drawn, so that no font is needed; the same bytes every time."""
        with pyplot.rc_context({"svg.fonttype": "path", "svg.hashsalt": "guide",
                                "hatch.linewidth": 0.5}):
            figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)
