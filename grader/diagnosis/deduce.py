"""Deduces where a mistake may be from which gradients are wrong while the outputs are right."""

from grader.course.stages import Stage

# The wrong gradients -> what follows, and the places left.  In stages 8 and 9 one kernel computes
# dq and another dk and dv; in stage 1 all are made from one P.
KERNELS = {
    ("q",): ("k.grad and v.grad are right, so the saved lse and delta are too: the mistake "
             "is in code that only dq depends on.", ()),
    ("k",): ("v.grad is right and comes from the same P in the same loop, so the mistake is in dS "
             "(in dP or delta), in its product with q, or in how k.grad is scaled and stored.",
             ("dkdv products", "delta", "dkdv calls")),
    ("v",): ("k.grad is right and comes from the same P in the same loop, so the mistake is in the "
             "product of P and do, in its sum over the query heads that share a key/value head, or "
             "in how v.grad is stored.", ("dkdv products",)),
    ("k", "v"): ("q.grad is right, so the saved lse is too. The mistake is in code that "
                 "only dk and dv depend on: in P, in the loop over queries, or in which rows "
                 "and heads a program takes.", ()),
    ("q", "k"): ("v.grad is right, so the saved lse and P are too: dS is wrong, or q.grad and "
                 "k.grad have a wrong factor.", ("delta", "dq products", "dkdv products")),
    ("q", "k", "v"): ("o is right, but every gradient is wrong. Look at what they share, the saved "
                      "lse and the scale, or for one mistake made in both kernels.",
                      ("lse", "dq P", "dkdv P")),
    ("sink_logits",): ("The other gradients are right, so lse and delta are too.", ("dsink",)),
}
ONE_P = {
    ("q",): ("k.grad and v.grad are right, so P and dS are too.", ("dq products",)),
    ("k",): ("q.grad and v.grad are right, so P and dS are too.", ("dkdv products",)),
    ("v",): ("q.grad and k.grad are right, so P is too.", ("dkdv products",)),
    ("k", "v"): ("q.grad is right, so P and dS are too.", ("dkdv products",)),
    ("q", "k"): ("v.grad is right, so P is too: dS is wrong.",
                 ("delta", "dq products")),
    ("q", "k", "v"): ("o and lse are right, but every gradient is wrong: either P is wrong, or "
                      "every product with it is.", ("dq P", "dq products")),
}
GIVEN = ("o is right. Unless you changed the given backward, lse is wrong, or the m and l that it "
         "is made from: the backward uses nothing else of yours.", ("lse", "loop"))


OWN = ("o is right. The mistake is in the backward, or in what the forward saves for it.", ())
SURE = 0.5  # of the limit: below it a tensor is surely right, between it and the limit unsure


def deduce(stage: Stage, times: dict[str, float], marked: bool = True
           ) -> tuple[str, tuple[str, ...]]:
    """-> a sentence or "", and the places left; nothing if a tensor is neither wrong nor surely
    right.

    times: the error of every tensor of an answer, as a multiple of its limit; marked: whether the
    file is made from the course's.
    """
    if any(SURE < error <= 1 for error in times.values()):
        return "", ()
    wrong = {name: not error <= 1 for name, error in times.items()}
    gradients = {name[2:]: bad for name, bad in wrong.items() if name.startswith("d_")}
    if not any(gradients.values()) or any(bad and n[:2] != "d_" for n, bad in wrong.items()):
        return "", ()
    bad = tuple(name for name in ("q", "k", "v", "sink_logits", "x", "w") if gradients.get(name))
    if len(bad) > 3:  # sink_logits among them: its gradient needs only lse and delta
        bad = ("q", "k", "v")
    if stage.sums_rows:
        return "", tuple("d" + name for name in bad) + ("launch",)
    if stage.backward_is_given:
        return GIVEN if marked else OWN
    if not {"q", "k", "v"} <= gradients.keys():
        return "", ()
    return (KERNELS if stage.needs_triton else ONE_P).get(bad, ("", ()))
