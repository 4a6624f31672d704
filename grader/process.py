"""This process: how it begins, imports torch, is interrupted and ends."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

FILE_BYTES = 16 << 20  # for a copy of the file, a compiled kernel or the report
INTERRUPTED = "Interrupted; what was graded so far stands."


def prepare() -> None:
    """Open the standard descriptors where they are closed, raise KeyboardInterrupt on SIGTERM, let
    no other process read this one's memory, and keep NumPy's threads from starting here and in the
    workers.

    A descriptor closed from the start (`<&-`) would be given to the first file or socket opened.
    NumPy's threads, one per core, spin while they wait: on 16 cores they took 2 s of CPU time, more
    than the rest of `import torch` (2026-11-25), and nothing here is large enough to need them.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # This takes the lowest free number; it must stay taken in child programs, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))
        if name != "stdin":  # characters that the terminal cannot show
            getattr(sys, name).reconfigure(errors="replace")

    def stop(number, frame):
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, stop)
    if sys.platform == "linux":  # other processes of this account must not read this one's memory
        PR_SET_DUMPABLE = 4
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def small_files() -> str:
    """What is wrong if `ulimit -f` is too small for the files that a grading writes, or "" """
    import resource  # Windows has none

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY or limit >= FILE_BYTES:
        return ""
    return (f"want files of {FILE_BYTES >> 20} MiB allowed (ulimit -f); got a limit of "
            f"{limit / 1024:g} KiB")


def import_torch(with_gpu: bool, say: Callable[[str], None] | None,
                 begin: Callable[[], None] = lambda: None) -> None:
    """Import torch; meanwhile take a slot on the GPU and make a context there, which takes 0.3 s.
    Garbage collection is off, because it would take a fifth of the import.

    say: as in gpu_slots.take().  begin: called as soon as there is a slot.
    """
    def place() -> None:
        make_context = gpu_slots.take(say)
        begin()
        make_context()

    if with_gpu:
        from grader.host import gpu_slots

        placing = threading.Thread(target=place, daemon=True)
        placing.start()
    else:
        begin()
    gc.disable()
    try:
        import torch
    finally:
        gc.freeze()
        gc.enable()
    # Small tensors gain nothing from more threads.  On busy cores, waiting for each other would
    # count as their work, and the search for a mistake would run out of time.
    torch.set_num_threads(1)
    if with_gpu:
        placing.join()


@contextlib.contextmanager
def left_at_once():
    """Let an interruption end this process at once.  The supervisors then end their workers and
    remove their folders; waiting for that would take seconds."""
    def stop(number, frame):
        with contextlib.suppress(OSError):
            os.write(2, f"\n{INTERRUPTED}\n".encode())
        os._exit(128 + number)

    heard = [number for number in (signal.SIGINT, signal.SIGTERM)
             if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(code: int) -> NoReturn:
    """End this process at once: an orderly exit takes up to a second on a GPU.  The supervisors
    then end their workers and remove their folders."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
