"""Holds all that runs beside a submission, and wire.py, which both sides share.

Modules here import only each other, Python's library, torch, numpy and triton.  The rest of the
grader imports only wire.py, and LENGTH below: what a worker says is data.  `--doctor` tries the
confinement in a process of its own.
"""

import struct

LENGTH = struct.Struct("!I")  # on every socket, the length of the JSON that follows
