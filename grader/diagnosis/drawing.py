"""Draws an effective attention matrix: expected, yours, difference, tile edges marked."""

from pathlib import Path

import torch

from grader.diagnosis.attention_map import TILE, Matrix

COLUMNS = 24  # of a panel on a terminal
SHADES = " .:-=+*#%@"


def text(matrix: Matrix) -> list[str]:
    """Three panels of at most 24 columns, their lines ready to print."""
    cell, tile = max(1, -(-max(matrix.found.shape) // COLUMNS)), TILE.get(matrix.case.stage, 64)
    expected, found = _pooled(matrix.expected, cell), _pooled(matrix.found, cell)
    panels = [_shades(expected), _shades(found), _difference(matrix, cell)]
    width = len(panels[0][0])
    edges = "".join("v" if column * cell % tile < cell else " " for column in range(width))
    head = "forward" if not matrix.backward else "backward"
    lines = [f"Attention matrix of head {matrix.head}, {head}: rows are queries, columns keys.",
             matrix.label,
             "  " + "   ".join(n.ljust(width) for n in ("expected", "yours", "difference")),
             "  " + "   ".join([edges] * 3)]
    for row in range(len(panels[0])):
        edge = ">" if row * cell % tile < cell else " "
        lines.append(f"{edge} " + "   ".join(panel[row] for panel in panels))
    unit = "one pair" if cell == 1 else f"{cell} x {cell} pairs"
    lines.append(f"A character is {unit}, darker for more weight; v and > mark tiles of {tile}.")
    lines.append("difference: X hidden key seen, o key missed, + too much, - too little, ! NaN")
    lines.append("One wrong weight changes all others in its row, because they add up to 1.")
    lines.append(caption(matrix))
    return lines


def caption(matrix: Matrix) -> str:
    """One sentence: what to look at first."""
    wrong = matrix.wrong
    if not bool(wrong.any()):
        return "These weights are all right, so the mistake is somewhere else."
    telling = wrong & (~matrix.keep | (matrix.found.abs() <= 1e-6))  # seen or unseen by mistake
    i, j = (telling if bool(telling.any()) else wrong).nonzero()[0].tolist()
    got, want = float(matrix.found[i, j]), float(matrix.expected[i, j])
    return (f"Look at query {i}, key {j}: weight {got:.3g}, should be {want:.3g} "
            f"({int(wrong.sum())} of {wrong.numel()} are wrong).")


def plot(matrix: Matrix, path: Path) -> None:
    """The same three panels as a PNG or SVG, by the ending of path.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tile = TILE.get(matrix.case.stage, 64)
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
    difference = matrix.found - matrix.expected
    largest = float(torch.nan_to_num(difference).abs().max()) or 1.0
    panels = (("expected", matrix.expected, "Greys", 0, None),
              ("yours", matrix.found, "Greys", 0, None),
              ("yours - expected", difference, "RdBu_r", -largest, largest))
    for axis, (title, x, colours, low, high) in zip(axes, panels, strict=True):
        image = axis.imshow(x, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        for edge in range(tile, max(x.shape), tile):
            for line, size in ((axis.axhline, x.shape[0]), (axis.axvline, x.shape[1])):
                if edge < size:
                    line(edge - 0.5, color="tab:orange", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel="key", ylabel="query")
        figure.colorbar(image, ax=axis, shrink=0.8)
    figure.suptitle(f"Head {matrix.head}. {caption(matrix)}", fontsize=10)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _pooled(x: torch.Tensor, cell: int) -> torch.Tensor:
    """The largest weight of every cell by cell pairs."""
    x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)[None, None]
    return torch.nn.functional.max_pool2d(x, cell, ceil_mode=True)[0, 0]


def _shades(x: torch.Tensor) -> list[str]:
    top = x.amax(1, keepdim=True).clamp_min(1e-9)
    level = (x / top * (len(SHADES) - 1)).ceil().clamp(0, len(SHADES) - 1).long()
    level = torch.where(x > 1e-6, level, 0)
    return ["".join(SHADES[i] for i in row) for row in level.tolist()]


def _difference(matrix: Matrix, cell: int) -> list[str]:
    wrong = matrix.wrong
    nan = ~torch.isfinite(matrix.found)
    seen = wrong & ~nan & ~matrix.keep
    unseen = wrong & (matrix.found.abs() <= 1e-6) & matrix.keep
    much = wrong & (matrix.found > matrix.expected)
    layers = {"!": nan, "X": seen, "o": unseen, "+": much, "-": wrong}
    lines = [["."] * (-(-wrong.shape[1] // cell)) for _ in range(-(-wrong.shape[0] // cell))]
    for mark, layer in reversed(layers.items()):  # the first that holds anywhere in a cell
        for row, column in (_pooled(layer.double(), cell) > 0).nonzero().tolist():
            lines[row][column] = mark
    return ["".join(line) for line in lines]
