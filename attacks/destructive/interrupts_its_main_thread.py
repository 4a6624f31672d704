"""A thread that raises KeyboardInterrupt in the main thread between two calls."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
import _thread
import signal
import threading

signal.signal(signal.SIGINT, signal.default_int_handler)


def attack():
    threading.Timer(0.02, _thread.interrupt_main).start()
