"""python -I -B grader/inside/__main__.py FDS FOLDERS: the nursery, keeper.py.

`-I` leaves our own folder off sys.path, where a submission could shadow it.  So this makes the
folder a package of its own, wherever it lies, and imports all of it: a worker is forked with
everything in memory, and need not be able to read a single file of the grader.

`-I` also hides a `pip install --user`.  FOLDERS, joined by os.pathsep, are those in which the
grader found torch, triton and numpy.
"""

import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path += [folder for folder in sys.argv[2].split(os.pathsep) if folder not in sys.path]
spec = importlib.util.spec_from_file_location("inside", FOLDER / "__init__.py",
                                              submodule_search_locations=[str(FOLDER)])
sys.modules["inside"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["inside"])
importlib.import_module("inside.keeper").main(*map(int, sys.argv[1].split(",")))
