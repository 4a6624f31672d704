"""All that runs beside a submission, and wire.py, which both sides share.

Nothing here imports anything from outside this folder but Python, torch, numpy and triton, and
nothing but wire.py is imported by the judge: what a worker says is data.
"""

import struct

LENGTH = struct.Struct("!I")  # on every socket, of the JSON that follows
