"""The attention matrix that a submission really uses, read through its own function.

O is linear in V: where V is one-hot, column c of O is the weight that every query gives to one key.
dV is linear in dO in the same way, and shows the weights of the backward.  Each of a few batch
entries carries the next D keys, so one call is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import reference
from grader.cases import Case
from grader.inputs import Built, build
from grader.sandbox.calls import TensorInput

SEEN = 1e-6  # a weight above this is one that was given
LONGEST = 128  # queries: more would be more than a picture can show


@dataclass(frozen=True)
class Matrix:
    """Weights of one query head, (N, keys), float64: what they should be, and what they are."""

    case: Case
    head: int
    expected: torch.Tensor
    found: torch.Tensor
    keep: torch.Tensor  # bool: which keys each query should see
    backward: bool = False


def small(case: Case) -> Case:
    """The case that is asked for its matrix: as the wrong one, in float32, short enough to draw."""
    N = min(case.N, LONGEST)
    NK = None if case.NK is None else min(case.NK, LONGEST)
    return replace(case, group="probe", B=-(-(NK or N) // case.D), N=N, NK=NK, layout="dense",
                   dtype=torch.float32, dout="dense", repeats=1, refill=False, growth=False,
                   grads=("v",) if case.grads else ())


def read(ask: Callable[[Built], dict | None], case: Case, head: int,
         backward: bool = False) -> Matrix | None:
    """Recover the matrix of one query head.  ask: as in search.Search.  None: no answer."""
    case = small(case)
    if not backward:
        case = replace(case, grads=())
    built = build(case, 1)
    B, D, kv = case.B, case.D, head // (case.HQ // case.HKV)
    length = case.N if backward else case.n_keys
    hot = torch.zeros(B, length, D)
    position = torch.arange(min(B * D, length))
    hot[position // D, position, position % D] = 1.0
    for name in ("q", "k"):
        built.tensors[name] = built.tensors[name][:1].expand_as(built.tensors[name]).contiguous()
    if backward:
        dout = torch.zeros(B, case.HQ, case.N, D)
        dout[:, head] = hot
        built.call.douts["o"] = TensorInput.dense(dout)
    else:
        built.tensors["v"] = hot[:, None].expand(B, case.HKV, length, D).contiguous()
    for name, x in built.tensors.items():
        built.call.inputs[name] = TensorInput.dense(x)
    got = ask(built)
    if got is None:
        return None
    if backward:  # (B, keys, D), entry b holds the queries from b D on -> (queries, keys)
        found = got["d_v"][:, kv].mT.flatten(0, 1)[:case.N]
    else:
        found = torch.cat(list(got["o"][:, head]), 1)[:, :case.n_keys]
    keep = reference.keep_mask(case.N, case.n_keys, case.is_causal, case.window, case.sinks or 0)
    scale = case.D**-0.5 if case.scale is None else case.scale
    q, k = built.tensors["q"][0, head].double(), built.tensors["k"][0, kv].double()
    s = (q @ k.T * scale).masked_fill(~keep, -torch.inf)
    if case.sink_logits:
        sink = built.tensors["sink_logits"].double()[head].expand(case.N, 1)
        expected = torch.softmax(torch.cat([s, sink], 1), 1)[:, :-1]
    else:
        expected = torch.softmax(s, 1)
    return Matrix(case, head, expected, found.double(), keep, backward)


def describe(matrix: Matrix) -> tuple[str, str] | None:
    """What is wrong with it: (stable id, a sentence), or None where nothing is."""
    found, keep, N = matrix.found, matrix.keep, matrix.case.N
    where = "In the backward, q" if matrix.backward else "Q"
    bad = ~torch.isfinite(found).all(1)
    if bool(bad.any()):
        return "effect-nan", (f"{where}uery {_first(bad)} has weights that are NaN; "
                              f"{int(bad.sum())} of {N} queries do.")
    extra = (found.abs() > SEEN) & ~keep
    missing = (found.abs() <= SEEN) & keep & (matrix.expected > 1e-4)
    if bool(extra.any()):
        i, j = extra.nonzero()[0].tolist()
        return "effect-extra-keys", (f"{where}uery {i} sees key {j}, which it should not; "
                                     f"{_pattern(extra)}")
    if bool(missing.any()):
        i, j = missing.nonzero()[0].tolist()
        return "effect-missing-keys", (f"{where}uery {i} does not see key {j}; "
                                       f"{_pattern(missing)}")
    ratio = found.sum(1) / matrix.expected.sum(1)
    off = (ratio - 1).abs() > 1e-3
    if bool(off.any()):
        first = _first(off)
        spread = float(ratio[off].max() - ratio[off].min())
        alike = "as they do in every such row" if spread < 1e-3 else "and other rows differ"
        return "effect-row-sums", (f"The right keys are seen, but the weights of query {first} add "
                                   f"up to {float(ratio[first]):.4g} times what they should, "
                                   f"{alike}.")
    off = (found - matrix.expected).abs().amax(1) > 1e-3
    if bool(off.any()):
        return "effect-weights", (f"The right keys are seen and the weights add up, but single "
                                  f"weights are wrong, from query {_first(off)} on.")
    return None


def _first(rows: torch.Tensor) -> int:
    return int(rows.nonzero()[0])


def _pattern(pairs: torch.Tensor) -> str:
    """What the wrong pairs have in common."""
    i, j = pairs.nonzero().unbind(1)
    count, ages = len(i), (i - j).unique()
    text = f"{count} pair{'s' * (count > 1)} in all"
    if len(ages) == 1 and count > 1:
        return f"{text}, always query - key = {int(ages)}."
    if len(j.unique()) == 1 and count > 1:
        return f"{text}, always key {int(j[0])}."
    if len(i.unique()) == 1 and count > 1:
        return f"{text}, all of query {int(i[0])}."
    for tile in (16, 32, 64):
        if bool((i // tile == j // tile).all()) and pairs.shape[0] > tile:
            return f"{text}, all within tiles of {tile} on the diagonal."
    if bool((j > i).all()):
        return f"{text}, all of them keys after the query."
    if int(j.max()) < 16 < pairs.shape[1]:
        return f"{text}, all among the first {int(j.max()) + 1} keys."
    return f"{text}, queries {int(i.min())}-{int(i.max())}, keys {int(j.min())}-{int(j.max())}."
