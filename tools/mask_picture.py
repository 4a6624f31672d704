"""python -m tools.mask_picture > docs/mask.svg: the mask of stage 7 and the tiles visited."""

import reference

N, TILE, WINDOW, SINKS = 32, 4, 11, 2
CELL, LEFT, TOP = 11, 24, 30  # pixels
COLOURS = {"sinks": "#d9822b", "left edge": "#9b6fd0", "interior": "#2f9e6e", "diagonal": "#3b82c4"}
WORDS = {"sinks": "the first tokens, always visible", "left edge": "cut by the window: masked",
         "interior": "visible to every row: no mask", "diagonal": "cut by causality: masked"}
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" font-family="sans-serif" font-size="14" role="img">
<title>{title}</title>
<style>
text {{ fill: #77818c }} .tile {{ fill: none; stroke: #8b949e }} .hidden {{ fill: #8b949e33 }}
</style>
"""


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
    """The SVG; its grey is legible on light pages and on dark ones."""
    keep = reference.keep_mask(N, N, True, WINDOW, SINKS)
    rows = [HEAD.format(width=LEFT + N * CELL + 300, height=TOP + N * CELL + 12,
                        title=f"Causal mask, window {WINDOW}, {SINKS} sinks, tiles of {TILE}")]
    for query in range(N):
        for key in range(N):
            if where := phase(query, key):
                how = f'fill="{COLOURS[where]}"' if keep[query, key] else 'class="hidden"'
                rows.append(f'<rect x="{LEFT + key * CELL}" y="{TOP + query * CELL}" '
                            f'width="{CELL - 1}" height="{CELL - 1}" {how}/>\n')
    for query in range(0, N, TILE):
        for key in range(0, N, TILE):
            if phase(query, key):
                rows.append(f'<rect class="tile" x="{LEFT + key * CELL - 1}" '
                            f'y="{TOP + query * CELL - 1}" width="{TILE * CELL + 1}" '
                            f'height="{TILE * CELL + 1}"/>\n')
    rows.append(f'<text x="{LEFT}" y="{TOP - 10}">keys</text>\n'
                f'<text transform="translate({LEFT - 10} {TOP + 50}) rotate(-90)">queries</text>\n')
    right = LEFT + N * CELL + 20
    lines = [(f'fill="{COLOURS[name]}"', f"{name}: {words}") for name, words in WORDS.items()]
    lines.append(('class="hidden"', "visited, but hidden by the mask"))
    for i, (how, words) in enumerate(lines):
        y = TOP + 20 + 26 * i
        rows.append(f'<rect x="{right}" y="{y - 11}" width="13" height="13" {how}/>\n'
                    f'<text x="{right + 20}" y="{y}">{words}</text>\n')
    rows.append(f'<text x="{right}" y="{y + 34}">All other tiles are never visited.</text>\n')
    return "".join(rows) + "</svg>\n"


if __name__ == "__main__":
    print(picture(), end="")
