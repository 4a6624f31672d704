"""python -I grader/sandbox/__main__.py FDS GPU FOLDERS: reaper.py, which forks supervisor.py.

`-I` leaves our own folder off sys.path, where a submission could shadow it.  So this makes the
folder a package of its own, wherever it lies, and imports all of it: a worker is forked with
everything in memory, and need not be able to read a single file of the grader.

FDS: two sockets for requests, to the fork server that compiles and to the one that interprets, and
the pipe that reaper.py reads.  `-I` also hides a `pip install --user`.  FOLDERS, joined by
os.pathsep, are those in which the grader found torch, triton and numpy.

All workers wait for this import.  So no garbage is looked for meanwhile, which takes a fifth of it;
and where there is a GPU (GPU is not empty), what Triton tells its own versions apart by, a hash of
all its files, is made beside it.
"""

import contextlib
import gc
import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def triton_key() -> int:
    """The end of a pipe in which Triton's key will stand; nothing where it could not be made."""
    key, written = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(Exception), open(written, "w") as pipe:
            pipe.write(importlib.import_module("triton.runtime.cache").triton_key())
        os._exit(0)
    os.close(written)
    return key


gc.disable()
sys.path += [folder for folder in sys.argv[3].split(os.pathsep) if folder not in sys.path]
spec = importlib.util.spec_from_file_location("sandbox", FOLDER / "__init__.py",
                                              submodule_search_locations=[str(FOLDER)])
sys.modules["sandbox"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["sandbox"])
*requests, folders = map(int, sys.argv[1].split(","))
importlib.import_module("sandbox.supervisor.reaper").fork_fork_server(folders, requests)
key = triton_key() if sys.argv[2] else None
importlib.import_module("sandbox.supervisor.supervisor").main(*requests, key)
