"""Lets PyTorch use a thousand threads."""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
# options: --timeout 20


torch.set_num_threads(1000)
