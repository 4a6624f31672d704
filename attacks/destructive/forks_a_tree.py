"""A tree of 31 processes, made at import by everyone at once, that hold the pipes; the worker
dies.
"""
# stage: 2
# outcome: crashed
import os
import time

START = os.getpid()
for _ in range(4):  # 15 children, and 15 of the compile check's worker
    os.fork()
if os.getpid() != START:
    time.sleep(60)
os._exit(0)
