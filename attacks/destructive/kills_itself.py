"""Sends SIGKILL to its own process at import."""
# stage: 2
# outcome: crashed
# says: SIGKILL
import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
