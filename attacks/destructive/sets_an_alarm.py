"""An alarm without a handler ends the process between two calls."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# says: SIGALRM
import signal


def attack():
    signal.setitimer(signal.ITIMER_REAL, 0.02)
