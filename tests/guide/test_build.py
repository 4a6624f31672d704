"""The site and the PDF as make guide builds them; skipped without the extra [guide]."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from guide.excerpts import ROOT

WANTED = ("sphinx", "furo", "myst_parser", "pypandoc", "typst", "ziamath", "bs4")
# Not imported here: SciPy does other things where it finds a module of that name loaded.
pytestmark = pytest.mark.skipif(any(find_spec(module) is None for module in WANTED),
                                reason="want pip install -e '.[guide]'")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("guide") / "out"
    ran = subprocess.run([sys.executable, "-m", "guide.build", "--out", str(out)], cwd=ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return out


def test_every_page_has_its_formulas_as_mathml_and_no_tex_is_left(built):
    pages = [(built / "html" / f"{path.stem}.html").read_text("utf-8")
             for path in (ROOT / "guide" / "text").glob("*.md")]
    assert sum("<math" in page for page in pages) >= 9
    assert not any('class="tex"' in page or r"\frac" in page for page in pages)


def test_pictures_and_the_font_lie_beside_the_pages(built):
    for page in (built / "html").glob("*.html"):
        for source in re.findall(r'<img[^>]* src="([^"]+)"', page.read_text("utf-8")):
            assert (page.parent / source).is_file()
    assert (built / "html" / "_static" / "STIXTwoMath-Regular.ttf").is_file()


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "mine").write_text("kept")
    ran = subprocess.run([sys.executable, "-m", "guide.build", "--out", str(tmp_path)], cwd=ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 2 and "want an --out that is not there yet; got" in ran.stderr
    assert (tmp_path / "mine").read_text() == "kept"


def test_the_book_is_a_pdf_of_some_pages(built):
    book = (built / "guide.pdf").read_bytes()
    assert book.startswith(b"%PDF") and len(book) > 200_000
