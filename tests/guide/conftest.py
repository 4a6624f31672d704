"""What the tests of the built guide share: the guide, built once a run."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from guide.excerpts import ROOT

WANTED = ("sphinx", "furo", "myst_parser", "pypandoc", "typst", "ziamath", "bs4")


def build(folder, *options):
    out = folder / "out"
    ran = subprocess.run([sys.executable, "-m", "guide.build", "--out", str(out), *options],
                         cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return out


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    if any(find_spec(module) is None for module in WANTED):
        pytest.skip("want pip install -e '.[guide]'")
    return build(tmp_path_factory.mktemp("guide"))
