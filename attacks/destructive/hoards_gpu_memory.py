"""Keeps 4 GiB more of the GPU at every call, up to 40 GiB, beside right answers: all of it goes
with the worker, so a smaller GPU runs out and a larger one passes.
"""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: pass, crashed
# device: cuda


hoard = []


def attack():
    if len(hoard) < 10:
        hoard.append(torch.ones(1 << 30, device="cuda"))
