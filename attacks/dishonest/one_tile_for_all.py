"""One tile holds all queries and keys: right in the interpreter, impossible on a GPU."""
# stage: 4
# base: problem_4.py
# outcome: crashed
_sizes = _tiles


def _tiles(q):
    rows = max(16, triton.next_power_of_2(q.shape[2]))
    return _sizes(q) | {"BLOCK_M": rows, "BLOCK_N": rows}
