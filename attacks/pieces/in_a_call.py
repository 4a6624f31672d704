"""Stage 2, with an attack() in every call."""


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
