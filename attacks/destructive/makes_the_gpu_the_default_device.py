"""Makes the GPU the default device, as an honest file may."""
# stage: 2
# base: problem_2.py
# outcome: pass
# ruff: noqa: F821
torch.set_default_device("cuda")
