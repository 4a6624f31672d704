"""The figures: one function each, drawn twice, for a light and for a dark page.

A function gets a Pen and draws with its colours only, so that both come out alike.
"""

from pathlib import Path

from guide.colours import THEMES
from guide.figures import diagrams, masks, plots
from guide.figures.pen import Pen

FIGURES = {name.replace("_", "-"): make
           for module in (diagrams, masks, plots) for name, make in vars(module).items()
           if callable(make) and make.__module__ == module.__name__ and not name.startswith("_")}


def draw_all(folder: Path, names=None) -> list[Path]:
    """Write NAME-light.svg and NAME-dark.svg into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names or FIGURES:
        for theme in THEMES:
            pen = Pen(theme)
            figure = FIGURES[name](pen)
            written.append(folder / f"{name}-{theme}.svg")
            pen.save(figure, written[-1])
    return written
