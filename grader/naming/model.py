"""What a submission would answer if it had one mistake, in float64.

A Model starts as the right computation of a case, for some of its heads and rows; a hypothesis
(hypotheses.py) changes a field or two, and outputs() or gradients() then says what comes out.
Everything is a function of the case and its tensors: nothing here calls a submission.
"""

import copy

import torch

from grader.inputs import Built
from grader.naming.walks import INF, Pass, Tiles

LARGEST = 65519.0  # above it float16 rounds to infinity
CHOPPED = "bfloat16, chopped"


class Model:
    """The right computation of a case, to be changed.

    built: the case, its call and tensors.  pairs (P, 2): (batch entry, query head) to compute;
    rows (R,): query positions.  BM, BN: rows of a query tile and of a key tile.  padded: the keys
    that fill the last tile are there as zeros, which a wrong mask lets in.  got: what the
    submission answered for these heads and rows, for a mistake with a number to be found.
    inputs: doubles(built), where that was made before.

    again() gives a fresh copy, which shares what was computed for the first; so do models with
    other tile sizes that are given its known.
    """

    def __init__(self, built: Built, pairs, rows=None, BM: int = 64, BN: int = 64,
                 padded: bool = False, got: torch.Tensor | None = None,
                 inputs: dict | None = None, known: dict | None = None):
        case = built.case
        self.built, self.case, self.pairs, self.got = built, case, pairs, got
        self.BM, self.BN = BM, BN
        self.B, self.HQ, self.HKV, self.N, self.NK, self.D = (
            case.B, case.HQ, case.HKV, case.N, case.n_keys, case.D)
        self.group = case.HQ // case.HKV
        self.causal, self.window, self.sinks = case.is_causal, case.window, case.sinks or 0
        self.rows = torch.arange(self.N) if rows is None else rows
        self.tiles = Tiles(case, self.rows, BM, BN, -case.n_keys % BN if padded else 0)
        self.pad, self.keys = self.tiles.pad, self.tiles.keys
        self.known = {} if known is None else known  # shared: what is right, by name
        self.inputs = doubles(built) if inputs is None else inputs
        self.scale = case.D**-0.5 if case.scale is None else case.scale
        b, h = pairs[:, 0], pairs[:, 1]
        self.q_at, self.kv_at = (b, h), (b, h // self.group)
        self.q_rows = self.rows
        self.q_factor = 1.0
        self._own = self.inputs, self.q_at, self.q_rows
        logits = built.tensors.get("sink_logits")
        self.sink = None if logits is None else logits.double()[h]
        # Forward.
        self.online: dict = {}
        self.sum_keep = self.value_keep = None
        self.value_factor = 1.0
        self.finish = lambda acc, total, m: acc / total
        self.lse_of = lambda m, total: m + torch.log(total)
        self.after = None
        self.unsure = None  # (P, R) bool: rows on the edge of what float32 can hold
        # Backward.
        self.saved_lse = _right_lse
        self.delta_of = _right_delta
        self.delta = {"dq": 1.0, "dk": 1.0}
        self.delta_at = None
        self.factor = {"q": self.scale, "k": self.scale, "v": 1.0, "sink_logits": 1.0}
        self.dv_from, self.dk_from, self.dq_from = "p", "ds", "ds"
        self.exp_base = {"dq": 1.0, "dkv": 1.0}
        self.over_group = lambda parts: parts.sum(2)
        self._own_scale = self.scale
        self._own_dout = self.dout = None if built.dout is None else built.dout.double()
        self.order = ("q", "k", "v")
        self.found: dict[str, float] = {}  # numbers that a mistake had to find out
        self.sink_of = None
        self.round_dq = None
        self.no_lse = self.dp_with = self.no_p = ""  # the walk in which P or dP is made wrongly
        self.no_p_keep = None
        self.o_of = None  # the output as the backward reads it
        self.needed = set(case.grads)  # gradients to compute
        self.sums = None  # what the right forward ends with, where that was computed before
        self.fit: str = ""  # the gradient that a factor is to be found for
        self.all_got: dict[str, torch.Tensor] = {}
        self.fwd = Pass(self)
        self._dq = self._dkv = None

    def again(self) -> "Model":
        """The right computation once more, to be changed in another way."""
        new = copy.copy(self)
        new.online, new.found, new.needed = {}, {}, set(self.needed)
        new.delta, new.factor = dict(self.delta), dict(self.factor)
        new.exp_base = dict(self.exp_base)
        new.fwd, new._dq, new._dkv = Pass(new), None, None
        return new

    @property
    def plain(self) -> bool:
        """Whether the inputs are read as they should be, but for k's and v's heads."""
        inputs, q_at, q_rows = self._own
        return (self.inputs is inputs and self.q_at is q_at and self.q_rows is q_rows
                and isinstance(self.q_factor, float) and self.q_factor == 1.0)

    @property
    def dq(self) -> Pass:
        self._dq = self._dq or Pass(self)
        return self._dq

    @property
    def dkv(self) -> Pass:
        self._dkv = self._dkv or Pass(self)
        return self._dkv

    @property
    def q(self):
        return self._q()[:, self.q_rows] * self.q_factor

    def _q(self):
        return self.inputs["q"][self.q_at[0], self.q_at[1]]

    def take(self, name: str, at, rows=None):
        """(P, K, D) of k or v, with the rows of padding at 0."""
        x = self.inputs[name][at[0], at[1]]
        if self.pad:
            x = torch.cat([x, x.new_zeros(x.shape[0], self.pad, x.shape[2])], 1)
        return x if rows is None else x[:, rows]

    @property
    def dense(self) -> bool:
        """Whether k and v were sent contiguous, so that head HKV is the next entry's first."""
        sent = self.built.call.inputs
        return all(sent[n].stride == torch.empty(sent[n].shape, device="meta").stride()
                   for n in ("k", "v"))

    def set_scale(self, scale: float) -> None:
        """Another factor of the scores everywhere, the gradients' last step included."""
        self.scale = self.fwd.scale = scale
        self.factor |= {"q": scale, "k": scale}

    # ---------------------------------------------------------------- forward
    def outputs(self) -> dict[str, torch.Tensor]:
        """-> o (P, R, D), lse (P, R)."""
        acc, total, m = self._walk() if self.online else self._whole()
        if self.online:  # the sum of a row's weights is near the smallest float32, or below
            size = (self._whole_lse() - m)[..., 0]
            self.unsure = (size > -106) & (size < -80)
        o = self.finish(acc, total, m)
        lse = self.lse_of(m, total)[..., 0]
        out = {"o": self.held(o), "lse": lse}
        if self.after is not None:
            out = self.after(out)
        return out

    def _whole(self):
        s, v = self.fwd.scores(), self.fwd.values()
        m = s.amax(-1, keepdim=True)
        if self.sink is not None:
            m = torch.maximum(m, self.sink[:, None, None])
        p = torch.exp(s - m)
        total = (p if self.sum_keep is None else p * self.sum_keep).sum(-1, keepdim=True)
        if self.sink is not None:
            total = total + torch.exp(self.sink[:, None, None] - m)
        weights = p if self.value_keep is None else p * self.value_keep
        return weights @ v * self.value_factor, total, m

    def _whole_lse(self):
        if not (self.fwd.plain and self.fwd.keep is self.tiles.keep):
            return self.fwd.scores().logsumexp(-1, keepdim=True)
        key = "lse", self.pad, self.fwd.scale
        if key not in self.known:
            self.known[key] = self.fwd.scores().logsumexp(-1, keepdim=True)
        return self.known[key]

    def _walk(self):
        """Tile by tile, with the range of float32, as the online softmax would."""
        how, p = self.online, self.fwd
        s, v = p.scores(), p.values()
        P, R, K = s.shape
        walked = p.walked
        m = s.new_full((P, R, 1), -INF)
        lanes = how.get("lanes", 1)
        total, acc = s.new_zeros(P, R, lanes), s.new_zeros(P, R, v.shape[2])
        if self.sink is not None:
            m, total = self.sink[:, None, None].expand_as(m).clone(), total + 1.0 / lanes
        if how.get("max") == "start0":
            m = torch.zeros_like(m)
        raw = None
        if how.get("max") in ("hidden", "exist"):
            raw = p.model.q @ p.model.take("k", p.k_at).mT * p.scale
        for tile, lo in enumerate(range(0, K, self.BN)):
            st, hi = s[..., lo:lo + self.BN], lo + self.BN
            seen = walked[:, lo:hi].any(1)[None, :, None]
            if "restart" in how:
                again = (lo == how["restart"](p))[None]
                m = torch.where(again, -INF, m)
                total, acc = torch.where(again, 0.0, total), torch.where(again, 0.0, acc)
            top = st.amax(-1, keepdim=True)
            m_new = _new_maximum(how.get("max", "running"), m, top, st, tile, self, raw, lo, walked)
            pivot = m_new
            if how.get("pivot", True):
                pivot = m_new.masked_fill(m_new == -INF, 0.0)
            against = pivot
            if how.get("weights") == "old":
                against = torch.where(m > -INF, m, pivot)
            w = _exp(st - against)
            alpha = _exp(m - pivot)
            alphas = how.get("alpha", lambda a, m, new, tile: (a, a))(alpha, m, pivot, tile)
            if "round_p" in how:
                w = how["round_p"](w)
            added = w.sum(-1, keepdim=True)
            if lanes > 1:
                added = torch.nn.functional.pad(w, (0, -w.shape[-1] % lanes))
                added = added.unflatten(-1, (-1, lanes)).sum(-2)
            new_total = _single(alphas[1] * total + added)
            used = w if "drop" not in how else torch.where(w > how["drop"], w, 0.0)
            if ("round_acc" in how or "max" in how) and self.case.stage > 1:
                used = used.to(self.case.dtype).double()  # small weights lose digits in float16
            share = used @ v[..., lo:hi, :]
            if how.get("late_alpha"):
                new_acc = _single(alphas[0] * (acc + share))
                if how["late_alpha"] == "spared":
                    new_acc = torch.where(m == -INF, share, new_acc)
            else:
                new_acc = _single(alphas[0] * acc + share)
            if how.get("new_alpha") in ("l", "both"):
                new_total = total + alpha * w.sum(-1, keepdim=True)
            if how.get("new_alpha") in ("acc", "both"):
                new_acc = acc + alpha * share
            if "round_acc" in how:
                new_acc = to_16_bits(new_acc, how["round_acc"])
            if "round_l" in how:
                new_total = to_16_bits(new_total, how["round_l"])
            m = torch.where(seen, m_new, m)
            total, acc = torch.where(seen, new_total, total), torch.where(seen, new_acc, acc)
        return acc, total.sum(-1, keepdim=True), m

    # --------------------------------------------------------------- backward
    def gradients(self) -> dict[str, torch.Tensor]:
        """-> d_q (B, HQ, N, D), d_k, d_v (B, HKV, N, D), d_sink_logits (HQ,) of what is asked.

        The forward's output is taken to be right.  Needs all pairs and all rows.
        """
        acc, total, m = self._whole() if self.sums is None else self.sums
        if "ends" not in self.known:
            o, lse = acc / total, m + torch.log(total)
            self.known["ends"] = o, lse
        o, lse = self.known["ends"]
        saved = self.saved_lse(m, total, lse)
        do = self.dout[self.pairs[:, 0], self.pairs[:, 1]]
        o = o if self.o_of is None else self.o_of(o)
        delta = self.delta_of(self, o, do)
        out = {}
        shape = (self.B, self.HQ)
        if "q" in self.needed or self.order != ("q", "k", "v"):
            p, ds = self._weights(self.dq, self.exp_base["dq"], saved, do, delta * self.delta["dq"])
            part = {"ds": ds, "p": p}[self.dq_from]
            k = self.take("k", self.dq.k_at, self.dq.k_rows)
            dq = part @ k
            if self.round_dq is not None:  # after every tile
                dq = torch.zeros_like(dq)
                for lo in range(0, self.NK, self.BN):
                    tile = slice(lo, lo + self.BN)
                    rounded = part[..., tile].to(self.case.dtype).double()
                    dq = to_16_bits(dq + rounded @ k[:, tile], self.round_dq)
            out["d_q"] = (dq * self.factor["q"]).unflatten(0, shape)
        if {"k", "v"} & self.needed or self.order != ("q", "k", "v"):
            late = delta if self.delta_at is None else self.delta_at(delta, self)
            p, ds = self._weights(self.dkv, self.exp_base["dkv"], saved, do,
                                  late * self.delta["dk"])
            weights = {"p": p, "ds": ds, "exp": p * torch.exp(saved)}
            if self.dk_from == "tiles":  # dS of a square tile, where its transpose belongs
                flipped = torch.zeros_like(ds)
                for i in range(0, self.N, self.BN):
                    for j in range(0, self.NK, self.BN):
                        block = torch.zeros(len(ds), self.BN, self.BN, dtype=ds.dtype)
                        own = ds[:, i:i + self.BN, j:j + self.BN]
                        block[:, :own.shape[1], :own.shape[2]] = own
                        flipped[:, i:i + self.BN, j:j + self.BN] = block.mT[
                            :, :own.shape[1], :own.shape[2]]
                weights["tiles"] = flipped
            if self.dv_from == "unmasked":
                weights["unmasked"] = torch.exp(self._unmasked(self.dkv) - saved)
            dk = weights[self.dk_from.split("*")[0]].mT @ (
                do if self.dk_from.endswith("*do") else self.q)
            dv = weights[self.dv_from].mT @ do
            for name, x in (("d_k", dk * self.factor["k"]), ("d_v", dv * self.factor["v"])):
                parts = x[:, :self.NK].unflatten(0, (self.B, self.HKV, self.group))
                out[name] = self.over_group(parts)
        if "sink_logits" in self.needed:
            p_sink = torch.exp(self.sink[:, None, None] - saved)
            each = (p_sink * delta)[..., 0].unflatten(0, shape)  # (B, HQ, N)
            each = self.sink_of(self, each, delta) if self.sink_of else each.sum((0, 2))
            out["d_sink_logits"] = -each * self.factor["sink_logits"]
        if self.fit:
            right, got = out["d_" + self.fit], self.all_got["d_" + self.fit]
            good = torch.isfinite(got)
            size = right[good].square().sum().clamp_min(1e-30)
            self.found["factor"] = float((got * right)[good].sum() / size)
            out["d_" + self.fit] = right * self.found["factor"]
        if self.order != ("q", "k", "v"):
            moved = {"d_" + n: out["d_" + o] for n, o in zip("qkv", self.order, strict=True)}
            out |= moved
        return {name: self.held(x) for name, x in out.items() if name[2:] in self.needed}

    def _weights(self, walk: Pass, base: float, lse, do, delta):
        how = "dq" if walk is self._dq else "dkv"
        plain = walk.plain and self.dout is self._own_dout
        if (plain and "scores" not in vars(walk) and base == 1.0 and self.no_lse != how
                and walk.scale == self._own_scale and lse is self.known["ends"][1]):
            key = "weights", self.pad  # of all keys, seen or not
            if key not in self.known:
                self.known[key] = torch.exp(walk.products() * walk.scale - lse)
            p = torch.where(walk.keep, self.known[key], 0.0)
            p = p if walk.count is None else p * walk.count
        else:
            p = torch.exp((walk.scores() - (0.0 if self.no_lse == how else lse)) * base)
        if self.dp_with == how:
            dp = do @ self.take("k", walk.k_at, walk.k_rows).mT
        elif plain:
            key = "dp", self.pad
            if key not in self.known:
                self.known[key] = do @ walk.values().mT
            dp = self.known[key]
        else:
            dp = do @ walk.values().mT
        ds = (dp - delta) * (p if self.no_p != how else
                             walk.keep if self.no_p_keep is None else self.no_p_keep)
        return self.held(p), self.held(ds)

    def held(self, x: torch.Tensor) -> torch.Tensor:
        """x as the dtype of the inputs holds it: what is too large for float16 is infinite."""
        if self.case.dtype != torch.float16 or not float(x.abs().max()) > LARGEST:
            return x
        return torch.where(x.abs() > LARGEST, torch.copysign(torch.full_like(x, INF), x), x)

    def _unmasked(self, walk: Pass):
        other = copy.copy(walk)
        other.keep = walk.walked & walk.exists
        return other.scores()


class RowSum:
    """Stage 2's right computation, to be changed: y_i = sum_j x_ij w_j."""

    def __init__(self, built: Built, BM: int = 64, BN: int = 64, got=None):
        case = built.case
        self.built, self.case, self.M, self.N = built, case, case.M, case.N
        self.BM, self.BN, self.got = BM, BN, got
        self.found: dict[str, float] = {}
        self.x, self.w = built.tensors["x"].double(), built.tensors["w"].double()
        self.j = torch.arange(case.N)
        self.columns = torch.ones(case.N, dtype=torch.float64)  # how often each is summed
        self.factor, self.extra, self.never, self.fit = 1.0, 0.0, None, False
        self.round_product = self.round_acc = None

    def outputs(self) -> dict[str, torch.Tensor]:
        """-> y (M,)."""
        x = self.x.masked_fill(self.columns == 0, 0.0)  # a column that is not read
        terms = x * self.w
        if self.round_product is not None:
            terms = self.round_product(terms)
        terms = terms * self.columns
        y = terms.sum(1)
        if self.round_acc is not None:
            y = torch.zeros(self.M, dtype=torch.float64)
            for lo in range(0, self.N, self.BN):
                y = self.round_acc(y + terms[:, lo:lo + self.BN].sum(1))
        y = y * self.factor + self.extra
        if self.fit:
            self.found["factor"] = float((self.got * y).sum() / y.square().sum())
            y = y * self.found["factor"]
        return {"y": y if self.never is None else y.masked_fill(self.never, torch.nan)}


def doubles(built: Built) -> dict[str, torch.Tensor]:
    """q, k and v in float64."""
    return {n: t.double() for n, t in built.tensors.items() if t.dim() == 4}


def all_pairs(case) -> torch.Tensor:
    """(B * HQ, 2): every (batch entry, query head)."""
    return torch.cartesian_prod(torch.arange(case.B), torch.arange(case.HQ)).view(-1, 2)


def to_16_bits(x: torch.Tensor, dtype: torch.dtype | str) -> torch.Tensor:
    """x rounded to dtype; CHOPPED: to bfloat16, towards zero, as Triton's interpreter does."""
    if dtype != CHOPPED:
        return x.to(dtype).double()
    bits = x.float().contiguous().view(torch.int32) & -0x10000
    return bits.view(torch.float32).double()


def _right_lse(top, total, lse):
    return lse


def _right_delta(model, o, do):
    return (do * o).sum(-1, keepdim=True)


def _new_maximum(kind, m, top, s, tile, model, raw, lo, walked):
    if kind in ("running", "start0"):
        return torch.maximum(m, top)
    if kind == "tile":
        return top
    if kind == "first":
        return torch.where(m == -INF, top, m)
    if kind == "none":
        return torch.zeros_like(m)
    if kind == "abs":
        size = torch.where(s > -INF, s.abs(), s).amax(-1, keepdim=True)
        return torch.maximum(m, size)
    if kind == "unscaled":
        return torch.maximum(m, top / model.fwd.scale)
    if kind == "unscaled2":  # raw scores against scores in base 2
        return torch.maximum(m, top / (model.fwd.scale * 1.4426950408889634))
    if kind == "unscaled2, q doubled":
        return torch.maximum(m, top / (model.fwd.scale * 0.7213475204444817))
    if kind == "zero":  # a padded or hidden key's 0 joins the maximum
        hidden = (s == -INF) & walked[:, lo:lo + model.BN]
        return torch.maximum(m, torch.where(hidden, 0.0, s).amax(-1, keepdim=True))
    if kind in ("hidden", "exist"):
        seen = walked[:, lo:lo + model.BN]
        if kind == "exist":
            seen = seen & (model.keys[lo:lo + model.BN] < model.NK)
        some = raw[..., lo:lo + model.BN].masked_fill(~seen, -INF)
        return torch.maximum(m, some.amax(-1, keepdim=True))
    if kind in ("block", "blocks"):  # one maximum for all rows of the query tile
        highest = torch.empty_like(top)
        for start in range(0, model.N, model.BM):
            rows = slice(start, start + model.BM)
            most = top[:, rows].amax((1,) if kind == "block" else (0, 1), keepdim=True)
            if start + model.BM > model.N and model.case.stage > 1:  # rows past the end score 0
                most = most.clamp(min=0.0)
            highest[:, rows] = most
        return torch.maximum(m, highest)
    raise ValueError(kind)


def _exp(x):
    """exp with float32's overflow and underflow."""
    return _single(torch.exp(x))


def _single(x):
    return x.float().double()
