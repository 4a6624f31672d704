"""A daemon that ignores and blocks every signal it may, and is told of no death."""
# stage: 2
# base: problem_2.py
# with: in_first_call, daemon
# outcome: pass


PROGRAM = """
import ctypes, signal, time
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG
time.sleep(60)
"""


def attack():
    leave(PROGRAM)
