"""The figures: one function each, drawn for light and dark pages, wide and narrow.

A function gets a Pen and uses only its colours, so that all forms show the same.
"""

from itertools import product
from pathlib import Path

from guide.colours import THEMES
from guide.figures import diagrams, masks, plots
from guide.figures.pen import WIDTHS, Pen

FIGURES = {name.replace("_", "-"): make
           for module in (diagrams, masks, plots) for name, make in vars(module).items()
           if callable(make) and make.__module__ == module.__name__ and not name.startswith("_")}


def draw_all(folder: Path, names=None) -> list[Path]:
    """Write NAME-wide-light.svg and so on into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names or FIGURES:
        for form, theme in product(WIDTHS, THEMES):
            pen = Pen(theme, form)
            written.append(folder / f"{name}-{form}-{theme}.svg")
            pen.save(FIGURES[name](pen), written[-1])
    return written
