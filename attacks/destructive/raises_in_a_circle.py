"""An error that is its own cause, by way of others, inside groups of groups."""
# stage: 2
# outcome: crashed
# says: Group


def weighted_row_sum_forward(x, w):
    first = error = ValueError("first")
    for i in range(1000):
        following = RuntimeError(str(i))
        following.__cause__, error = error, following
    first.__cause__ = error
    group = first
    for _ in range(500):
        group = BaseExceptionGroup("group", [group, first])
    group.__context__ = group.__cause__ = error
    raise group
