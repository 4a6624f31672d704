"""python -I grader/sandbox/__main__.py FDS GPU FOLDERS: reaper.py, which forks supervisor.py.

`-I` keeps our own folder off sys.path, where a submission could shadow it.  So this makes the
folder a package, wherever it is, and imports all of it.  A worker is forked with everything in
memory, and need not be able to read any file of the grader.

FDS: two sockets for requests, one of the compiling fork server and one of the interpreting one, and
the pipe that reaper.py reads.  `-I` also hides a `pip install --user`, so FOLDERS, joined by
os.pathsep, lists where the grader found torch, triton and numpy.

All workers wait for this import.  So garbage collection, a fifth of the time, is off meanwhile.  On
a machine with a GPU (GPU is not empty) the hash of all its files by which Triton knows its version
is computed at the same time.
"""

import contextlib
import gc
import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def triton_key() -> int:
    """The end of a pipe from which Triton's key can be read; nothing comes if making it failed."""
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
