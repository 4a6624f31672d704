"""Makes float64 the default of PyTorch."""
# stage: 2
# base: problem_2.py
# outcome: pass
# ruff: noqa: F821
torch.set_default_dtype(torch.float64)
