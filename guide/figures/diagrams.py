"""Drawings of what happens: the machine, the loop, heads, the backward."""

from guide.figures.pen import Pen
from guide.measured import CEILING, H200, WORK, asked_bytes


def memory(pen: Pen):
    """The memory of a GPU as a pyramid: registers, shared memory, L2 cache, device memory."""
    width, thick, narrowest = (66, 13, 44) if pen.narrow else (100, 9, 30)
    figure, axis = pen.canvas(width, 4 * thick + 8)
    levels = [("registers", f"{H200['registers']} per multiprocessor", "m_i, l_i, acc, p", "whole"),
              ("shared memory", f"up to {H200['shared']} per program", "tiles of q, k, v", "whole"),
              ("L2 cache", f"{H200['l2']}, for all", "k, v of heads at work", "cut"),
              ("device memory", f"{H200['memory']}, {CEILING.bytes / 1e12:.1f} TB/s measured",
               "q, k, v, o, lse", "sink")]
    for i, (name, size, holds, fill) in enumerate(levels):
        y, wide = 1 + (thick + 2) * i, narrowest + (7 if pen.narrow else 18) * i
        words = f"{name}\n{size}" + (f"\nholds {holds}" if pen.narrow else "")
        middle = width / 2 if pen.narrow else 42
        pen.box(axis, middle - wide / 2, y, wide, thick, words, fill=fill)
        if not pen.narrow:
            pen.write(axis, 99, y + thick / 2, holds, ha="right", size=8)
        if i:
            pen.arrow(axis, (middle, y), (middle, y - 2), arrowstyle="<|-|>")
    return figure


def traffic(pen: Pen):
    """What crosses each border between the four memories: naive attention, and one kernel."""
    label = "stage 3, D=64, forward"
    least, scores = WORK[label].bytes() / 1e9, 4 * WORK[label].score_bytes() / 1e9
    tiles = asked_bytes(label, 64) / 1e9
    figure, axes = pen.canvas(50, 62, 2)
    tile = [(13, tiles, f"tiles of k, v: {tiles:.1f} GB")]
    naive = [(4, scores, f"S, P: {scores:.1f} GB"), (27, least, f"q, k, v, o: {least:.2f} GB")]
    sides = {"naive attention: one kernel per line": (["", "", "", ": holds S and P"], [naive] * 3),
             "one kernel, query tiles of 64": (
                 [": S, P stay here", "", "", ""],
                 [tile, tile, [(13, least, f"q, k, v, o, lse: {least:.2f} GB")]])}
    levels = [("registers, matrix units", "whole"), ("shared memory", "whole"), ("L2 cache", "cut"),
              ("device memory", "sink")]
    for axis, (title, (holds, moved)) in zip(axes, sides.items(), strict=True):
        pen.write(axis, 25, 2, title, size=9)
        for i, (name, fill) in enumerate(levels):
            pen.box(axis, 1, 5 + 16 * i, 48, 7, name + holds[i], fill=fill)
        for i, lines in enumerate(moved):
            for x, size, words in lines:
                axis.plot([x, x], [12.6 + 16 * i, 20.4 + 16 * i], solid_capstyle="butt",
                          color=pen.b if size == scores else pen.a, linewidth=max(0.9 * size, 1))
                pen.write(axis, x + 2 + size / 10, 16.5 + 16 * i, words, size=8, ha="left")
    return figure


def programs(pen: Pen):
    """A grid of programs is handed out to multiprocessors: program 0 to the first, and so on."""
    figure, axis = pen.canvas(100, 42 if pen.narrow else 36)
    left, wide = (15, 28) if pen.narrow else (11, 26)
    pen.write(axis, 1, 2, "the grid: 10 programs, each owns a tile of the result", ha="left")
    for i in range(10):
        pen.box(axis, 1 + 9.8 * i, 4.5, 8.5, 6, str(i), fill=("whole", "cut", "sink")[i // 4])
    pen.write(axis, 1, 17, "4 places on the chip, in time →", ha="left")
    for place in range(4):
        pen.write(axis, left - 2, 21 + 4 * place, f"place {place}", ha="right", size=8,
                  colour="faint")
        for wave in range(3):
            i = 4 * wave + place
            if i < 10:
                pen.box(axis, left + wide * wave, 19.3 + 4 * place, wide - 1, 3.4, str(i), size=8,
                        fill=("whole", "cut", "sink")[wave])
    if pen.narrow:
        pen.write(axis, 99, 39, "the last wave leaves two idle", size=8, colour="faint", ha="right")
    else:
        pen.write(axis, 76, 33, "the last wave\nleaves two idle", size=8, colour="faint")
    return figure


def lanes(pen: Pen):
    """Three programs take ten numbers in tiles of four; two lanes of the last have no number."""
    figure, axis = pen.canvas(100, 30)
    pen.write(axis, 1, 2.5, "z = x + y, ten elements", ha="left")
    for i in range(10):
        pen.box(axis, 2 + 8 * i, 5, 7, 6, str(i), fill=("whole", "cut", "sink")[i // 4])
    for program in range(3):
        left, fill = 2 + 32 * program, ("whole", "cut", "sink")[program]
        pen.write(axis, left + 15.5, 17, f"program {program}", size=8)
        for lane in range(4):
            there = 4 * program + lane < 10
            pen.box(axis, left + 8 * lane, 19, 7, 6, str(4 * program + lane),
                    fill=fill if there else "paper", **{} if there else {"alpha": 0.4})
    pen.write(axis, 97, 28, "mask: offs < N is False", ha="right", size=8, colour="faint")
    return figure


def row_sums(pen: Pen):
    """Six rows of six columns, in tiles of four: the columns up to the diagonal count."""
    figure, axis = pen.canvas(96, 50)
    for tile in range(2):
        pen.write(axis, 28 + 44 * tile, 3, f"start = {4 * tile}", size=8)
        for row in range(6):
            for column in range(4 * tile, 4 * tile + 4):
                x, y = 8 + 10 * column + 4 * tile, 6 + 6.7 * row
                fill = "paper" if column > 5 else "whole" if column <= row else "skipped"
                pen.box(axis, x, y, 9, 6, f"{row}, {column}" if column < 6 else "", fill=fill,
                        edge="line" if column > 5 else "faint", size=7.5)
    for row in range(6):
        pen.write(axis, 4, 9 + 6.7 * row, str(row), colour="faint")
    pen.write(axis, 92, 48.5, "columns 6 and 7 do not exist", ha="right", size=8, colour="faint")
    return figure


def launch(pen: Pen):
    """Five rows of six columns, in tiles of two rows and eight columns: three programs."""
    figure, axis = pen.canvas(96, 59)
    pen.write(axis, 52, 3, "BLOCK_N = 8, and N = 6", size=8)
    for row in range(6):
        program, y = row // 2, 6 + 7.5 * row + 1.5 * (row // 2)
        for column in range(8):
            there = row < 5 and column < 6
            pen.box(axis, 20 + 8 * column, y, 7, 6.5, f"{row}, {column}" if there else "",
                    fill=("whole", "cut", "sink")[program] if there else "paper",
                    edge="faint" if there else "line", size=7.5)
        if row % 2 == 0:
            pen.write(axis, 2, y + 7.2, f"program {program}", ha="left", size=8)
    pen.write(axis, 84, 56.5, "row 5 does not exist", ha="right", size=8, colour="faint")
    return figure


def product(pen: Pen):
    """One tile of c = a b: its rows of a and its columns of b, tile by tile."""
    left = 0 if pen.narrow else 22
    figure, axis = pen.canvas(58 + 2 * left, 64)
    for x, y, name in ((3, 30, "a (M, K)"), (31, 4, "b (K, N)"), (31, 30, "c (M, N)")):
        pen.box(axis, left + x, y, 24, 24)
        pen.write(axis, left + x + 12, y + 26 if y > 4 else 2, name, size=8)
    for i, (fill, words) in enumerate((("whole", "ab"), ("cut", "ab"), ("paper", "  "))):
        pen.box(axis, left + 3 + 8 * i, 38, 8, 8, words[0].strip(), fill=fill, size=8)
        pen.box(axis, left + 39, 4 + 8 * i, 8, 8, words[1].strip(), fill=fill, size=8)
    pen.box(axis, left + 39, 38, 8, 8, "acc", fill="sink", size=8)
    pen.write(axis, left + 15, 60, "K: the loop \u2192", size=8, colour="faint")
    return figure


def row_softmax(pen: Pen):
    """A row of six numbers in tiles of four: the maximum and the sum after each, then the weights.
    """
    from guide.worked import online, show, softmax_row

    figure, axis = pen.canvas(100, 46)
    row = [1.0, 3.0, 2.0, 0.0, 5.0, 4.0, float("-inf"), float("-inf")]
    tiles = list(online(row, [0.0] * 8, 4))
    pen.write(axis, 1, 2, "x, read twice", ha="left", size=8)
    for j, x in enumerate(row):
        left, there = 2 + 12 * j + 2 * (j // 4), j < 6
        pen.box(axis, left, 4, 11, 6, show(x), fill=("whole", "cut")[j // 4] if there else "paper",
                size=8)
        if there:
            weight, _ = softmax_row(row, [float(i == j) for i in range(8)])
            pen.box(axis, left, 36, 11, 6, f"{weight:.3f}", fill="sink", size=7.5)
    for i, tile in enumerate(tiles):
        pen.write(axis, 25 + 50 * i, 15, f"m_i = {show(tile['m'])}", size=8)
        pen.write(axis, 25 + 50 * i, 20, f"l_i = {tile['l']:.3f}", size=8)
        pen.arrow(axis, (25 + 50 * i, 10.5), (25 + 50 * i, 13))
    pen.write(axis, 1, 27, "y, in the second loop: exp(x \u2212 m_i) / l_i", ha="left", size=8)
    pen.arrow(axis, (50, 29), (50, 35))
    return figure


def tiling(pen: Pen):
    """One query tile stays, key tiles stream past it: the order of FlashAttention-2."""
    figure, axis = pen.canvas(100, 51 if pen.narrow else 46)
    pen.write(axis, 60, 2.5, "k, v: a loop, tile after tile →")
    for j in range(4):
        pen.box(axis, 34 + 13 * j, 5, 12, 6, f"k{j}, v{j}", fill="cut" if j == 1 else "paper")
    for i in range(4):
        mine = i == 2
        pen.box(axis, 16, 14 + 7.5 * i, 12, 6.5, f"q{i}", fill="whole" if mine else "paper")
        for j in range(4):
            fill = "cut" if mine and j == 1 else "skipped" if mine and j < 1 else "paper"
            pen.box(axis, 34 + 13 * j, 14 + 7.5 * i, 12, 6.5, f"S{i}{j}" if mine else "", fill=fill)
        pen.box(axis, 88, 14 + 7.5 * i, 11, 6.5, f"o{i}", fill="whole" if mine else "paper")
    if pen.narrow:
        pen.write(axis, 16, 48, "one program owns one query tile (green)", size=8, ha="left")
    else:
        pen.write(axis, 7, 32, "one program\nowns one\nquery tile", size=8)
    return figure


def heads(pen: Pen):
    """Six query heads read two key/value heads: the first three one, the others the other."""
    high = 10 if pen.narrow else 7
    figure, axis = pen.canvas(100, 2 * high + 13)
    for h in range(6):
        kv = h // 3
        pen.box(axis, 3 + 16 * h, 2, 14, high, f"query\nhead {h}", fill=("whole", "cut")[kv],
                size=8)
        pen.arrow(axis, (10 + 16 * h, high + 2.2), (26 + 48 * kv, high + 9.8))
    for kv in range(2):
        pen.box(axis, 14 + 48 * kv, high + 10, 24, high, f"key/value\nhead {kv}",
                fill=("whole", "cut")[kv], size=8)
    return figure


def sink(pen: Pen):
    """Weights of one row without and with a sink logit: what the sink takes, the keys lose."""
    from guide.worked import sink_table

    figure, axis = pen.axes(2.3)
    rows = sink_table().rows
    for y, row in enumerate(rows):
        left = 0.0
        weights = [float(x) for x in row[2].strip("()").split(", ")] + [float(row[4])]
        for j, weight in enumerate(weights):
            axis.barh(y, weight, left=left, height=0.62, edgecolor=pen.paper,
                      color=pen.sink if j == 3 else (pen.a, pen.c, pen.b)[j])
            if weight > (0.14 if pen.narrow else 0.05):
                pen.write(axis, left + weight / 2, y, ("key 0", "key 1", "key 2", "sink")[j],
                          size=8, colour="ink" if j == 3 else "paper")
            left += weight
    axis.set(yticks=range(len(rows)), xlabel="weight", xlim=(0, 1),
             yticklabels=["no sink logit", *(f"sink logit {row[0]}" for row in rows[1:])])
    axis.invert_yaxis()
    return figure


def _flow(pen, axis, title, own, first, loop, made, out):
    pen.write(axis, 24, 1.5, title, size=9)
    pen.box(axis, 2, 4, 44, 6, f"owned and kept: {own}", fill="whole")
    if first:
        pen.box(axis, 2, 12, 44, 6, first)
    pen.box(axis, 2, 20, 44, 6, f"loop over {loop}", fill="cut")
    for i, text in enumerate(made):
        pen.box(axis, 2, 29 + 8 * i, 44, 6, text)
        pen.arrow(axis, (24, 26 if i == 0 else 27 + 8 * i), (24, 29 + 8 * i))
    y = 29 + 8 * len(made)
    pen.arrow(axis, (24, y - 2), (24, y + 1))
    pen.box(axis, 2, y + 1, 44, 6, out, fill="whole")


def backward(pen: Pen):
    """The two loops of the backward: dq's over keys, dkdv's over queries and a group's heads."""
    figure, axes = pen.canvas(48, 62, 2)
    _flow(pen, axes[0], "_dq_kernel", "q, do, o, lse of one query tile",
          "once: delta = rowsum(do * o), stored", "tiles of k, v",
          ["P = exp(S − lse)", "dS = P * (do vᵀ − delta)"], "dq += dS k,   · scale at the end")
    _flow(pen, axes[1], "_dkdv_kernel", "k, v of one key tile", None, "tiles of q, do, lse, delta",
          ["Pᵀ = exp(Sᵀ − lse)", "dv += Pᵀ do", "dSᵀ = Pᵀ * (v doᵀ − delta)"],
          "dk += dSᵀ q,   · scale at the end")
    return figure


def phases(pen: Pen):
    """The phases of stage 7's walk along the keys: sinks, a gap, left edge, interior, diagonal."""
    parts = [("sinks", 10, "sink"), ("not visited", 26, "skipped"), ("left edge", 14, "cut"),
             ("interior, no mask", 28, "whole"), ("diagonal", 14, "cut"), ("", 8, "skipped")]
    marks = ["0", "sink_end", "first", "inner", "start_m", "+ BLOCK_M"]
    figure, axis = pen.canvas(100, 108 if pen.narrow else 20)
    at = 0
    for (text, size, fill), mark in zip(parts, marks, strict=True):
        if pen.narrow:  # downwards
            pen.box(axis, 30, 4 + at, 55, size, text, fill=fill, size=8)
            pen.write(axis, 28, 4 + at, mark, size=8, colour="faint", ha="right")
        else:
            pen.box(axis, at, 4, size, 7, text, fill=fill, size=8)
            pen.write(axis, at, 14, mark, size=8, colour="faint", ha="center" if at else "left")
        at += size
    if pen.narrow:
        pen.write(axis, 28, 104, "keys ↓", size=8, colour="faint", ha="right")
    else:
        pen.write(axis, 50, 18, "keys →", size=8, colour="faint")
    return figure


def work_and_bytes(pen: Pen):
    """Bytes that must cross device memory beside what naive attention moves, a stage each."""
    figure, axis = pen.axes(2.9)
    names = ["stage 3, D=64", "stage 4, D=64", "stage 5, Llama-3", "stage 6, Mistral",
             "stage 7, streaming", "stage 9, GPT-OSS window"]
    works = [WORK[name + ", forward"] for name in names]
    for y, work in enumerate(works):
        least, scores = work.bytes() / 1e9, 4 * work.score_bytes() / 1e9
        axis.barh(y - 0.18, scores, height=0.34, color=pen.b, hatch="////", edgecolor=pen.paper)
        axis.barh(y + 0.18, least, height=0.34, color=pen.a)
        pen.write(axis, scores + 1, y - 0.18, f"{scores:,.0f} GB", ha="left", size=8)
        pen.write(axis, least + 1, y + 0.18, f"{least:.2f} GB", ha="left", size=8)
    most = max(4 * work.score_bytes() / 1e9 for work in works)
    axis.set(yticks=range(len(names)), xlim=(0, most * (1.3 if pen.narrow else 1.15)),
             yticklabels=[x.replace(", ", ",\n") if pen.narrow else x for x in names],
             xlabel="GB: upper, S and P, each written and read once;"
                    + ("\n" if pen.narrow else " ") + "lower, q, k, v, o, lse")
    if pen.narrow:
        axis.xaxis.label.set(size=8, x=0.2)
    axis.invert_yaxis()
    return figure
