"""Writes 1.5 GiB into its folder, as 96 files."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass, crashed


def attack():
    for i in range(96):
        with open(f"file-{i}", "wb") as file:
            file.write(bytes(16 << 20))
