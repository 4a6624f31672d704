"""Tensors that fill 2 GiB in a call, kept in a global."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# says: memory
# options: --memory 1


hoard = []


def attack():
    while len(hoard) < 8:
        hoard.append(torch.ones(64 << 20, dtype=torch.float32, device="cpu"))
