"""python -m guide.build: makes the site guide/_build/html and the book guide/_build/guide.pdf.

Sphinx reads text/ twice: for the site, and as a single page, which pandoc turns into Typst.
Nothing is fetched from the network, neither now nor when the guide is read.
"""

import argparse
import datetime
import html
import os
import re
import shutil
import subprocess
import sys
import time
import unicodedata
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from guide.colours import THEMES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FONT = "STIXTwoMath-Regular.ttf"
# Letter -> the italic letter that a browser shows in a formula.  Some Greek variants come after the
# letters themselves in Unicode, and the italic h is among the units of physics.
ITALIC = {unicodedata.normalize("NFKC", chr(code)): chr(code)
          for code in (*reversed(range(0x1D6E2, 0x1D71C)), *range(0x1D434, 0x1D468), 0x210E)}


def sphinx(builder: str, into: Path, *options: str) -> Path:
    """Run Sphinx, with warnings as errors.  -> its output folder."""
    out = into / builder
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder, "-c",
               str(HERE), "-d", str(into / f"{builder}.read"), *options,
               str(HERE / "text"), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    return out


def draw() -> None:
    """Draw all figures into text/drawn, where Sphinx looks for them."""
    from guide.figures import FIGURES, draw_all

    folder = HERE / "text" / "drawn"
    shutil.rmtree(folder, ignore_errors=True)
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(draw_all, [folder] * len(FIGURES), [[name] for name in FIGURES]))


def characters(formula: str) -> set[str]:
    """The characters that a browser draws for this MathML, without spaces: a single letter in <mi>
    becomes italic, and the root sign is in no text."""
    drawn = set(html.unescape(re.sub(r"<[^>]*>", "", formula)))
    drawn |= {ITALIC[letter] for letter in re.findall(r"<mi>(.)</mi>", formula) if letter in ITALIC}
    drawn |= {"√"} if re.search("<(msqrt|mroot)", formula) else set()
    return {sign for sign in drawn if unicodedata.category(sign) not in ("Cc", "Cf", "Zs")}


def bundle_font(site: Path) -> None:
    """Put the formulas' font beside the pages, cut down to the characters they use.

    Raises SystemExit if the font lacks one, which a browser would leave out or take from elsewhere.
    """
    import ziamath
    from fontTools import subset

    used = {}  # character -> a page that shows it
    for page in sorted(site.rglob("*.html")):
        for formula in re.findall(r"<math.*?</math>", page.read_text("utf-8"), re.DOTALL):
            used |= dict.fromkeys(characters(formula), page.name)
    options = subset.Options(layout_features=["*"], notdef_outline=True)
    source = Path(ziamath.__file__).parent / "fonts" / FONT
    font = subset.load_font(str(source), options)
    cut = subset.Subsetter(options)
    cut.populate(text="".join(used))
    cut.subset(font)
    there = font.getBestCmap()
    if missing := [f"{sign} in {page}" for sign, page in used.items() if ord(sign) not in there]:
        raise SystemExit(f"want every character of the formulas in {FONT}; it lacks "
                         + ", ".join(missing))
    subset.save_font(font, str(site / "_static" / FONT), options)


def give_headings_their_level(site: Path) -> None:
    """Add the level that Sphinx leaves out for captions of tables of contents."""
    for page in site.rglob("*.html"):
        page.write_text(page.read_text("utf-8").replace(
            ' role="heading">', ' role="heading" aria-level="2">'), "utf-8")


def refuse_what_is_fetched(site: Path) -> None:
    """Raise if a page or a style loads anything from outside of the site."""
    outside = re.compile(r"""<(?:script|link|img)[^>]*(?:src|href)=["'](?:https?:)?//[^"']*"""
                         r"""|(?:url\(|@import)\s*["']?(?:https?:)?//[^"')]*""")
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        if found := outside.search(file.read_text("utf-8")):
            raise SystemExit(f"want nothing from outside; got {found[0]} in {file}")


def book(page: Path) -> str:
    """Sphinx's single page, as HTML that pandoc reads without loss."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page.read_text("utf-8"), "html.parser").find("div", role="main")
    for extra in soup.select("a.headerlink, script, colgroup"):
        extra.decompose()
    for code in soup.select("code.docutils"):  # Sphinx makes a span of every word
        words = soup.new_tag("code")
        words.string = code.get_text()
        code.replace_with(words)
    for span in soup.select("span.tex"):
        span.unwrap()
    for paragraph in soup.select("p.source, p.from, p.told, p.solved, p.place, p.rubric"):
        paragraph.wrap(soup.new_tag("div", attrs={"class": paragraph["class"][0]}))
    seen = set()
    for section in soup.select("section"):
        heading = section.find(re.compile("^h[1-6]$"))
        if section["id"] not in seen:  # ids such as key-learnings repeat: the first keeps it
            heading["id"] = section["id"]
        if seen:  # chapters are one level below the first page
            heading.name = f"h{int(heading.name[1]) - 1}"
        seen.add(section["id"])
        section.unwrap()
    for block in soup.select("div.highlight"):
        outer = block.parent
        language = next((name[10:] for name in outer["class"] if name.startswith("highlight-")), "")
        pre = soup.new_tag("pre", attrs={"class": {"python": "python", "diff": "diff"}.get(
            language, "text")})
        code = soup.new_tag("code")
        code.string = block.get_text().rstrip("\n")
        pre.append(code)
        outer.replace_with(pre)
    for cell in soup.select("td.number, th.number"):
        cell["style"] = "text-align: right"
    for image in soup.select("img"):
        image["src"] = os.path.relpath(page.parent / image["src"], page.parent.parent)
    return str(soup)


def about() -> dict[str, str]:
    """Author, version, licence and date, for the title page."""
    said = {key: value.strip('"') for key, value in re.findall(
        r"^[ -]*(name|version|license): (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"),
        re.MULTILINE)}
    return {"author": said["name"], "version": said["version"], "licence": said["license"],
            "date": str(datetime.date.today())}


def pdf(folder: Path) -> Path:
    import pypandoc
    import typst

    source = folder.parent / "guide.typ"
    pypandoc.convert_text(
        book(folder / "index.html"), "typst", format="html+tex_math_single_backslash",
        outputfile=str(source),
        extra_args=["--standalone", f"--template={HERE / 'book.typ'}",
                    f"--lua-filter={HERE / 'book.lua'}", "--fail-if-warnings", "--wrap=none",
                    *(f"--variable={name}:{value}" for name, value in (
                        THEMES["light"] | about()).items())])
    target = folder.parent / "guide.pdf"
    typst.compile(str(source), output=str(target), root=str(folder.parent))
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("site", "pdf"), help="one of the two forms")
    parser.add_argument("--no-solutions", action="store_true",
                        help="without solved steps and answers, for a class")
    parser.add_argument("--out", type=Path, default=HERE / "_build",
                        help="a folder that is not there yet")
    options = parser.parse_args()
    out, start = options.out.resolve(), time.monotonic()
    if out == HERE / "_build":
        shutil.rmtree(out, ignore_errors=True)
    elif out.exists():
        parser.error(f"want an --out that is not there yet; got {out}")
    out.mkdir(parents=True)
    draw()
    made, tags = [], ["-t", "unsolved"] * options.no_solutions
    if options.only != "pdf":
        site = sphinx("html", out, *tags)
        bundle_font(site)
        give_headings_their_level(site)
        refuse_what_is_fetched(site)
        made.append(site / "index.html")
    if options.only != "site":
        made.append(pdf(sphinx("singlehtml", out, "-t", "book", *tags)))
    if options.only is None:  # the site's first page links to it
        shutil.copy(made[1], site / "guide.pdf")
    print(f"{', '.join(map(str, made))}: {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
