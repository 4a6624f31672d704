"""Places on a GPU: as many gradings of this account at once as it has memory for.

Beyond that they only fail for want of it.  So a grading takes its place before it makes a context,
and asks the driver alone; torch is not imported here.
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

GRADING_GIB = 6.0  # that one grading takes: its contexts, and attention in float64
WAIT_SECONDS = 600.0  # one that has a place may be stopped, not ended
LOCK = "flash-attention-course-{user}-{name}.lock"
_others: list[str] = []  # the places on the GPU that this process waited for, but its own


def take(say: Callable[[str], None] | None) -> Callable[[], object]:
    """Wait for a place on the first GPU, and keep it while this process lives.  -> what makes this
    process a context there.

    say: told once what is waited for; None for a context without a place.  Where the driver cannot
    be asked, or no lock be held, nothing happens: torch will say what is wrong.
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
    """Take one of so many places on this GPU once one is free, or go on without after a while."""
    names, begun, told = [f"{gpu}-{n}" for n in range(places)], time.monotonic(), False
    locks = [lock(name) for name in names]
    while (mine := next((n for n, one in enumerate(locks) if is_mine(one)), places)) == places:
        if time.monotonic() - begun > WAIT_SECONDS:
            break
        if not told:
            say(f"Waiting for the GPU: other gradings need its memory, {GRADING_GIB:g} GiB each.")
        told = True
        time.sleep(random.uniform(0.1, 0.5))  # those side by side are not to wake together
    for one in locks[:mine] + locks[mine + 1:]:
        os.close(one)
    _others[:] = names[:mine] + names[mine + 1:]


def gradings() -> int:
    """How many of this account are at work on this process's GPU now, this one among them."""
    return 1 + sum(map(is_held, _others))


def is_held(name: str) -> bool:
    """Whether a process has this place."""
    probe = lock(name)
    try:
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(probe)


def lock(name: str) -> int:
    """The file that gradings of this account hold while they have what it is named for; open."""
    path = Path(tempfile.gettempdir()) / LOCK.format(user=os.geteuid(), name=name)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def is_mine(lock: int) -> bool:
    """Whether nobody else holds it; then this process does, until it closes it or ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
