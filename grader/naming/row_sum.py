"""Stage 2 with one mistake, in float64."""

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
        self.round_acc = None  # after every tile
        self.after = lambda y: y

    def outputs(self) -> dict[str, torch.Tensor]:
        """-> y (M,)."""
        x = self.x.masked_fill(self.columns == 0, 0.0)  # a column that is not read
        terms = self.round_product(x * self.w) * self.columns
        y = terms.sum(1)
        if self.round_acc is not None:
            y = torch.zeros(self.M, dtype=torch.float64)
            for lo in range(0, self.N, self.BN):
                y = self.round_acc(y + terms[:, lo:lo + self.BN].sum(1))
        return {"y": self.after(y)}
