"""Folder, mask, priority, limits of recursion, signals, warnings and garbage collection changed
beside right answers: none of it reaches the grader.
"""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
import faulthandler
import gc
import os
import signal
import sys
import warnings

warnings.simplefilter("error")
os.chdir("/")
os.umask(0o777)
os.nice(19)
sys.setrecursionlimit(10**9)
sys.setswitchinterval(1.0)
faulthandler.enable()
faulthandler.dump_traceback_later(0.5, repeat=True)
gc.disable()
gc.freeze()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
    signal.signal(number, lambda *_: None)
torch.set_grad_enabled(False)
torch.manual_seed(0)
