"""Errors that bear the names of known ones and lack their attributes."""
# stage: 2
# outcome: crashed


class OutOfResources(Exception):  # noqa: N818
    pass


class CompilationError(Exception):
    node = src = error_message = 1


calls = []


def weighted_row_sum_forward(x, w):
    calls.append(1)
    raise (OutOfResources if len(calls) == 1 else CompilationError)("an illegal memory access")
