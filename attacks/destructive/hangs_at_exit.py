"""Right answers, then an exit held up by atexit, a thread and a __del__: the grader ends the
process, and never waits for its exit, so it passes.
"""
# stage: 2
# base: problem_2.py
# outcome: pass
import atexit
import threading
import time


class Sticky:
    def __del__(self, sleep=time.sleep):
        sleep(60)


kept = Sticky()
atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()
