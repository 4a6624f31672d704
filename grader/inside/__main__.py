"""python -I -B grader/inside/__main__.py FD MODULES: the nursery, keeper.py.

`-I` leaves our own folder off sys.path, where a submission could shadow it.  So this makes the
folder a package of its own, wherever it lies, and imports all of it: a worker is forked with
everything in memory, and need not be able to read a single file of the grader.
"""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
spec = importlib.util.spec_from_file_location("inside", FOLDER / "__init__.py",
                                              submodule_search_locations=[str(FOLDER)])
sys.modules["inside"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["inside"])
importlib.import_module("inside.keeper").main()
