"""Makes the GPU the default device, as an honest file may."""
# stage: 2
# base: problem_2.py
# outcome: pass


torch.set_default_device("cuda")
