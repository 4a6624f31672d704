"""Holds all that runs beside a submission, and wire.py, which both sides share.

Modules here import only each other, Python's library, torch, numpy and triton.  The judge imports
only wire.py: what a worker says is data.
"""

import struct

LENGTH = struct.Struct("!I")  # on every socket, the length of the JSON that follows
