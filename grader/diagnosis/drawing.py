"""Draws an effective attention matrix: expected, yours, difference, tile edges marked.

What is only for a page or a file is imported there: its templates take 0.08 s, and few runs draw.
"""

from pathlib import Path

import numpy as np
import torch

from grader.diagnosis.attention_map import SEEN, TILE, Matrix
from grader.host import files

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
    telling = wrong & (~matrix.keep | (matrix.found.abs() <= SEEN))  # seen or unseen by mistake
    i, j = (telling if bool(telling.any()) else wrong).nonzero()[0].tolist()
    got, want = float(matrix.found[i, j]), float(matrix.expected[i, j])
    return (f"Look at query {i}, key {j}: weight {got:.3g}, should be {want:.3g} "
            f"({int(wrong.sum())} of {wrong.numel()} are wrong).")


def drawn(matrix: Matrix) -> tuple[list, list[tuple[str, str]]]:
    """The same three panels, and the key to them, as svg.mask() has both."""
    from grader.drawings import svg

    found = (matrix.found > SEEN) | (matrix.keep & ~matrix.wrong)
    return svg.mask(matrix.keep.numpy(), found.numpy(), _wrong(matrix),
                    TILE.get(matrix.case.stage, 64), sinks=matrix.case.sinks or 0)


def picture(matrix: Matrix):
    """The panels for a page, as a pictures.Picture."""
    from grader.page import pictures

    is_wrong, case = bool(matrix.wrong.any()), matrix.case
    head = f", query head {matrix.head}" if case.HQ > 1 else ""
    look = caption(matrix) if is_wrong else "All weights are right."
    if case.course_stage.differentiates:
        look += " This is the forward; the backward is not drawn."
    return pictures.Picture("The mask", f"This call: {matrix.label}{head}. {look}",
                            *drawn(matrix), is_wrong)


def plot(matrix: Matrix, path: Path) -> None:
    """Write the panels into one SVG file."""
    from grader.drawings import svg

    title = f"Attention matrix of head {matrix.head}, {matrix.label}"
    drawn_file = svg.draw.file(title, caption(matrix), *drawn(matrix), svg.STYLE)
    files.write(path, drawn_file.strip().encode() + b"\n")


def _pooled(x: torch.Tensor, cell: int) -> torch.Tensor:
    """The largest weight of every cell by cell pairs."""
    x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)[None, None]
    return torch.nn.functional.max_pool2d(x, cell, ceil_mode=True)[0, 0]


def _shades(x: torch.Tensor) -> list[str]:
    top = x.amax(1, keepdim=True).clamp_min(1e-9)
    level = (x / top * (len(SHADES) - 1)).ceil().clamp(0, len(SHADES) - 1).long()
    level = torch.where(x > SEEN, level, 0)
    return ["".join(SHADES[i] for i in row) for row in level.tolist()]


def _wrong(matrix: Matrix) -> dict[str, np.ndarray]:
    """The wrong weights by what is wrong with them, each once."""
    rest, found = matrix.wrong, {}
    for name, layer in (("nan", ~torch.isfinite(matrix.found)), ("seen", ~matrix.keep),
                        ("unseen", matrix.found.abs() <= SEEN),
                        ("much", matrix.found > matrix.expected), ("little", matrix.wrong)):
        found[name], rest = (rest & layer).numpy(), rest & ~layer
    return found


def _difference(matrix: Matrix, cell: int) -> list[str]:
    wrong = matrix.wrong
    marks = dict(zip(("nan", "seen", "unseen", "much", "little"), "!Xo+-", strict=True))
    lines = [["."] * (-(-wrong.shape[1] // cell)) for _ in range(-(-wrong.shape[0] // cell))]
    for name, layer in reversed(_wrong(matrix).items()):  # the first that holds anywhere in a cell
        for row, column in (_pooled(torch.from_numpy(layer).double(), cell) > 0).nonzero().tolist():
            lines[row][column] = marks[name]
    return ["".join(line) for line in lines]
