# Finds the course, installs what is missing, and makes flash/, where your files lie.
import subprocess
import sys
from pathlib import Path

REPOSITORY = ""
here = Path.cwd()
course = next((folder for folder in (here, *here.parents, here / "course")
               if (folder / "notebooks/cells.py").is_file()), None)
if course is None and REPOSITORY:
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", REPOSITORY, "course"], check=True)
    course = here / "course"
if course is None:
    raise FileNotFoundError(
        "want this notebook in a clone of the course; got none. In a new cell: !git clone ADDRESS "
        "course (ADDRESS: of the repository this notebook is from), then run this cell again")
sys.path.insert(0, str(course))
from notebooks.cells import begin, code, picture

begin()
