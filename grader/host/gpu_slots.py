"""Limits the gradings of this account on a GPU to as many as have enough memory there.

More of them would only run out of memory.  So a grading takes a slot before it makes a context.
The driver is asked directly, because torch is not imported yet.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

GRADING_GIB = 6.0  # for one grading: its contexts, and attention in float64
WAIT_SECONDS = 600.0  # not for ever: whoever has a slot may be stopped
LOCK = "flash-attention-course-{user}-{name}.lock"
_others: list[str] = []  # the other slots of this process's GPU


def take(say: Callable[[str], None] | None) -> Callable[[], object]:
    """Wait for a slot on the first GPU, and keep it while this process lives.

    say: called once with what is waited for; None takes no slot.  -> a function that makes a
    context on the GPU.  If there is no driver, or locks do not work, nothing happens, and torch
    will say what is wrong.
    """
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, total, uuid = ctypes.c_int(), ctypes.c_size_t(), (ctypes.c_ubyte * 16)()
        if (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
                or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
                or driver.cuDeviceGetUuid(uuid, device)):
            return lambda: None
        if say is not None:
            wait(bytes(uuid).hex(), max(1, int(total.value / 2**30 / GRADING_GIB)), say)
        return lambda: driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), device)
    return lambda: None


def wait(gpu: str, places: int, say: Callable[[str], None]) -> None:
    """Take one of the slots of this GPU as soon as one is free; after a while go on without."""
    names, begun, told = [f"{gpu}-{n}" for n in range(places)], time.monotonic(), False
    locks = [lock(name) for name in names]
    while (mine := next((n for n, one in enumerate(locks) if is_mine(one)), places)) == places:
        if time.monotonic() - begun > WAIT_SECONDS:
            break
        if not told:
            say(f"Waiting for the GPU: other gradings need its memory, {GRADING_GIB:g} GiB each.")
        told = True
        time.sleep(random.uniform(0.1, 0.5))  # so that gradings side by side do not wake together
    for one in locks[:mine] + locks[mine + 1:]:
        os.close(one)
    _others[:] = names[:mine] + names[mine + 1:]


def gradings() -> int:
    """How many gradings of this account use this process's GPU now, this one included."""
    return 1 + sum(map(is_held, _others))


def is_held(name: str) -> bool:
    """Whether a process has this slot."""
    probe = lock(name)
    try:
        return not is_mine(probe, fcntl.LOCK_SH)
    finally:
        os.close(probe)


def lock(name: str) -> int:
    """Open the lock file of this name, which gradings of this account share."""
    path = Path(tempfile.gettempdir()) / LOCK.format(user=os.geteuid(), name=name)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def is_mine(lock: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Try to take the lock; it lasts until the file is closed or this process ends."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
