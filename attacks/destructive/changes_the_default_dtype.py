"""Makes float64 the default of PyTorch."""
# stage: 2
# base: problem_2.py
# outcome: pass


torch.set_default_dtype(torch.float64)
