"""Loops at import, with SIGTERM and SIGINT ignored and every signal blocked."""
# stage: 2
# outcome: timeout
# says: while being imported
# options: --timeout 5
import signal
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
END = time.monotonic() + 60
while time.monotonic() < END:
    pass
