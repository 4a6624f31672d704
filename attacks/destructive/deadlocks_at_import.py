"""Takes a lock twice at import, in a thread that the import waits for."""
# stage: 2
# outcome: timeout
# options: --timeout 5
import threading

lock = threading.Lock()


def take():
    with lock:
        lock.acquire(timeout=60)


thread = threading.Thread(target=take)
thread.start()
thread.join()
