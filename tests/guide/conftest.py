"""What the tests of the built guide share: the guide, built once a run for all workers."""

import fcntl
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from guide.excerpts import ROOT

WANTED = ("sphinx", "furo", "myst_parser", "pypandoc", "typst", "ziamath", "bs4")


def build(folder, *options):
    """One at a time: all builds draw into guide/text/drawn."""
    out = folder / "out"
    with open(ROOT / "guide" / "build.py", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():  # another worker of this run may have built it
            ran = subprocess.run([sys.executable, "-m", "guide.build", "--out", str(out), *options],
                                 cwd=ROOT, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
    return out


def shared(factory, name):
    """A folder that all workers of a run see."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    if any(find_spec(module) is None for module in WANTED):
        pytest.skip("want pip install -e '.[guide]'")
    return build(shared(tmp_path_factory, "guide-built"))
