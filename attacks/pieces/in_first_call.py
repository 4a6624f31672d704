"""Stage 2, with an attack() in its first call."""


honest, once = weighted_row_sum_forward, []


def weighted_row_sum_forward(x, w):
    if not once:
        once.append(1)
        attack()
    return honest(x, w)
