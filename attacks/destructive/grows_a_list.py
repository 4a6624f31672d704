"""A list that grows to 2 GiB; the answer beside it is right."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# says: memory
# options: --memory 1


hoard = []


def attack():
    while len(hoard) < 128:
        hoard.append(b"x" * (16 << 20))
