"""python -m tools.mask_picture > docs/mask.svg: draws the mask of stage 7 and the tiles visited."""

import numpy as np
from markupsafe import Markup

import reference
from grader.drawings import svg

N, TILE, WINDOW, SINKS = 32, 4, 11, 2
CELL, LEFT, TOP = 11, 24, 30  # pixels
CLASSES = {"sinks": ("sink", "sink-lines"), "left edge": ("cut", "cut-lines"),
           "interior": ("whole",), "diagonal": ("cut", "cut-lines")}
WORDS = {"sinks": "the first tokens, always visible", "diagonal": "cut by causality: masked",
         "left edge": "cut by the window: masked", "interior": "visible to every row: no mask"}


def phase(query: int, key: int) -> str:
    """The phase of step 7.4 that visits this pair, or ""."""
    start_m = query // TILE * TILE
    first = max(start_m - WINDOW + 1, 0) // TILE * TILE
    inner = min(-(-max(start_m + TILE - WINDOW, 0) // TILE) * TILE, start_m)
    if start_m <= key < start_m + TILE:
        return "diagonal"
    if inner <= key < start_m:
        return "interior"
    if first <= key < inner:
        return "left edge"
    return "sinks" if key // TILE * TILE < min(SINKS, first) else ""


def picture() -> str:
    """The SVG, for light pages and dark ones."""
    keep = reference.keep_mask(N, N, True, WINDOW, SINKS).numpy()
    where = np.array([[phase(query, key) for key in range(N)] for query in range(N)])
    layers = [("hidden", (where != "") & ~keep)]
    layers += [(one, (where == name) & keep) for name, kinds in CLASSES.items() for one in kinds]
    rows = [f"<style>{svg.STYLE}svg text {{ font-size: 14px; }}</style>{svg.draw.patterns()}"]
    rows += [f'<path class="{kind}" d="{svg.area(cells, LEFT, TOP, CELL)}"/>'
             for kind, cells in layers]
    for query in range(0, N, TILE):
        for key in range(0, N, TILE):
            if where[query, key]:
                rows.append(f'<rect class="edge" x="{LEFT + key * CELL}" y="{TOP + query * CELL}" '
                            f'width="{TILE * CELL}" height="{TILE * CELL}" stroke-width=".8"/>')
    rows.append(f'<text x="{LEFT}" y="{TOP - 10}">keys</text>'
                f'<text transform="translate({LEFT - 10} {TOP + 50}) rotate(-90)">queries</text>')
    right = LEFT + N * CELL + 20
    notes = [(CLASSES[name], f"{name}: {words}") for name, words in WORDS.items()]
    notes.append((("hidden",), "visited, but hidden by the mask"))
    for i, (classes, words) in enumerate(notes):
        y = TOP + 20 + 26 * i
        rows += [f'<rect class="{one}" x="{right}" y="{y - 11}" width="13" height="13"/>'
                 for one in classes]
        rows.append(f'<text x="{right + 20}" y="{y}">{words}</text>')
    rows.append(f'<text x="{right}" y="{y + 34}">All other tiles are never visited.</text>')
    title = f"Causal mask, window {WINDOW}, {SINKS} sinks, tiles of {TILE}"
    says = "The tiles that the loop visits, and what the mask leaves of them."
    return svg.draw.frame(title, says, LEFT + N * CELL + 330, TOP + N * CELL + 12,
                          caller=lambda: Markup("\n".join(rows))).strip() + "\n"


if __name__ == "__main__":
    print(picture(), end="")
