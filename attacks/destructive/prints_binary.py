"""A right answer among random bytes, lone surrogates and half characters on stdout."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: pass
import os


def attack():
    os.write(1, os.urandom(1 << 16) + b"\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82")
