"""Makes a device without memory the default of PyTorch."""
# stage: 2
# base: problem_2.py
# outcome: pass, wrong, crashed


torch.set_default_device("meta")
