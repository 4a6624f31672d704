"""An error whose text, cause, context and comparison all raise or lie."""
# stage: 2
# outcome: crashed


class Text(str):
    def __getitem__(self, index):
        raise SystemExit("from a slice")

    def splitlines(self):
        return self


class LyingError(Exception):
    __cause__ = property(lambda self: LyingError())
    __suppress_context__ = property(lambda self: 1 / 0)
    __eq__ = None

    def __str__(self):
        return Text("text")

    def __getattribute__(self, name):
        raise KeyboardInterrupt(name)


def weighted_row_sum_forward(x, w):
    raise LyingError
