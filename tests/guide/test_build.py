"""The site and the PDF as make guide builds them; skipped without the extra [guide]."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from guide import excerpts
from guide.build import FONT, bundle_font, characters
from guide.excerpts import ROOT
from tests.guide.conftest import WANTED, build, shared

# Not imported here: SciPy does other things where it finds a module of that name loaded.
pytestmark = pytest.mark.skipif(any(find_spec(module) is None for module in WANTED),
                                reason="want pip install -e '.[guide]'")


@pytest.fixture(scope="module")
def for_a_class(tmp_path_factory):
    return build(shared(tmp_path_factory, "guide-for-a-class"), "--no-solutions", "--only", "site")


def solved() -> list[tuple[str, str]]:
    """(page, text) of every solved step, and of what should be where a mistake is."""
    found = []
    for page in (ROOT / "guide" / "text").glob("stage_*.md"):
        text = page.read_text("utf-8")
        found += [(page.stem, excerpts.step(number))
                  for number in re.findall(r"^```{step} (.*)$", text, re.MULTILINE)]
        found += [(page.stem, excerpts.slip(int(stage), name).right)
                  for stage, name in re.findall(r"^```{mistake} (.) (.*)$", text, re.MULTILINE)]
    assert len(found) > 50
    return [(page, text.strip()) for page, text in found]


def words(page, *without) -> str:
    """What a page shows, but for these elements."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page.read_text("utf-8"), "html.parser")
    for element in soup.select(", ".join(without)) if without else ():
        element.decompose()
    return soup.get_text()


def test_a_solved_step_is_folded_away(built):
    for page, text in solved():
        file = built / "html" / f"{page}.html"
        assert text in words(file) and text not in words(file, "details.solution")


def test_a_kernel_in_one_piece_is_folded_away_in_the_appendix_or_left_out(built, for_a_class):
    file, source = built / "html" / "stage_3.html", (built / "guide.typ").read_text("utf-8")
    chapters, appendix = source.split("= Answers and solved steps\n", 1)
    for _, text in excerpts.kernel("3"):
        assert text in words(file) and text not in words(file, "details.solution")
        assert text in appendix and text not in chapters
        assert text not in words(for_a_class / "html" / "stage_3.html")


def test_what_a_good_answer_has_is_folded_away_in_the_appendix_or_left_out(built, for_a_class):
    words_of = "It is the step of the online softmax for two finished pieces"  # of the third
    assert words_of in excerpts.open_exercises()["3"].answer
    page, source = built / "html" / "open.html", (built / "guide.typ").read_text("utf-8")
    chapters, appendix = source.split("= Answers and solved steps\n", 1)
    assert words_of in words(page) and words_of not in words(page, "details.solution")
    assert words_of in appendix and words_of not in chapters
    assert "Derive" in words(for_a_class / "html" / "open.html")
    assert not any(words_of in words(page) for page in (for_a_class / "html").glob("*.html"))


def test_the_book_has_solved_steps_in_the_appendix_only(built):
    source = (built / "guide.typ").read_text("utf-8")
    chapters, appendix = source.split("= Answers and solved steps\n", 1)
    for _, text in solved():
        assert text in appendix and f"\n{text}\n" not in chapters


def test_a_class_gets_no_solution(for_a_class):
    text = "".join(words(page) for page in (for_a_class / "html").glob("*.html"))
    assert all(one not in text for _, one in solved() if "\n" in one)
    assert "step 4.2: still to write" in text
    assert "<details" not in "".join(page.read_text("utf-8") for page in
                                     (for_a_class / "html").glob("stage_*.html"))


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


def test_a_browser_draws_a_root_and_italics_that_are_in_no_text():
    drawn = characters("<math><msqrt><mi>D</mi></msqrt><mo>&lt;</mo><mi>h</mi> <mi>lse</mi></math>")
    assert drawn == set("√<Dhlse") | {"\N{MATHEMATICAL ITALIC CAPITAL D}", "\N{PLANCK CONSTANT}"}


def test_a_formula_with_a_character_that_the_font_lacks_breaks_the_build(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "page.html").write_text("<math><msqrt><mi>D</mi></msqrt></math>", "utf-8")
    bundle_font(tmp_path)
    (tmp_path / "page.html").write_text("<math><mi>D</mi><mo>ש</mo></math>", "utf-8")
    with pytest.raises(SystemExit, match="it lacks ש in page.html"):
        bundle_font(tmp_path)


def test_the_font_beside_the_pages_has_the_root_of_the_scale(built):
    from fontTools.ttLib import TTFont

    assert "<msqrt>" in (built / "html" / "notation.html").read_text("utf-8")
    assert ord("√") in TTFont(built / "html" / "_static" / FONT).getBestCmap()


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "mine").write_text("kept")
    ran = subprocess.run([sys.executable, "-m", "guide.build", "--out", str(tmp_path)], cwd=ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 2 and "want an --out that is not there yet; got" in ran.stderr
    assert (tmp_path / "mine").read_text() == "kept"


def test_the_book_is_a_pdf_of_some_pages(built):
    book = (built / "guide.pdf").read_bytes()
    assert book.startswith(b"%PDF") and len(book) > 200_000


def test_names_of_functions_stand_apart_from_what_they_are_of(built):
    page = (built / "html" / "stage_3.html").read_text("utf-8")
    gap = '<mspace width="0.17em"></mspace>'
    assert re.search(rf"ln</mi><mo>.{{1,8}}</mo></mrow>{gap}<mn>2</mn>", page)
    assert re.search(rf"max</mi><mo>.{{1,8}}</mo></mrow><mi>j</mi></msub>{gap}<msub>", page)
    assert not re.search(rf"{gap}<mo[^>]*>\(", page)
    assert re.search(rf'</mover>{gap}<mrow><mi mathvariant="normal">ln', page)


def test_numbers_are_set_to_the_right_on_the_site_and_in_print(built):
    from bs4 import BeautifulSoup

    page = BeautifulSoup((built / "html" / "sink_attn.html").read_text("utf-8"), "html.parser")
    cells = {cell.get_text() for cell in page.select("td.number")}
    assert {"1.06", "–", "wrong"} <= cells and "stage 3, D=128" not in cells
    assert "table.cell(align: right)[1.06\n" in (built / "guide.typ").read_text("utf-8")


def test_figures_and_tables_are_numbered_alike_on_the_site_and_in_print(built):
    site = "".join((built / "html" / f"{page}.html").read_text("utf-8")
                   for page in ("memory", "stage_3", "stage_9"))
    print_ = (built / "guide.typ").read_text("utf-8")
    numbers = re.findall(r'caption-number">((?:Figure|Table) \d+\.)', site)
    assert len(numbers) > 8 and all(number in print_ for number in numbers)


def test_a_chapters_pages_have_its_name_and_none_is_two_thirds_empty(
        built):
    """Nor a third, but for the last page of a chapter."""
    import io

    import typst
    from matplotlib import image

    pages = typst.compile(str(built / "guide.typ"), root=str(built), format="png", ppi=20)
    heads, ends = [], []
    for page in pages[2:]:  # after the title and the contents
        inked = image.imread(io.BytesIO(page))[:, :, :3].min(axis=(1, 2)) < 0.9
        top, bottom = (int(share * len(inked)) for share in (0.07, 0.92))
        heads.append(bool(inked[:top].any()))
        ends.append((inked[top:bottom].nonzero()[0].max() + 1) / (bottom - top))
    chapters = len(re.findall(r"^= ", (built / "guide.typ").read_text("utf-8"), re.MULTILINE))
    assert heads.count(False) == chapters
    for number, (full, last) in enumerate(zip(ends, [not head for head in heads[1:]] + [True],
                                              strict=True), 3):
        assert full > (0.34 if last else 0.65), number


def test_the_site_and_the_book_link_each_other(built):
    assert '<a href="guide.pdf">as a PDF</a>' in (built / "html" / "index.html").read_text("utf-8")
    assert (built / "html" / "guide.pdf").read_bytes() == (built / "guide.pdf").read_bytes()
    book, site = (built / "guide.typ").read_text("utf-8"), excerpts.address("Guide")
    assert f'#link("{site}")' in book if site else "html/index.html" not in book
