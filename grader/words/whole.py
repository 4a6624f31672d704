"""The whole computation with one mistake in it: what a submission would answer.

The mistakes are those of the steps (grader/lights): a variant of a step's formula stands in the
place of that step, everything else is right.  Yields (id, what was tried of it) and what makes the
tensors.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from grader.course.inputs import Built
from grader.lights import masks, named, phases, rows
from grader.lights.trial import LN2, LOG2E

TILES = (64, 128, 32, 16)  # that a submission may well have chosen
COLUMNS = (64, 128, 32, 256, 512)  # of stage 2
FACTORS = {  # of the scores, by the scale
    "no-scale": lambda scale: 1 / scale, "scale-twice": lambda scale: scale,
    "no-log2e": lambda scale: LN2, "log2e-twice": lambda scale: LOG2E,
    "mean-of-values": lambda scale: 0.0}
ROLES = {"k-v-swapped": "qvk", "values-are-keys": "qkk", "keys-are-values": "qvv"}
FILLS = (-1.0, -10.0, -50.0, -80.0, -100.0, -1e3)  # what hidden scores may have become
GROUPS = (2, 3, 4, 8)  # heads, where their number is a constant
OF_A_GROUP = {  # of one head's share each, (B, HKV, group, ...)
    "group-sum-missing": lambda x: x[:, :, -1], "group-mean": lambda x: x.mean(2)}
OF_A_TILE = ("max-over-the-block", "no-pivot")  # what a row gets depends on its tile's other rows
OF_A_BASE = ("alpha-in-another-base", "max-not-scaled")
KERNELS = {  # of the backward -> where that is, in words, and the P that is wrong there
    "dq": (", in dq", ("p_q",)), "dkdv": (", in dk and dv", ("p_k",)),
    "backward": (", in the backward", ("p_q", "p_k"))}
Answer = tuple[tuple, Callable[[], dict[str, np.ndarray]]]


def answers(built: Built, part: str) -> Iterator[Answer]:
    """part: "forward", "lse" or "backward": which tensors are wrong."""
    if built.case.asker.sums_rows:
        return row_sums(built) if part == "forward" else iter(())
    whole = Whole(built)
    return {"forward": whole.outputs, "lse": whole.statistics, "backward": whole.gradients}[part]()


class Whole:
    """Attention of one case, in float64: q (B, HQ, N, D); k, v (B, HKV, NK, D)."""

    def __init__(self, built: Built, pad: int = 0):
        """pad: keys past the end that are there as zeros, which a wrong mask lets in."""
        self.built, self.case, case = built, built.case, built.case
        self.q, self.k, self.v = (built.tensors[name].double().numpy() for name in "qkv")
        self.k, self.v = (np.pad(x, ((0, 0), (0, 0), (0, pad), (0, 0))) for x in (self.k, self.v))
        self.scale = case.D**-0.5 if case.scale is None else case.scale
        self.heads = np.arange(case.HQ) // (case.HQ // case.HKV)
        self.query, self.key = np.arange(case.N)[:, None], np.arange(case.n_keys + pad)[None]
        self.given = {"N": case.n_keys, "CAUSAL": case.is_causal, "sink_size": case.sinks or 0}
        self.sees = "all_keys"
        if case.is_causal:
            self.sees = "causal" if case.window is None else "sinks" if case.sinks else "window"
        if self.sees in ("window", "sinks"):
            self.given["window_size"] = case.window
        self.keep = getattr(masks, self.sees)(self.query, self.key, self.given) & (
            self.key < case.n_keys)
        self.cuts: dict[int, np.ndarray] = {}
        self.sink = None
        if case.sink_logits:
            self.sink = built.tensors["sink_logits"].double().numpy()[:, None]
        self.upstream = {name: x.double().numpy() for name, x in built.upstream.items()}

    # ------------------------------------------------------------------ forward
    def scores(self, heads=None):
        k = self.k[:, self.heads if heads is None else heads]
        return self.q @ k.swapaxes(2, 3) * self.scale

    def softmax(self, s, count, sink=None):
        """-> e = exp(s - m) counted so often as count says, l and m (B, HQ, N)."""
        s = np.where(count > 0, s, -np.inf)
        m = s.max(-1)
        m = m if sink is None else np.maximum(m, sink)
        e = np.exp(s - m[..., None]) * count
        return e, e.sum(-1) + (0 if sink is None else np.exp(sink - m)), m

    def o(self, s, count, sink=None, heads=None):
        e, l_i, _ = self.softmax(s, count, self.sink if sink is None else sink)
        return {"o": e @ self.v[:, self.heads if heads is None else heads] / l_i[..., None]}

    def outputs(self) -> Iterator[Answer]:
        s, case, right = self.scores(), self.case, self.heads
        for id, factor in FACTORS.items():
            yield (id,), partial(self.o, s * factor(self.scale), self.keep)
        if case.scale is not None:
            yield ("own-scale-ignored",), partial(self.o, s * case.D**-0.5 / self.scale, self.keep)
        heads = {} if case.HQ == case.HKV else {
            id: read(np.arange(case.HQ), case.HQ, case.HKV) for id, read in rows.HEADS.items()} | {
            ("group-hard-coded", group): np.arange(case.HQ) // group for group in GROUPS}
        for id, head in heads.items():
            if head.max() < case.HKV:
                for k, v in ((head, head), (head, right), (right, head)):
                    yield _tried(id), partial(self.o, self.scores(k), self.keep, heads=v)
        if case.N == case.n_keys:
            for id, roles in ROLES.items():
                yield (id,), partial(self.in_roles, roles)
        for BN in TILES:  # a tile of k (BN, D), taken to be (D, BN)
            k = Whole(self.built, -case.n_keys % BN).k[:, right]
            k = k.reshape(*k.shape[:2], -1, case.D, BN).swapaxes(2, 3)
            k = k.reshape(*k.shape[:3], -1)[..., :case.n_keys]
            yield ("k-reshaped",), partial(self.o, self.q @ k * self.scale, self.keep)
        for tried, keep in self.masks():
            yield tried, partial(self.o, s, keep)
        tiles = TILES if case.asker.needs_triton else ()
        for pad in sorted({-case.n_keys % BN for BN in tiles} - {0}):
            longer = Whole(self.built, pad)
            more = longer.scores()
            for tried, keep in longer.masks():
                if keep[:, case.n_keys:].any():
                    yield tried, partial(longer.o, more, keep)
        for tried, count in self.walks():
            yield tried, partial(self.o, s, count)
        for fill in FILLS:
            yield ("hidden-scores-finite",), partial(self.o, np.where(self.keep, s, fill), 1.0)
        yield ("hidden-scores-zero",), partial(self.o, np.where(self.keep, s, 0.0), 1.0)
        e, l_i, m = self.softmax(s, self.keep, self.sink)
        acc = e @ self.v[:, self.heads]
        every = np.exp(s - m[..., None])
        yield ("hidden-keys-in-values",), lambda: {
            "o": every @ self.v[:, self.heads] / l_i[..., None]}
        yield ("hidden-keys-in-denominator",), lambda: {"o": acc / every.sum(-1)[..., None]}
        yield ("zeros",), lambda: {"o": acc * 0}
        yield ("not-normalised",), lambda: {"o": acc}
        yield ("divided-by-the-max",), lambda: {"o": acc / m[..., None]}
        if self.sink is not None:
            for id, logit in named.SINK_LOGITS.items():
                yield _tried(id), partial(self.o, s, self.keep, logit(self.sink, self.scale))
        for id, changes in named.UPDATES.items():
            block = TILES if id in OF_A_TILE else (case.N,)
            bases = (np.e, 2.0) if id in OF_A_BASE else (np.e,)
            for BM, BN, base in itertools.product(block, TILES, bases):
                if BN < self.key.size or BN == TILES[-1]:
                    yield _tried(id), partial(self.online, s, changes, BM, BN, base,
                                              named.NORMALISED not in _tried(id))

    def in_roles(self, roles: str) -> dict:
        """What is read in the place of q, k and v."""
        other = Whole(self.built)
        other.q, other.k, other.v = (getattr(self, name) for name in roles)
        return other.o(other.scores(), self.keep)

    def online(self, s, changes: dict, BM: int, BN: int, base: float = np.e, divided=True) -> dict:
        """The online softmax over tiles of BN keys, with a change in every tile.  divided: by l, at
        the end."""
        unit = self.scale / np.log(base)
        s, v = np.where(self.keep, s / self.scale, -np.inf), np.float32(self.v[:, self.heads])
        out = np.empty(self.q.shape)
        for part in (slice(at, at + BM) for at in range(0, self.case.N, BM)):
            shape = out[:, :, part].shape
            start = -np.inf if self.sink is None else self.sink / np.log(base)
            left = {"m_new": np.full(shape[:3], start),
                    "l_i": np.full(shape[:3], np.float32(self.sink is not None)),
                    "acc": np.zeros(shape, np.float32)}
            for at in range(0, self.key.size, BN):
                tile, here = s[:, :, part, at:at + BN], self.keep[part, at:at + BN].any(-1)[:, None]
                here = here | here.any() if BM < self.case.N else here
                new = named.Tile(tile, left["m_new"], left["l_i"], left["acc"],
                                 v[:, :, at:at + BN], unit, base, changes).left
                left = {name: np.where(here if x.ndim == 4 else here[:, 0], new[name], x)
                        for name, x in left.items()}
            out[:, :, part] = left["acc"] / (left["l_i"][..., None] if divided else 1)
        return {"o": out}

    def masks(self) -> Iterator[tuple[tuple, np.ndarray]]:
        """Other keys that are seen, each once."""
        known = {self.keep.tobytes()}
        for tried, keep in self.other_masks():
            found = keep.tobytes(), tried
            if keep.tobytes() not in known and found not in known:
                known.add(found)
                yield tried, keep

    def other_masks(self) -> Iterator[tuple[tuple, np.ndarray]]:
        """The same, some of them several times."""
        for id, change in named.MASKS[self.sees].items():
            for BM in TILES if id == "window-by-tiles" else (self.case.N,):
                keep = [change(self.query[at:at + BM], self.key, self.given)
                        for at in range(0, self.case.N, BM)]
                keep = np.concatenate(keep) & (self.query >= 0)
                yield _tried(id), keep
                for size in TILES:  # where the lesson's walk has a mask at all
                    yield _tried(id), np.where(self.cut(size), keep, self.keep)
        rule = getattr(masks, self.sees)
        for size in TILES if self.case.is_causal else ():
            yield ("query-positions-of-the-tile",), np.where(
                self.cut(size), rule(self.query % size, self.key, self.given), self.keep)
            yield ("key-positions-of-the-tile",), np.where(
                self.cut(size), rule(self.query, self.key % size, self.given), self.keep)
        yield ("first-key-hidden",), self.keep & ((self.key > 0) | (self.query == 0))
        for BN in TILES if "window_size" in self.given and self.given["sink_size"] else ():
            given = self.given | {"sink_size": -(-self.given["sink_size"] // BN) * BN}
            yield ("sinks-rounded",), masks.sinks(self.query, self.key, given)
            first = np.maximum(self.query // BN * BN - self.given["window_size"] + 1, 0) // BN * BN
            yield ("no-sink-phase",), self.keep & (self.key >= first)
            again = (self.key >= first) & (self.key < given["sink_size"])
            yield ("sinks-twice",), self.keep * (1.0 + again)

    def cut(self, size: int) -> np.ndarray:
        """Pairs in tiles that are walked, and need the mask."""
        if size not in self.cuts:
            keep = np.pad(self.keep, ((0, -self.case.N % size), (0, -self.key.size % size)))
            keep[self.case.N:] = keep[self.case.N - 1]  # rows past the end do not matter
            tiles = keep.reshape(len(keep) // size, size, -1, size)
            some = tiles.any((1, 3)) & ~tiles.all((1, 3))
            self.cuts[size] = some.repeat(size, 0).repeat(size, 1)[:self.case.N, :self.key.size]
        return self.cuts[size]

    def walks(self) -> Iterator[tuple[tuple, np.ndarray]]:
        """Other tiles that are visited, or masked: how often each key counts."""
        if self.case.n_keys != self.case.N:
            return
        for BM, BN in itertools.product(TILES, TILES):
            counts: dict[object, list] = {}
            for at in range(0, self.case.N, BM):
                for id, count in self.walked(at, BM, BN).items():
                    counts.setdefault(id, []).append(count)
            for id, parts in counts.items():
                if sum(map(len, parts)) == self.case.N:
                    yield _tried(id), np.concatenate(parts)

    def walked(self, at: int, BM: int, BN: int) -> dict[object, np.ndarray]:
        """The same for the rows of one tile, by mistake."""
        keep = self.keep[at:at + BM]
        tiles = [(n, keep[:, n:n + BN]) for n in range(0, self.key.size, BN)]
        right = [(n, not part.all() or part.shape[1] < BN or self.case.is_causal and n + BN > at)
                 for n, part in tiles if part.any()]

        def count(visits: list[tuple[int, bool]]):
            found = np.zeros(keep.shape)
            for n, masked in visits:
                found[:, n:n + BN] += keep[:, n:n + BN] if masked else 1.0
            return found

        masked = dict(right)
        visits, masks = phases.others(right, {**self.given, "BLOCK_N": BN},
                                      at // BN * BN if self.case.is_causal else None)
        return {id: count([(n, masked.get(n, True)) for n in wanted])
                for id, wanted in visits.items()} | {
            id: count(wanted) for id, wanted in masks.items()}

    def statistics(self) -> Iterator[Answer]:
        """lse alone is wrong."""
        _, l_i, m = self.softmax(self.scores(), self.keep, self.sink)
        for id, lse in named.statistics(m, l_i).items():
            yield (id,), partial(dict, lse=lse)

    # ----------------------------------------------------------------- backward
    def gradients(self) -> Iterator[Answer]:
        """The outputs are right."""
        s, do = self.scores(), self.upstream["dout"]
        e, l_i, m = self.softmax(s, self.keep, self.sink)
        lse, p = (m + np.log(l_i))[..., None], e / l_i[..., None]
        unmasked, dp = np.exp(s - lse), do @ self.v[:, self.heads].swapaxes(2, 3)
        delta = (p * dp).sum(-1) - self.upstream.get("dlse", 0.0)
        d_sink = None
        if self.sink is not None:
            d_sink = -(np.exp(self.sink - lse[..., 0]) * delta).sum((0, 2))
        k, q = self.k[:, self.heads], self.q

        def made(p_q=p, p_k=p, ds_q=None, ds_k=None, dk_with=q, dv_of=None, factor=self.scale,
                 over_group=lambda x: x.sum(2), d_sink=d_sink):
            """p_q, ds_q: in dq's kernel, p_k, ds_k: in that of dk and dv."""
            ds_q = p_q * (dp - delta[..., None]) if ds_q is None else ds_q
            ds_k = p_k * (dp - delta[..., None]) if ds_k is None else ds_k
            out = {"d_q": factor * (ds_q @ k), "d_k": self.scale * (ds_k.swapaxes(2, 3) @ dk_with),
                   "d_v": (p_k if dv_of is None else dv_of).swapaxes(2, 3) @ do}
            for name in ("d_k", "d_v"):
                x = out[name]
                out[name] = over_group(x.reshape(len(x), self.case.HKV, -1, *x.shape[2:]))
            return out if d_sink is None else out | {"d_sink_logits": d_sink}

        right = p * (dp - delta[..., None])
        for name, factor in (("unscaled", 1 / self.scale), ("scaled-twice", self.scale),
                             ("in-base-2", LOG2E), ("in-base-2", LN2)):
            yield ("dq-" + name,), partial(made, factor=self.scale * factor)
            yield ("dk-" + name,), partial(made, ds_k=right * factor)
        if self.case.HQ != self.case.HKV:
            for id, over in OF_A_GROUP.items():
                yield (id,), partial(made, over_group=over)
        for id, saved in named.statistics(m, l_i).items():
            wrong = np.where(self.keep, np.exp(s - saved[..., None]), 0.0)
            yield (id,), partial(made, p_q=wrong, p_k=wrong)
        for tried, count in self.walks():
            yield ("dq-" + tried[0], *tried[1:]), partial(made, p_q=p * count)
        for BM, BN in itertools.product(TILES, TILES):
            yield from self.query_walks(BM, BN, p, unmasked, made)
        if self.sink is not None:
            taken = np.exp(self.sink - m)  # by the sink, of l
            bare = l_i - taken
            p_bare = e / bare[..., None]
            yield ("sink-gradient-positive",), partial(made, d_sink=-d_sink)
            yield ("saved-lse-without-the-sink",), partial(
                made, p_q=p_bare, p_k=p_bare, d_sink=-(taken / bare * delta).sum((0, 2)))
            less = delta * l_i / bare
            ds = p * (dp - less[..., None])
            yield ("delta-without-the-sink",), partial(
                made, ds_q=ds, ds_k=ds, d_sink=-(taken / l_i * less).sum((0, 2)))
        yield ("dq-from-p",), partial(made, ds_q=p)
        yield ("dk-from-p",), partial(made, ds_k=p)
        yield ("dk-from-do",), partial(made, dk_with=do)
        yield ("dv-from-ds",), partial(made, dv_of=right)
        for id, ds in named.unlike(p, dp, delta).items():
            ds = np.where(self.keep, ds, 0.0)
            yield (id, ", in dq"), partial(made, ds_q=ds)
            yield (id, ", in dk"), partial(made, ds_k=ds)
            yield (id, ", in dq and dk"), partial(made, ds_q=ds, ds_k=ds)
        others = [(("backward-without-lse",), np.exp(s)),
                  (("backward-scores-unscaled",), np.exp(s / self.scale - lse)),
                  (("backward-in-two-bases",), np.exp2(s - lse)),
                  (("backward-in-two-bases",), np.exp(s - lse * LOG2E)),
                  (("backward-in-two-bases",), np.exp2(s - lse * LOG2E))]
        others = [(tried, np.where(self.keep, p, 0.0)) for tried, p in others]
        others += [(tried, np.where(keep, unmasked, 0.0)) for tried, keep in self.masks()]
        for (id, *more), p in others:
            for kernel, (where, names) in KERNELS.items():
                tried = (id, where) if id.startswith("backward") else (f"{kernel}-{id}", *more)
                yield tried, partial(made, **dict.fromkeys(names, p))

    def query_walks(self, BM: int, BN: int, p, unmasked, made) -> Iterator[Answer]:
        """Other query tiles that dk and dv are made of, by tiles of BN keys."""
        tiles = -(-self.case.N // BM)
        reached = np.zeros((tiles, self.key.size))  # by the keys of each tile together
        for j in range(0, self.key.size, BN):
            for i in range(tiles):
                reached[i, j:j + BN] = self.keep[i * BM:(i + 1) * BM, j:j + BN].any()
        order = reached.cumsum(0) * reached  # 1 for the first tile of queries that a key meets
        full = np.arange(tiles)[:, None] < self.case.N // BM
        visited = np.repeat(reached, BM, 0)[:self.case.N]
        yield ("dv-unmasked",), partial(made, dv_of=unmasked * visited)
        for id, keep in (("dkdv-of-the-last-tile", order == order.max(0)),
                         ("dkdv-last-query-tile-forgotten", full * reached),
                         ("dkdv-one-query-tile", order == 1),
                         ("dkdv-diagonal-skipped", order > 1)):
            visited = np.repeat(keep, BM, 0)[:self.case.N]
            yield (id,), partial(made, p_k=p * visited)


def row_sums(built: Built) -> Iterator[Answer]:
    """Stage 2: y."""
    x, w = (built.tensors[name].double().numpy() for name in "xw")
    yield ("w-ignored",), lambda: {"y": x.sum(1)}
    yield ("w-squared",), lambda: {"y": x @ w**2}
    for BN in COLUMNS:
        if BN < len(w):
            last = slice((len(w) - 1) // BN * BN, None)
            yield ("last-tile-only",), partial(dict, y=x[:, last] @ w[last])
    if built.case.dtype != torch.float32:
        product = (built.tensors["x"] * built.tensors["w"]).double().sum(1).numpy()
        yield ("product-in-16-bits",), partial(dict, y=product)


def _tried(id) -> tuple:
    return id if isinstance(id, tuple) else (id,)
