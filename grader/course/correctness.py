"""The verdict rule: is this tensor as close to the float64 truth as an honest kernel comes?

After shape, dtype and device (worker/returned.py) and finiteness, each tensor has two errors:

    fro = ||x - t|| / ||t||             row = max_i ||x_i - t_i|| / max(||t_i||, tau rms_row(t))

A row is one query or key of one head; tau is 0.05 forward, 0.25 for gradients, whose early rows
are small differences of large numbers.  Accepted iff fro <= 3 max(fro_b, u) and
row <= 4 max(row_b, 4 u), where b is our own tiled implementation in the same dtype, and u the
rounding unit of the operands.  fro sees a small error everywhere, row one wrong row of thousands.
In float32 and float16, b is the larger error of two implementations that scale in different places
(SCALED).  In float32, with scores of hundreds, the rounding of a single row decides row_b, and a
kernel may round its scores differently in the backward.  Below 2^-14, float16 has steps of 2^-24:
dS rounded after it is multiplied by the scale is off by 1 / scale times as much as if rounded
before.

dq and dk are sums of p (dP - delta) k.  If a query sees only one key, dP - delta, and so the whole
gradient, is zero but for rounding.  So the denominator of their rows is at least a quarter of the
size of the terms before they cancel, sqrt(sum_j (p_ij e_ij |k_j|)^2) with
e_ij = |do_i * v_j| + |do_i * o_i|, the sizes of the sums behind dP and delta (* elementwise).
For rows that do not cancel this changes nothing.

Four tensors have one number per row.  There ||t_i|| is no scale: a sum of many signed terms may
come out near zero while its rounding error does not.  So each number gets a scale of its own; row
is the largest |x_i - t_i| / scale_i, and fro their root mean square:

    lse          max(1, |t|).  An error e in lse multiplies every weight of its row by exp(-e),
                 so it is the absolute error that matters; above 1, float32 rounds relatively.
    y            sqrt(sum_j (x_ij w_j)^2), the size of a sum of that many terms of random sign.
    d_w          sqrt(sum_i (dy_i x_ij)^2), likewise.
    sink_logits  sqrt(sum_i (p_i delta_i)^2) over all its batch entries and rows, likewise.
"""

import contextlib
import functools
import math
from dataclasses import dataclass, field, replace

import torch

import reference
from grader.course.case_table import listed
from grader.course.inputs import Built, build
from grader.text import tensor_name

FRO_FACTOR, ROW_FACTOR, ROW_FLOOR = 3.0, 4.0, 4.0
TAU_FORWARD, TAU_GRADIENT = 0.05, 0.25
CANCELLED = 0.25  # of the size of the terms: no row of dq or dk is divided by less
UNIT = {torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9, torch.float32: 2.0**-21}
UNIT_TF32 = 2.0**-10  # on a GPU, Triton multiplies float32 in TF32 by default
TILE = 64  # keys per tile of our own implementation
# What is multiplied by the scale in the forward, in the backward, and for dq and dk.  First as in
# kernels that use exp2, then as in Triton's tutorial, except that dS is scaled before rounding, and
# that o is the sum of exp(s - lse) v, as in kernels that visit the keys twice.  With TF32, the
# second has it only in the backward, as kernels whose forward asks for "ieee" or has no tl.dot, and
# cuts where the first rounds, as Hopper's matrix units do.
SCALED = ("q", "q", "sums"), ("scores", "k", "dS")


@dataclass(frozen=True)
class Verdict:
    """The errors of one tensor and their limits.  nan: how many numbers are not finite; excused:
    whether it is accepted only because the original assignment gives lines that round."""

    fro: float
    fro_limit: float
    row: float
    row_limit: float
    nan: int
    excused: bool = False

    @property
    def accepted(self) -> bool:
        # Written so that a NaN anywhere gives False.
        return self.nan == 0 and self.fro <= self.fro_limit and self.row <= self.row_limit

    @property
    def times(self) -> float:
        """How many times its limit the worse error is; inf if a number is not finite."""
        if self.nan:
            return float("inf")
        return max(self.fro / self.fro_limit, self.row / self.row_limit)

    def as_dict(self) -> dict[str, float]:
        return {"fro": self.fro, "fro_limit": self.fro_limit,
                "row": self.row, "row_limit": self.row_limit} | (
                    {"excused": True} if self.excused else {})


@dataclass
class Answer:
    """All that a case's tensors are judged by, by name of output ("o") or gradient ("d_q")."""

    truth: dict[str, torch.Tensor]  # float64
    scale: dict[str, torch.Tensor]  # only for tensors with one number per row
    tiled: dict[str, torch.Tensor]  # our implementation, in the submission's dtype
    unit: float
    terms: dict[str, torch.Tensor] = field(default_factory=dict)  # sizes of d_q's and d_k's terms
    otherwise: dict[str, torch.Tensor] = field(default_factory=dict)  # tiled, SCALED[1]
    given: dict[str, torch.Tensor] = field(default_factory=dict)  # rounded as the original's lines

    def judge(self, name: str, x: torch.Tensor) -> Verdict:
        """Judge x, which may be on any device."""
        strict = self._judge(name, x, (self.tiled, self.otherwise))
        if strict.accepted or name not in self.given:
            return strict
        loose = self._judge(name, x, (self.tiled, self.otherwise, self.given))
        return replace(loose, excused=True) if loose.accepted else strict

    def _judge(self, name: str, x: torch.Tensor, honest: tuple[dict, ...]) -> Verdict:
        truth = self.truth[name]
        x = x.to(truth.device).double()
        sizes = self.scale.get(name), self.terms.get(name)
        fro, row = errors(x, truth, name, *sizes)
        ours = [errors(made[name].double(), truth, name, *sizes) for made in honest if made]
        fro_b, row_b = map(max, zip(*ours, strict=True))
        row_limit = ROW_FACTOR * max(row_b, ROW_FLOOR * self.unit)
        fro_limit = FRO_FACTOR * max(fro_b, self.unit)
        if name == "d_sink_logits":  # with HQ numbers only, fro_b is luck
            fro_limit = row_limit
        return Verdict(fro, fro_limit, row, row_limit, int((~torch.isfinite(x)).sum()))


@dataclass
class Wrong:
    """The first wrong tensor of an answer, and what it was compared with.

    times: the error of every tensor judged with it, as a multiple of its limit.
    """

    name: str
    x: torch.Tensor
    verdict: Verdict
    exact: Answer
    times: dict[str, float]


def row_errors(x, truth, name: str, scale=None, terms=None) -> torch.Tensor:
    """The error of each row of x; both in float64.  The shape is that of truth without its last
    axis, or all of it if a row is one number."""
    if scale is not None:
        return (x - truth).abs() / scale
    norms = torch.linalg.vector_norm(truth, dim=-1)
    tau = TAU_GRADIENT if name.startswith("d_") else TAU_FORWARD
    floor = tau * norms.square().mean().sqrt()
    if terms is not None:
        floor = torch.maximum(floor, CANCELLED * terms)
    return torch.linalg.vector_norm(x - truth, dim=-1) / torch.maximum(norms, floor)


def errors(x, truth, name: str, scale=None, terms=None) -> tuple[float, float]:
    """-> (fro, row) of x; both in float64."""
    rows, whole = row_errors(x, truth, name, scale, terms), truth.norm()
    if terms is not None:
        whole = torch.maximum(whole, CANCELLED * terms.norm())
    fro = (x - truth).norm() / whole if scale is None else rows.square().mean().sqrt()
    return float(fro), float(rows.max())


def term_sizes(q, k, v, *, dout, exact, dlse=None, is_causal=False, window_size=None, sink_size=0,
               scale=None, sink_logits=None) -> dict[str, torch.Tensor]:
    """The sizes of the terms that rows of dq and dk are sums of: d_q (B, HQ, NQ), d_k (B, HKV, NK).

    exact: what reference.attention returned for the same arguments, in float64.
    """
    (B, HQ, NQ, D), (_, HKV, NK, _) = q.shape, k.shape
    q, k, v, dout = q.double(), k.double(), v.double(), dout.double()
    scale = D**-0.5 if scale is None else scale
    keep = reference.keep_mask(NQ, NK, is_causal, window_size, sink_size, q.device)
    d_q, d_k = q.new_zeros(B, HQ, NQ), q.new_zeros(B, HKV, NK)
    for b in range(B):
        for h in range(HQ):
            kv = h // (HQ // HKV)
            s = (q[b, h] @ k[b, kv].T * scale).masked_fill(~keep, -torch.inf)
            p = torch.exp(s - exact["lse"][b, h][:, None])
            do2 = dout[b, h].square()
            dp_size = (do2 @ v[b, kv].square().T).sqrt()
            delta2 = (do2 * exact["o"][b, h].square()).sum(1, keepdim=True)
            if dlse is not None:
                delta2 = delta2 + dlse[b, h].double().square()[:, None]
            ds2 = (scale * p * (dp_size + delta2.sqrt())).square()
            d_q[b, h] = (ds2 @ k[b, kv].square().sum(1)).sqrt()
            d_k[b, kv] += ds2.T @ q[b, h].square().sum(1)
    return {"d_q": d_q, "d_k": d_k.sqrt()}


def answer(built: Built, device: str, *, refilled: bool = False, as_given: bool = False) -> Answer:
    """Compute the truth and our own tiled result.  To be called after the outputs have arrived.

    as_given: the file may round as lines do that the original assignment gives: its stage 1 keeps
    scores and the running o in the inputs' dtype, and its stage 2 multiplies in it.
    """
    case, tensors = built.case, built.refilled if refilled else built.tensors
    tensors = {name: t.to(device) for name, t in tensors.items()}
    upstream = {name: t.to(device) for name, t in built.upstream.items()}
    dtype = case.dtype
    if case.course_stage.sums_rows:
        return _row_sum_answer(**tensors, **upstream, as_given=as_given)
    tf32 = dtype == torch.float32 and device != "cpu" and case.course_stage.needs_triton
    unit = UNIT_TF32 if tf32 else UNIT[dtype]
    exact = reference.attention(**tensors, **upstream, **case.mask())
    tile = functools.partial(tiled_attention, **tensors, **upstream, **case.mask(), tf32=tf32)
    twice = dtype == torch.float32 or dtype == torch.float16 and upstream
    ours, otherwise = tile(), tile(scaled=SCALED[1]) if twice else {}
    truth = {"o": exact["o"], "lse": exact["lse"]}
    truth |= {"d_" + name: exact[name] for name in case.grads}
    scale = {"lse": exact["lse"].abs().clamp_min(1.0)}
    if "sink_logits" in case.grads:
        p = torch.exp(tensors["sink_logits"].double()[:, None] - exact["lse"])
        delta = (upstream["dout"].double() * exact["o"]).sum(-1)
        scale["d_sink_logits"] = (p * delta).square().sum((0, 2)).sqrt().clamp_min(1e-300)
    terms = term_sizes(**tensors, **upstream, exact=exact, **case.mask()) if upstream else {}
    rounds = as_given and not case.course_stage.needs_triton and dtype != torch.float32
    given = tile(scaled=SCALED[1], as_given=True) if rounds else {}
    finite = {name: t for name, t in given.items() if bool(t.isfinite().all())}
    return Answer(truth, scale, ours, unit, terms, otherwise, finite)


def warm_up(stage: int, device: str, bfloat16: bool, seed: int) -> None:
    """Compute one small answer: on a GPU the first takes half a second longer."""
    with contextlib.suppress(RuntimeError):
        case = replace(listed(stage, device, bfloat16)[0], N=64)
        answer(build(case, seed), device)


def _row_sum_answer(x, w, dy=None, *, as_given: bool = False) -> Answer:
    """Stage 2's answer: y and, if dy is given, d_x and d_w."""
    terms, dtype = x.double() * w.double(), x.dtype
    truth, scale = {"y": reference.weighted_row_sum(x, w)}, {"y": terms.square().sum(1).sqrt()}
    tiled = {"y": (x.float() * w.float()).sum(1)}
    if dy is not None:
        truth["d_x"], truth["d_w"] = reference.weighted_row_sum_gradients(x, w, dy)
        scale["d_w"] = (dy.double()[:, None] * x.double()).square().sum(0).sqrt()
        tiled |= {"d_x": torch.outer(dy.float(), w.float()),
                  "d_w": (dy.float()[:, None] * x.float()).sum(0)}
    return Answer(truth, {name: t.clamp_min(1e-300) for name, t in scale.items()},
                  {name: t.to(dtype) for name, t in tiled.items()}, UNIT[dtype],
                  given={"y": (x * w).float().sum(1).to(dtype)} if as_given else {})


def tiled_attention(q, k, v, *, dout=None, dlse=None, is_causal=False, window_size=None,
                    sink_size=0, scale=None, sink_logits=None, tf32=False, scaled=SCALED[0],
                    as_given=False) -> dict[str, torch.Tensor]:
    """What a right kernel computes, in PyTorch: operands in the input dtype, sums in float32.

    P and dS are rounded before their products; delta comes from the rounded O.  All heads and
    queries at once, TILE keys at a time.  Arguments as for reference.attention, and tf32: round
    float32 operands to TF32; scaled: one of SCALED; as_given: round scores and the running o of the
    forward to the input dtype, too.  -> o, lse (float32) and, with dout, d_q, d_k, d_v and
    d_sink_logits.
    """
    (B, HQ, NQ, D), (_, HKV, NK, _) = q.shape, k.shape
    dtype, scale = q.dtype, D**-0.5 if scale is None else scale

    def rounded(t):
        return in_tf32(t.float()) if in_tf32 else t.to(dtype).float()

    def grouped(t):  # (B, HQ, ...) -> (B, HKV, group, ...)
        return rounded(t).unflatten(1, (HKV, HQ // HKV))

    def heads():
        return grouped(q), rounded(k)[:, :, None], rounded(v)[:, :, None]

    in_tf32 = _round_tf32 if tf32 and scaled != SCALED[1] else None  # in the forward
    qs, ks, vs = heads()
    keep = reference.keep_mask(NQ, NK, is_causal, window_size, sink_size, q.device)

    def operands(by):  # of the product of the scores, and its factor
        if by == "scores":
            return qs, ks, scale
        for_base_2, ln2 = scale / math.log(2), math.log(2)
        return (qs * for_base_2, ks, ln2) if by == "q" else (qs, ks * for_base_2, ln2)

    def scores(lo, left, right, factor, stored=_exact):
        s = stored(stored(left @ right[..., lo:lo + TILE, :].mT) * factor)
        return s.masked_fill(~keep[:, lo:lo + TILE], -torch.inf)

    stored = rounded if as_given else _exact
    m, total = qs.new_full((B, HKV, HQ // HKV, NQ, 1), -torch.inf), 0.0
    if sink_logits is not None:  # as if the first key had this score and value 0
        m, total = sink_logits.float().view(1, HKV, -1, 1, 1).expand_as(m), 1.0
    acc, product = torch.zeros_like(qs), operands(scaled[0])
    for lo in range(0, NK, TILE):
        s = scores(lo, *product, stored)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        pivot = m_new.masked_fill(m_new == -torch.inf, 0.0)  # a row that has seen no key yet
        p, alpha = torch.exp(s - pivot), torch.exp(m - pivot)
        total = alpha * total + p.sum(-1, keepdim=True)
        acc = stored(alpha * acc + rounded(p) @ vs[..., lo:lo + TILE, :])
        m = m_new
    lse = m + torch.log(total)
    if scaled == SCALED[1] and not as_given:
        total = 1.0
        acc = sum(rounded(torch.exp(scores(lo, *product) - lse)) @ vs[..., lo:lo + TILE, :]
                  for lo in range(0, NK, TILE))
    out = {"o": (acc / total).flatten(1, 2).to(dtype), "lse": lse.flatten(1, 2)[..., 0]}
    if dout is None:
        return out

    if tf32 and scaled == SCALED[1]:
        in_tf32 = _cut_tf32
        qs, ks, vs = heads()
    do = grouped(dout)
    delta = (dout.float() * out["o"].float()).sum(-1)
    delta = (delta if dlse is None else delta - dlse).unflatten(1, (HKV, -1))[..., None]
    dq, dk, dv, product = torch.zeros_like(qs), [], [], operands(scaled[1])
    of_ds, of_sums = (scale, 1.0) if scaled[2] == "dS" else (1.0, scale)
    for lo in range(0, NK, TILE):
        p = torch.exp(scores(lo, *product) - lse)
        ds = rounded(p * (do @ vs[..., lo:lo + TILE, :].mT - delta) * of_ds)
        dv.append((rounded(p).mT @ do).sum(2))
        dk.append((ds.mT @ qs).sum(2) * of_sums)
        dq += ds @ ks[..., lo:lo + TILE, :] * of_sums
    out |= {"d_q": dq.flatten(1, 2).to(dtype), "d_k": torch.cat(dk, 2).to(dtype),
            "d_v": torch.cat(dv, 2).to(dtype)}
    if sink_logits is not None:
        p_sink = torch.exp(sink_logits.float().view(1, HKV, -1, 1, 1) - lse)
        grad = -(p_sink * delta).sum((0, 3, 4)).flatten()
        out["d_sink_logits"] = grad.to(sink_logits.dtype)
    return out


def _exact(t: torch.Tensor) -> torch.Tensor:
    return t


def _round_tf32(t: torch.Tensor) -> torch.Tensor:
    """float32 -> the nearest float32 with 10 stored mantissa bits."""
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _cut_tf32(t: torch.Tensor) -> torch.Tensor:
    """float32 without its last 13 bits."""
    return (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


MOST = 99.99  # per cent; larger errors all mean the same


def how_far(name: str, verdict: Verdict) -> str:
    """ "o is 96 % off (0.07 % allowed); its worst row is 2082 % off."."""
    name = tensor_name(name)
    whole, row = _percent(verdict.fro), _percent(verdict.row)
    if verdict.fro > verdict.fro_limit:
        whole, limit = _apart(verdict.fro, verdict.fro_limit)
        said = f"{name} is {whole} off ({limit} allowed)"
        return said + f"; its worst row is {row} off." if row != whole else f"{said}."
    row, limit = _apart(verdict.row, verdict.row_limit)
    return f"{name} is {whole} off, but its worst row is {row} off ({limit} allowed)."


def _apart(error: float, limit: float) -> tuple[str, str]:
    """Both as percentages, with enough digits to differ."""
    said = _percent(error), _percent(limit)
    digits = 2
    while said[0] == said[1] and digits < 8:
        digits += 1
        said = f"{100 * error:.{digits}g} %", f"{100 * limit:.{digits}g} %"
    return said


def _percent(error: float) -> str:
    if error < 0.001:
        return f"{100 * error:.1g} %"
    if error > MOST:
        return f"more than {100 * MOST:.0f} %"
    return f"{100 * error:.2g} %" if error < 0.995 else f"{100 * error:.0f} %"
