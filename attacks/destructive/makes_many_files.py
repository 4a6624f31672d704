"""Twenty thousand files, some with names that are no text, and a pipe nobody reads."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import os


def attack():
    os.mkdir("many")
    for i in range(20_000):
        os.close(os.open(f"many/{i}", os.O_CREAT | os.O_WRONLY))
    for name in (b"\xff\xfe", b"a\nb", b"-rf", b" ", b"\x1b[2J", b"*"):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    os.mkfifo("pipe")
