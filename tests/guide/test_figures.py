"""Every word of a figure can be read, on a page and on a phone."""

import json
import subprocess
import sys

import pytest

from guide.excerpts import ROOT

PHONE = 358  # pixels of a page 390 wide
# In a process of its own: matplotlib is not imported here.
LOOK = """
import json
from itertools import combinations
from matplotlib.text import Text
from guide.figures import FIGURES
from guide.figures.pen import WIDTHS, Pen
found = {}
for name, draw in FIGURES.items():
    for form, width in WIDTHS.items():
        figure = draw(Pen("light", form))
        figure.canvas.draw()
        words = {}
        for i, axis in enumerate(figure.axes):
            legend = axis.get_legend().get_texts() if axis.get_legend() else []
            for j, text in enumerate([*axis.texts, *legend, axis.xaxis.label, axis.yaxis.label]):
                if text.get_text().strip() and text.get_visible():
                    words[f"{text.get_text()} #{i}.{j}"] = text
        boxes = {text: Text.get_window_extent(t) for text, t in words.items()}
        space = figure.bbox.padded(1)
        out = [text for text, box in boxes.items() if not (
            space.x0 <= box.x0 and box.x1 <= space.x1 and space.y0 <= box.y0
            and box.y1 <= space.y1)]
        over = [[a, b] for a, b in combinations(boxes, 2)
                if boxes[a].padded(-1).overlaps(boxes[b].padded(-1))]
        found[f"{name} {form}"] = {"out": out, "over": over, "width": width,
            "size": min(t.get_size() for t in words.values())}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def figures():
    ran = subprocess.run([sys.executable, "-c", LOOK], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_no_word_leaves_its_figure_or_lies_over_another(figures):
    assert len(figures) > 30
    assert {name: one for name, one in figures.items() if one["out"] or one["over"]} == {}


@pytest.mark.slow
def test_words_are_as_large_on_a_phone_as_small_print(figures):
    for name, one in figures.items():
        if name.endswith("narrow"):
            assert one["size"] * PHONE / (72 * one["width"]) > 10, name
