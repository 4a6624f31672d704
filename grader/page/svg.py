"""Pictures as SVG, made of plain numbers: the one colour code of the course for masks and tiles.

A picture is drawn with classes and patterns; style() says what these look like, light and dark, and
PATTERNS is needed once per document.  No meaning hangs on a colour alone: each has its hatching.
"""

from collections.abc import Sequence
from html import escape

import numpy as np
from markupsafe import Markup

from grader.course.calls import Access, Launch

# whole, cut, sink, hidden: what a mask makes of a pair or tile; wrong: of a mistake.
COLOURS = {
    "light": {"ink": "#1f2328", "faint": "#5f6872", "line": "#d0d7de", "paper": "#ffffff",
              "whole": "#9ec9a7", "cut": "#f2cf87", "hidden": "#eef0f2", "sink": "#b9b5e8",
              "wrong": "#bf2a1d", "behind-wrong": "#ffe9dc", "right": "#00586b",
              "behind-right": "#dff1fb", "accent": "#2f6fb4"},
    "dark": {"ink": "#e6e8eb", "faint": "#9aa4ae", "line": "#4a525b", "paper": "#131416",
             "whole": "#3c7a4c", "cut": "#9a7420", "hidden": "#22262b", "sink": "#56509a",
             "wrong": "#ff8a70", "behind-wrong": "#45200f", "right": "#7ad7f5",
             "behind-right": "#0b2b42", "accent": "#6ba7e6"},
}
# Lines over an area, by class: which way they run, in units of the picture.
LINES = {"cut-lines": ("faint", "M-1 1l2-2M0 6l6-6M5 7l2-2"), "sink-lines": ("faint", "M2 3h1"),
         "missing": ("wrong", "M-1 1l2-2M0 6l6-6M5 7l2-2"), "more": ("faint", "M2 3h2M3 2v2")}
PATTERNS = "<defs>" + "".join(
    f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
    f'<path class="{colour}-line" d="{d}"/></pattern>' for name, (colour, d) in LINES.items()
    ) + "</defs>"
SIDE = 240  # of a square panel, in pixels
LEFT, TOP = 22, 20  # what lies beside it for the names of the axes


def style() -> str:
    """CSS for pictures, in a page or in a file of their own."""
    rows = [f":root {{ {_variables('light')} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables('dark')} }} }}",
            "svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }",
            "svg .ink { fill: var(--ink); } svg .edge { stroke: var(--faint); fill: none; }"]
    rows += [f".{name} {{ fill: var(--{name}); }}" for name in (
        "whole", "cut", "sink", "hidden", "wrong", "behind-wrong", "accent", "line", "paper")]
    rows += [f".{name} {{ fill: url(#{name}); }}" for name in LINES]
    rows.append(".read { fill: var(--accent); opacity: .6; } .older { fill: var(--faint); "
                "opacity: .5; }")
    rows.append(".tile-line { fill: none; stroke: var(--faint); stroke-dasharray: 3 2; }")
    rows.append("path.wrong { stroke: var(--wrong); stroke-width: 1.5; }")  # one pair is thin
    rows += [f".{name}-line {{ stroke: var(--{name}); stroke-width: 1.2; fill: none; }}"
             for name in ("faint", "wrong", "accent")]
    return "\n".join(rows) + "\n"


def _variables(theme: str) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in COLOURS[theme].items())


def picture(title: str, says: str, inside: str, width: float, height: float) -> Markup:
    """One <svg> with its name and what it shows, for those who cannot see it."""
    return Markup(
        f'<svg class="drawn" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        f"<title>{escape(title)}</title><desc>{escape(says)}</desc>{inside}</svg>")


def file(title: str, says: str, panels: Sequence[tuple[str, str]],
         legend: Sequence[tuple[str, str]]) -> str:
    """A document of its own: panels, name and picture, side by side; below them what they say, and
    (classes, words) of what is drawn."""
    width, inside = SIDE + LEFT + 16, []
    for number, (name, panel) in enumerate(panels):
        x = 12 + number * width
        inside.append(f'<text class="ink" x="{x + LEFT}" y="18">{escape(name)}</text>'
                      + str(panel).replace("<svg ", f'<svg x="{x}" y="26" ', 1))
    for number, (classes, note) in enumerate([("", title + "."), ("", says), *legend]):
        y = TOP + SIDE + 52 + 19 * number
        inside += [f'<rect class="{one}" x="12" y="{y - 10}" width="12" height="12"/>'
                   for one in classes.split()]
        inside.append(f'<text x="{30 if classes else 12}" y="{y}">{escape(note)}</text>')
    drawn = picture(title, says, f"<style>{style()}</style>{PATTERNS}"
                    f'<rect class="paper" width="100%" height="100%"/>{"".join(inside)}',
                    12 + width * len(panels), TOP + SIDE + 90 + 19 * len(legend))
    return drawn + "\n"


def area(cells: np.ndarray, kind: str, x: float, y: float, size: float) -> str:
    """A <path> over those cells of a grid that are true.  kind: its classes."""
    d, height = [], 0
    for i, row in enumerate(cells):
        height += 1
        if i + 1 < len(cells) and np.array_equal(row, cells[i + 1]):
            continue  # equal rows are one taller row
        changes = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        for first, end in changes.reshape(-1, 2).tolist():
            top, width, tall = (i + 1 - height) * size, (end - first) * size, height * size
            d.append(f"M{x + first * size:.6g} {y + top:.6g}h{width:.6g}v{tall:.6g}h-{width:.6g}z")
        height = 0
    return f'<path class="{kind}" d="{"".join(d)}"/>' if d else ""


def grid(title: str, says: str, layers: Sequence[tuple[str, np.ndarray]], tile: int,
         axes: tuple[str, str] = ("keys", "queries"), first: tuple[int, int] = (0, 0)) -> str:
    """Layers of cells, one over the other, with the edges of tiles.  first: the number of the first
    row and column."""
    rows, columns = layers[0][1].shape
    size = SIDE / max(rows, columns)
    inside = [f'<rect class="hidden" x="{LEFT}" y="{TOP}" width="{columns * size:.6g}" '
              f'height="{rows * size:.6g}"/>']
    inside += [area(cells, kind, LEFT, TOP, size) for kind, cells in layers]
    edges = [f"M{LEFT + at * size:.6g} {TOP}v{rows * size:.6g}"
             for at in range(-first[1] % tile, columns, tile)]
    edges.append(f"M{LEFT} {TOP}h{columns * size:.6g}v{rows * size:.6g}h-{columns * size:.6g}z")
    edges += [f"M{LEFT} {TOP + at * size:.6g}h{columns * size:.6g}"
              for at in range(-first[0] % tile, rows, tile)]
    inside.append(f'<path class="faint-line tile-edges" d="{"".join(edges)}" opacity=".55" '
                  'stroke-width=".7"/>')
    inside.append(f'<text x="{LEFT}" y="{TOP - 6}">{escape(axes[0])} →</text><text transform='
                  f'"translate({LEFT - 8} {TOP}) rotate(90)">{escape(axes[1])} →</text>')
    return picture(title, says, "".join(inside), LEFT + SIDE + 2, TOP + rows * size + 2)


# ------------------------------------------------------------------ masks
DIFFERENCES = {  # what is wrong with a weight -> its class, and what the legend says
    "seen": ("wrong", "a hidden key is seen"), "unseen": ("missing", "a visible key is missed"),
    "much": ("behind-wrong more", "too much weight"),
    "little": ("behind-wrong", "too little weight"), "nan": ("sink sink-lines", "NaN")}


def mask(expected: np.ndarray, found: np.ndarray, wrong: dict[str, np.ndarray], tile: int,
         first: tuple[int, int] = (0, 0), sinks: int = 0) -> list[tuple[str, str]]:
    """Three panels (name, picture): which pairs should be visible, which are, what differs."""
    count = sum(int(cells.sum()) for cells in wrong.values())
    layers = [(kind, cells) for name, cells in wrong.items()
              for kind in DIFFERENCES[name][0].split()]
    said = ", ".join(f"{int(cells.sum())} pairs: {DIFFERENCES[name][1]}"
                     for name, cells in wrong.items() if cells.any()) or "no pair differs"
    return [("expected", grid("The expected mask", f"{int(expected.sum())} pairs are visible.",
                              kinds(expected, tile, first, sinks), tile, first=first)),
            ("yours", grid("Your mask", f"{int(found.sum())} pairs are visible.",
                           kinds(found, tile, first, sinks), tile, first=first)),
            (f"difference: {count or 'none'}", grid(
                "The difference", said + ".", layers or [("wrong", np.zeros_like(expected))],
                tile, first=first))]


def legend(expected: np.ndarray, wrong: dict[str, np.ndarray], tile: int,
           first: tuple[int, int] = (0, 0), sinks: int = 0) -> list[tuple[str, str]]:
    """(classes, words) of what a mask's panels show."""
    there = {kind for kind, cells in kinds(expected, tile, first, sinks) if cells.any()}
    return [*[("whole", "visible, in a tile that needs no mask")] * ("whole" in there),
            *[("cut cut-lines", "visible, in a tile that the mask cuts")] * ("cut" in there),
            *[("sink sink-lines", "sinks: visible to all that follow")] * ("sink" in there),
            *[("hidden", "hidden")] * (not expected.all()),
            *(DIFFERENCES[name] for name, cells in wrong.items() if cells.any())]


def kinds(keep: np.ndarray, tile: int, first: tuple[int, int] = (0, 0), sinks: int = 0
          ) -> list[tuple[str, np.ndarray]]:
    """Visible pairs: apart where the mask cuts their tile, and where only so many sinks are visible
    in it."""
    rows, columns = ((np.arange(n) + at) // tile for n, at in zip(keep.shape, first, strict=True))
    cut, only = np.zeros((2, *keep.shape), bool)
    for i in np.unique(rows):
        for j in np.unique(columns):
            part = np.ix_(rows == i, columns == j)
            cut[part] = not keep[part].all()
            only[part] = not (keep & (np.arange(keep.shape[1]) + first[1] >= sinks))[part].any()
    found = {"whole": keep & ~cut, "cut": keep & cut & ~only, "sink": keep & cut & only}
    return [(kind + more, cells) for kind, cells in found.items()
            for more in ("", "-lines")[:1 + (kind != "whole")]]


# ------------------------------------------------------------------ tiles
def tiles(visits: np.ndarray, masked: np.ndarray, lacks: np.ndarray, vain: np.ndarray,
          rows: Sequence[str], columns: Sequence[str], name: str) -> str:
    """A row per program, a column per tile of its loop.  visits: how often each is visited; lacks:
    what should be otherwise there; vain: visited, and need not be; name: of the picture."""
    size, left, inside, said = 30, 14 + 6.4 * max(map(len, rows)), [], []
    for i, j in np.ndindex(visits.shape):
        x, y = left + j * size, TOP + i * size
        kinds = ["hidden"] if not visits[i, j] else ["cut", "cut-lines"] if masked[i, j] \
            else ["whole"]
        inside += [f'<rect class="{kind}" x="{x:g}" y="{y}" width="27" height="27" rx="3"/>'
                   for kind in kinds]
        where = f"{rows[i]}, tile {columns[j]}"
        if lacks[i, j]:
            inside.append(f'<rect class="wrong-line" x="{x + 1:g}" y="{y + 1}" width="25" '
                          'height="25" rx="3" stroke-width="2" stroke-dasharray="4 2"/>')
            said.append(f"{where}: not as it should be")
        if vain[i, j]:
            inside.append(f'<path class="wrong-line" d="M{x + 7:g} {y + 7}l13 13m0-13l-13 13"/>')
            said.append(f"{where}: visited in vain")
        if visits[i, j] > 1:
            inside.append(f'<text class="ink" x="{x + 13.5:g}" y="{y + 17}" text-anchor="middle">'
                          f"{visits[i, j]}×</text>")
    inside += [f'<text x="{left - 8:g}" y="{TOP + i * size + 18}" text-anchor="end">'
               f"{escape(row)}</text>" for i, row in enumerate(rows)]
    inside += [f'<text x="{left + j * size + 13.5:g}" y="{TOP - 6}" text-anchor="middle">'
               f"{escape(column)}</text>" for j, column in enumerate(columns)]
    return picture(name, ("; ".join(said) or "All is as it should be") + ".", "".join(inside),
                   left + len(columns) * size, TOP + len(rows) * size)


# ------------------------------------------------------------------ memory
VERBS = {"load": ("read",), "store": ("sink", "sink-lines"), "add": ("cut", "cut-lines")}
OVER = 14  # pixels below a tensor, for rows that it does not have


def memory(launch: Launch, turns: Sequence[Sequence[tuple[str, Sequence[Access]]]], first: int,
           says: str) -> str:
    """The tensors of a launch; on them, a group per program and in it one per turn of its loop,
    with what that says.  first: the program that is shown at first."""
    longest = max(rows for rows, _ in launch.tensors.values())
    place, inside, x = {}, [], 30.0
    for name, (rows, columns) in launch.tensors.items():
        short = name.removesuffix("_ptr")
        width, height = max(14.0, min(columns, 64) * 0.75), max(6.0, rows / longest * 180)
        place[name] = (x, width, height)
        inside.append(f'<text class="ink" x="{x:g}" y="{TOP - 6}">{escape(short)}</text>'
                      f'<rect class="hidden" x="{x:g}" y="{TOP}" width="{width:g}" '
                      f'height="{height:g}"/>')
        x += max(width, 7.0 * len(short)) + 14
    inside.append(f'<text x="22" y="{TOP + 9}" text-anchor="end">0</text><text x="22" '
                  f'y="{TOP + 180}" text-anchor="end">{longest - 1}</text>')
    for number, program in enumerate(turns):
        inside.append(f'<g class="program{"" if number == first else " off"}">')
        for words, accesses in program:
            inside.append(f'<g class="turn" data-says="{escape(words)}">')
            for one in accesses:
                inside += _boxes(one, launch.tensors[one.tensor], *place[one.tensor])
            inside.append("</g>")
        inside.append("</g>")
    return picture(f"Loads and stores of {launch.kernel}", says, "".join(inside), x,
                   TOP + 182 + OVER)


def _boxes(one: Access, shape: tuple[int, int], x: float, width: float, height: float) -> list[str]:
    """An access on its tensor: all lanes dashed, those that no mask leaves out filled, those that
    lie outside in red."""
    def rectangle(box, kind: str) -> str:
        (top, bottom, left, right), (rows, columns) = box, shape
        most = rows * (1 + OVER / height)
        top, bottom = (min(max(edge, -rows * 8 / height), most) for edge in (top, bottom + 1))
        left, right = (min(max(edge, 0), columns * 1.1) for edge in (left, right + 1))
        return (f'<rect class="{kind}" x="{x + left * width / columns:.5g}" '
                f'y="{TOP + top * height / rows:.5g}" '
                f'width="{max(2, (right - left) * width / columns):.5g}" '
                f'height="{max(2, (bottom - top) * height / rows):.5g}"/>')

    parts, rows = [], shape[0]
    if one.lanes:
        top, bottom, left, right = one.lanes
        parts += [rectangle((max(top, 0), min(bottom, rows - 1), left, right), kind)
                  for kind in VERBS.get(one.verb, ("hidden",)) if top < rows and bottom >= 0]
        if outside(one, shape):
            parts.append(rectangle((max(top, min(rows, bottom)), bottom, left, right)
                                   if bottom >= rows else one.lanes, "wrong"))
    return [*parts, rectangle(one.tile, "tile-line")]


def outside(one: Access, shape: tuple[int, int]) -> bool:
    """Whether a lane that is not masked off lies outside of the tensor."""
    top, bottom, left, right = one.lanes or (0, 0, 0, 0)
    return top < 0 or bottom >= shape[0] or left < 0 or right >= shape[1]


# ------------------------------------------------------------------ online softmax
BAR, TALL = 5, 46  # pixels: the width of a bar, and the height of the tallest


def softmax(turns: Sequence[tuple[np.ndarray, np.ndarray, str]], says: str) -> Markup:
    """A row per turn of a loop: bars of older keys, bars of this tile's, and what is said of it."""
    tallest = max(float((old + new).max()) for old, new, _ in turns)
    inside, width = [], BAR * len(turns[0][0])
    for number, (old, new, words) in enumerate(turns):
        floor = (TALL + 26) * (number + 1) - 6
        inside.append(f'<text x="0" y="{floor - TALL - 4}">{escape(words)}</text>'
                      f'<path class="faint-line" d="M0 {floor}h{width}" stroke-width=".7"/>')
        for kind, bars in (("older", old), ("read", new)):
            d = "".join(f"M{BAR * i} {floor}v-{bar / tallest * TALL:.4g}h{BAR - 1}V{floor}z"
                        for i, bar in enumerate(bars.tolist()) if bar > 0)
            inside.append(f'<path class="{kind}" d="{d}"/>')
    return picture("The online softmax of one row", says, "".join(inside), max(width, 330),
                   (TALL + 26) * len(turns))


def swatch(classes: str) -> Markup:
    """A small square of the key beside its words, which say what it is."""
    return Markup('<svg class="swatch" width="14" height="14" aria-hidden="true">' + "".join(
        f'<rect class="{kind}" width="14" height="14"/>' for kind in classes.split()) + "</svg>")
