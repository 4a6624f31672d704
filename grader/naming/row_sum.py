"""Stage 2 with one mistake, in float64: y and, where its gradient came along, dx and dw."""

import torch

from grader.inputs import Built


class RowSum:
    """Stage 2's right computation, to be changed: y_i = sum_j x_ij w_j."""

    def __init__(self, built: Built, BM: int = 64, BN: int = 64, got=None):
        case = built.case
        self.built, self.case, self.M, self.N = built, case, case.M, case.N
        self.BM, self.BN, self.got = BM, BN, got or {}
        self.found: dict[str, float] = {}
        self.x, self.w = built.tensors["x"].double(), built.tensors["w"].double()
        self.j = torch.arange(case.N)
        self.columns = torch.ones(case.N, dtype=torch.float64)  # how often each is summed
        self.round_product = lambda terms: terms
        self.round_acc = self.round_tile = None  # a tile's sum, and what it is added to
        self.after = lambda y: y
        self.dy = built.upstream.get("dy")
        self.dy = None if self.dy is None else self.dy.double()
        self.needed = set(case.grads)
        self.dx_of = lambda dy, w: dy[:, None] * w[None, :]
        self.dw_terms = lambda dy, x: dy[:, None] * x  # (M, N), summed over rows
        self.dw_rows = torch.ones(case.M, dtype=torch.float64)  # how often each is summed
        self.dw_acc = None  # rounds the sum after every tile of rows
        self.after_gradients = lambda out: out

    def outputs(self) -> dict[str, torch.Tensor]:
        """-> y (M,)."""
        x = self.x.masked_fill(self.columns == 0, 0.0)  # a column that is not read
        terms = self.round_product(x * self.w) * self.columns
        y = terms.sum(1)
        if self.round_acc is not None or self.round_tile is not None:
            y = torch.zeros(self.M, dtype=torch.float64)
            for lo in range(0, self.N, self.BN):
                share = terms[:, lo:lo + self.BN].sum(1)
                y = y + (share if self.round_tile is None else self.round_tile(share))
                y = y if self.round_acc is None else self.round_acc(y)
        return {"y": self.after(y)}

    def gradients(self) -> dict[str, torch.Tensor]:
        """-> d_x (M, N), d_w (N,) of what is needed."""
        out = {}
        if "x" in self.needed:
            out["d_x"] = self.dx_of(self.dy, self.w)
        if "w" in self.needed:
            terms = self.dw_terms(self.dy, self.x) * self.dw_rows[:, None]
            out["d_w"] = terms.sum(0)
            if self.dw_acc is not None:
                out["d_w"] = torch.zeros(self.N, dtype=torch.float64)
                for lo in range(0, self.M, self.BM):
                    out["d_w"] = self.dw_acc(out["d_w"] + terms[lo:lo + self.BM].sum(0))
        return self.after_gradients(out)
