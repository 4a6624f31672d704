"""Defines what pages may use beyond Markdown.  A quotation of something gone breaks the build.

    {step} 4.2              the solution of a step, from the problem file
    {code-of} 4 _keep       a whole function of it
    {sketch} 4              pseudo-code of a stage with its steps left blank, notes beside the lines
    {kernel} 3              every kernel function of a problem file, solved: as steps are
    {algorithm} words       a numbered algorithm in a box, with these words as its name
    {mistake} 4 no_max      a mistake of the grader's catalogue, and what the grader says of it
    {numbers} name          a table of measured.py or worked.py
    {timed} name            words, and a table of measured.TIMED; nothing until it was measured
    {n}`name`               one number of measured.py
    {seen} name             lines of seen.json, as they were printed
    {draw} name             a figure of figures/, light and dark, wide and narrow, with a caption
    {exercise} 4.1          an exercise of questions.py, its answer folded away
    {open} 3                an open exercise; after === what a good answer has, folded away
    {appendix} solutions    all solved steps, in the book; {appendix} answers
    {elsewhere}             links to the other form of the guide and to the repository
    {play} mask             something to play with, from worked.played(); on the site only
    {steps-of-a-walk}       an interactive walk through a forward; a table without JavaScript
"""

import html
import json
import re
import subprocess
from itertools import product

import pypandoc
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from guide import excerpts, figures, measured, questions, seen, timed, worked

log = logging.getLogger(__name__)
TABLES = measured.TABLES | worked.TABLES


class Quoting(SphinxDirective):
    """A directive whose error says where it is."""

    has_content = True
    required_arguments, optional_arguments, final_argument_whitespace = 1, 0, True

    def run(self):
        try:
            return self.made(*self.arguments[0].split())
        except (LookupError, TypeError) as error:
            raise self.severe(f"{self.name} {self.arguments[0]}: {error}") from error

    @property
    def on_the_site(self) -> bool:
        return self.env.app.builder.name == "html"

    @property
    def solutions(self) -> bool:
        """Whether this copy of the guide has solutions; not after make guide SOLUTIONS=no."""
        return not self.env.app.tags.has("unsolved")

    def code(self, text: str, caption: str, language: str = "python") -> list[nodes.Node]:
        block = nodes.literal_block(text, text, language=language, classes=["excerpt"])
        self.env.note_dependency(__file__)
        return [nodes.paragraph("", "", nodes.literal(caption, caption), classes=["from"]), block]


class Step(Quoting):
    """A step's solution: folded on the site, in the book's appendix, or left out."""

    def made(self, number):
        path = f"problem_{number.split('.')[0]}.py"
        self.env.note_dependency(str(excerpts.ROOT / path))
        caption, text = f"{path}, step {number}", excerpts.step(number)
        if not self.solutions:
            return [_paragraph(f"{caption}: still to write", "solved")]
        if self.on_the_site:
            return _folded(f"{caption}: solved", self.code(text, "")[1:], f"step-{number}")
        return [_paragraph(f"{caption}: solved in the appendix, ", "solved", f"step-{number}")]


class Function(Quoting):
    def made(self, stage, name):
        path = f"problem_{stage}.py" if stage.isdigit() else f"guide/{stage}.py"
        self.env.note_dependency(str(excerpts.ROOT / path))
        return self.code(excerpts.definition(stage, name), f"{path}, {name}")


class Kernel(Quoting):
    """A whole kernel: folded, in the appendix or left out, like a step."""

    def made(self, stage):
        self.env.note_dependency(str(excerpts.ROOT / f"problem_{stage}.py"))
        caption = f"problem_{stage}.py, the kernel in one piece"
        if not self.solutions:
            return [_paragraph(f"{caption}: still to write", "solved")]
        if self.on_the_site:
            blocks = [self.code(text, "")[1] for _, text in excerpts.kernel(stage)]
            return _folded(f"{caption}: solved", blocks)
        return [_paragraph(f"{caption}: in the appendix, ", "solved", f"kernel-{stage}")]


class Sketch(Quoting):
    """Pseudo-code; "▢ 4.1" is a blank step, and "  # " begins a margin note."""

    def made(self, stage):
        lines = [line.split("  # ", 1) for line in self.content]
        steps = re.findall(r"▢ ([\d.]+)", "\n".join(code for code, *_ in lines))
        for number in steps:
            if number.split(".")[0] != stage or not excerpts.step(number):
                raise LookupError(f"want steps of stage {stage}; got {number}")
        if not self.on_the_site:
            wide = max(len(code.rstrip()) for code, *_ in lines) + 3
            text = "\n".join(f"{code.rstrip():{wide}}{note.strip()}" if note else code.rstrip()
                             for code, note in ((*line, "")[:2] for line in lines))
            return [nodes.literal_block(text, text, language="text", classes=["sketch"])]
        return [nodes.raw("", f'<div class="sketch">{"".join(map(self.row, lines))}</div>',
                          format="html")]

    def row(self, line) -> str:
        code, note = (html.escape(part.strip("\n")) for part in (*line, "")[:2])
        blanks = re.sub(r"▢ ([\d.]+)", self.blank, code.rstrip())
        return f'<div><code>{blanks}</code><span>{note.strip()}</span></div>'

    def blank(self, found) -> str:
        words = f"step {found[1]}"
        shown = f"```{{step}} {found[1]}\n" in self.page() and self.solutions
        return (f'<a class="blank" href="#{_id("step-" + found[1])}">{words}</a>' if shown
                else f'<span class="blank">{words}</span>')

    def page(self) -> str:
        return (excerpts.TEXT / f"{self.env.docname}.md").read_text(encoding="utf-8")


class Algorithm(Quoting):
    def made(self, *words):
        made = nodes.container("", classes=["algorithm"])
        made += nodes.rubric("", " ".join(words))
        self.state.nested_parse(self.content, self.content_offset, made)
        return [made]


class Mistake(Quoting):
    """A mistake; the right code is folded, in the appendix or left out, like a step."""

    def made(self, stage, name):
        slip = excerpts.slip(int(stage), name)
        made = nodes.container("", classes=["mistake"])
        made += _judged("wrong", slip.wrong)
        if self.solutions and self.on_the_site:
            made += _judged("right", slip.right, folded=True)
        elif self.solutions:
            made += _paragraph("✓ it should be: in the appendix, ", "solved", f"{name}-{stage}")
        says = f"the mistake: {slip.mistake}." + f"\nthe rule: {slip.rule}." * bool(slip.rule)
        made += nodes.literal_block(says, says, language="text", classes=["says"])
        return [made]


def _judged(kind, text, folded=False):
    words = {"wrong": "✗ you wrote", "right": "✓ it should be"}[kind]
    code = nodes.literal_block(text, text, language="python")
    made = nodes.container("", classes=[kind])
    made += _folded(words, [code]) if folded else [_paragraph(words, "told"), code]
    return made


def _paragraph(text, kind, label=None):
    """A small line; a label such as "step-4.2" adds its page in the book's appendix."""
    made = nodes.paragraph("", text, classes=[kind])
    if label:
        made += nodes.raw("", f'<a href="#{_id(label)}">page</a>', format="html")
    return made


def _id(label):
    return "solved-" + label.replace(".", "-").replace("_", "-")


def _folded(summary, children, name=None):
    place = f' id="{_id(name)}"' if name else ""
    start = f'<details class="solution"{place}><summary>{html.escape(summary)}</summary>'
    return [nodes.raw("", start, format="html"), *children,
            nodes.raw("", "</details>", format="html")]


class Numbers(Quoting):
    def made(self, *name):
        return [self.table(" ".join(name), TABLES[" ".join(name)]())]

    def table(self, name, table):
        made = nodes.table("", nodes.title("", table.source), classes=["numbers"])
        made["ids"] = [nodes.make_id(f"table {name}")]
        group = nodes.tgroup(cols=len(table.header))
        made += group
        for _ in table.header:
            group += nodes.colspec(colwidth=1)
        columns = [_is_of_numbers(column) for column in zip(*table.rows, strict=True)]
        for part, rows in ((nodes.thead(), [table.header]), (nodes.tbody(), table.rows)):
            for cells in rows:
                row = nodes.row()
                for cell, number in zip(cells, columns, strict=True):
                    row += nodes.entry("", nodes.paragraph("", "", *_inline(str(cell))),
                                       classes=["number"] if number else [])
                part += row
            group += part
        return made


def _is_of_numbers(cells) -> bool:
    """Whether a column is right-aligned: numbers, or words for a missing one."""
    texts = [str(cell) for cell in cells]
    numbers = [text for text in texts if re.fullmatch(r"[-−]?\d[\d.,]*(e[-+]\d+| %)?|[-−]?∞", text)]
    return bool(numbers) and set(texts) <= {*numbers, "", "–", "wrong"}


class Timed(Numbers):
    """A table that needs a GPU once (guide/timed.py); until then the page leaves it out."""

    def made(self, name):
        make = measured.TIMED[name]
        if not timed.timed().get(name):
            return []
        words = nodes.container("")
        self.state.nested_parse(self.content, self.content_offset, words)
        return [*words.children, self.table(f"timed {name}", make())]


class Seen(Quoting):
    def made(self, name):
        found = seen.seen()[name]
        lines = found[0] if isinstance(found[0], list) else found
        return self.code("\n".join(lines), f"guide/seen.json, {name}, Triton "
                         f"{seen.seen()['triton']}, {seen.seen()['date']}", "text")


class Draw(Quoting):
    def made(self, name):
        if name not in figures.FIGURES:
            raise LookupError("want a figure of guide/figures; got none")
        figure = nodes.figure("", classes=["drawing"], ids=[nodes.make_id(
            f"figure {name} {self.env.docname}")])
        alt = figures.FIGURES[name].__doc__.strip().splitlines()[0]
        for form, theme in (product(figures.WIDTHS, ("light", "dark")) if self.on_the_site
                            else [("wide", "light")]):
            image = nodes.image(uri=f"drawn/{name}-{form}-{theme}.svg", alt=alt)
            if self.on_the_site:
                image["classes"] = [f"only-{theme}", f"only-{form}"]
            figure += image
        caption = nodes.caption()
        self.state.nested_parse(self.content, self.content_offset, caption)
        figure += nodes.caption("", "", *caption.children[0].children)
        return [figure]


class Exercise(Quoting):
    def made(self, number):
        one = questions.EXERCISES[number]
        made = nodes.container("", classes=["exercise"])
        asked = f"**Exercise {number}.** {one.question}\n\nCheck: " \
                f"`python -m guide.exercises {number} YOUR-ANSWER`"
        self.state.nested_parse(_lines(asked), self.content_offset, made)
        check = html.escape(json.dumps(one.hidden(number)))
        if self.on_the_site:
            made += nodes.raw("", f'<form class="check" data-check="{check}"></form>',
                              format="html")
        if self.on_the_site and self.solutions:
            answer = nodes.container("")
            text = f"{questions.shown(one.answer())}. {one.because}"
            self.state.nested_parse(_lines(text), self.content_offset, answer)
            made += _folded("Answer", answer.children)
        return [made]


class OpenExercise(Quoting):
    def made(self, number):
        one = excerpts.open_exercises()[number]
        made = nodes.container("", classes=["exercise"])
        self.state.nested_parse(_lines(f"**{number}.** {one.question}"), self.content_offset, made)
        if self.on_the_site and self.solutions:
            answer = nodes.container("")
            self.state.nested_parse(_lines(one.answer), self.content_offset, answer)
            made += _folded("What a good answer has", answer.children)
        return [made]


class Appendix(Quoting):
    """All answers, or all solved steps, for the book, where nothing can be folded."""

    def made(self, what):
        if not self.solutions:
            words = "This copy of the guide is made without them."
            return [nodes.paragraph("", words)] if what == "answers" else []
        made = nodes.container("")
        if what == "answers":
            for number, one in questions.EXERCISES.items():
                text = f"**{number}** {questions.shown(one.answer())}. {one.because}"
                self.state.nested_parse(_lines(text), self.content_offset, made)
            return [made]
        if what == "open":
            for number, one in excerpts.open_exercises().items():
                text = f"**{number}.** {one.answer}"
                self.state.nested_parse(_lines(text), self.content_offset, made)
            return [] if self.on_the_site else [nodes.rubric("", "Open exercises"), made]
        if self.on_the_site:
            return [nodes.paragraph("", "On the site they are folded away in their chapters.")]
        for stage in excerpts.STAGES:
            page = (excerpts.TEXT / f"stage_{stage}.md").read_text(encoding="utf-8")
            made += nodes.rubric("", f"Stage {stage}")
            for number in re.findall(r"^```{step} (\S+)$", page, re.MULTILINE):
                caption, code = self.code(excerpts.step(number),
                                          f"problem_{stage}.py, step {number}")
                made += [_target(f"step-{number}", caption), code]
            if f"```{{kernel}} {stage}\n" in page:
                caption = nodes.paragraph("", f"problem_{stage}.py, the kernel in one piece",
                                          classes=["from"])
                made += _target(f"kernel-{stage}", caption)
                made += [self.code(text, "")[1] for _, text in excerpts.kernel(str(stage))]
            for name in re.findall(rf"^```{{mistake}} {stage} (\w+)$", page, re.MULTILINE):
                slip, box = excerpts.slip(stage, name), nodes.container("", classes=["mistake"])
                box += [_target(f"{name}-{stage}", None), _judged("wrong", slip.wrong),
                        _judged("right", slip.right)]
                made += box
        return [made]


def _target(label, paragraph):
    """The target of a label, at the start of a paragraph or alone."""
    place = nodes.raw("", f'<span id="{_id(label)}"></span>', format="html")
    if paragraph is None:
        return nodes.paragraph("", "", place, classes=["place"])
    paragraph.insert(0, place)
    return paragraph


class Elsewhere(SphinxDirective):
    """Links to the other form of the guide and to the repository, if addresses are known."""

    def run(self):
        def link(words, target):
            words = html.escape(words)
            return f'<a href="{html.escape(target)}">{words}</a>' if target else words

        on_the_site = self.env.app.builder.name == "html"
        place = "guide.pdf" if on_the_site else excerpts.address("Guide")
        form = link("as a PDF" if on_the_site else "as a site", place)
        made = f"Also {form}. Both are made" if place else "Made"
        source = link("the course's repository", excerpts.address("Repository"))
        return [nodes.raw("", f"<p>{made} from <code>guide/</code> of {source}.</p>",
                          format="html")]


class Walk(SphinxDirective):
    """A causal forward to step through."""

    def run(self):
        frames = json.dumps(worked.causal_frames())
        if self.env.app.builder.name != "html":
            return []
        return [nodes.raw("", f'<div id="walk"></div><script type="application/json" '
                          f'id="walk-frames">{frames}</script>', format="html")]


class Play(Quoting):
    def made(self, name):
        data = json.dumps(worked.played()[name])
        if not self.on_the_site:
            return []
        script = f'<script type="application/json">{data}</script>'
        return [nodes.raw("", f'<div class="play" data-play="{name}">{script}</div>',
                          format="html")]


class Number(SphinxRole):
    def run(self):
        try:
            text = measured.value(self.text)
        except LookupError as error:
            raise ValueError(f"{{n}}`{self.text}` in {self.env.docname}: {error}") from error
        return [nodes.inline(text, text, classes=["number"])], []


def _lines(text):
    from docutils.statemachine import StringList

    return StringList(text.splitlines(), "guide")


def _inline(text):
    """The nodes of a table's cell, which may hold `code`."""
    for i, part in enumerate(text.split("`")):
        if part:
            yield nodes.literal(part, part) if i % 2 else nodes.Text(part)


def _tex(self, node):
    """Keep TeX for pandoc, which build.py runs for the PDF and `_with_mathml` for the site."""
    text = self.encode(node.astext())
    if not isinstance(node, nodes.math_block):
        self.body.append(rf'<span class="tex">\({text}\)</span>')
    elif self.builder.name == "html":  # parts that a narrow page puts below each other
        parts = [text] if r"\begin" in text else re.split(r"\\qquad|\n\s*(?==)", text)
        spans = "".join(rf'<span class="tex">\[{part.strip()}\]</span>' for part in parts)
        self.body.append(f'<div class="formulas">{spans}</div>')
    else:
        self.body.append(rf'<span class="tex">\[{text}\]</span>')
    raise nodes.SkipNode


def _with_mathml(app, page, template, context, doctree):
    """Replace all TeX of a page by MathML, in one run of pandoc."""
    if app.builder.name != "html" or "body" not in context:
        return
    pattern = re.compile(r'<span class="tex">(.*?)</span>([.,;:)]*)', re.DOTALL)
    found = [tex for tex, _ in pattern.findall(context["body"])]
    if not found:
        return
    source = "".join(f"<p>{tex}</p>\n" for tex in found)
    ran = subprocess.run(
        [pypandoc.get_pandoc_path(), "-f", "html+tex_math_single_backslash", "-t", "html",
         "--mathml"], input=source, capture_output=True, text=True, check=True)
    made = re.findall(r"<p>(.*?)</p>", ran.stdout, re.DOTALL)
    if ran.stderr or len(made) != len(found) or any("<math" not in one for one in made):
        log.warning("%s: mathematics that pandoc does not read: %s", page, ran.stderr or found)
        return
    # Drop the TeX annotations, which double the size of a page.
    made = iter(re.sub(r"<annotation.*?</annotation>", "", one, flags=re.DOTALL) for one in made)
    context["body"] = pattern.sub(lambda tex: _whole(_spaced(next(made)), tex[2]), context["body"])


def _whole(mathml, sign):
    """Keep the full stop or comma after a formula on its line."""
    return f'<span class="whole">{mathml}{sign}</span>' if sign else mathml


def _spaced(mathml):
    """Restore the spaces in "m ln 2" and "c max_j s_j", which pandoc loses."""
    gap = '<mspace width="0.17em"></mspace>'
    name = r'<mrow><mi mathvariant="normal">\w+</mi><mo>(?:&#8289;|\u2061)</mo></mrow>'
    operand = r"(?=<m(?!o\b|row><mo\b))"
    for whole in (rf"(<(msub|munder)>{name}.*?</\2>){operand}",
                  rf"(?<!<msub>)(?<!<munder>)({name}){operand}"):
        mathml = re.sub(whole, rf"\1{gap}", mathml)
    before = r"(</(?:mi|mn|mover)>|<mo[^>]*>\)</mo>)"
    return re.sub(rf"{before}(?=(?:<msub>|<munder>)?{name})", rf"\1{gap}", mathml)


def _with_labels(app, page, template, context, doctree):
    """Give each cell of a table of numbers its column's name, which phones show beside it."""
    def labelled(table):
        names = re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)
        names = [html.escape(re.sub(r"<[^>]*>", "", name)).strip() for name in names]
        def row(found):
            labels = iter(names)
            return re.sub(r"<td", lambda _: f'<td data-label="{next(labels)}"', found[0])
        return re.sub(r"<tr.*?</tr>", row, table[0], flags=re.DOTALL)

    if app.builder.name == "html" and "body" in context:
        context["body"] = re.sub(r'<table class="[^"]*\bnumbers\b.*?</table>', labelled,
                                 context["body"], flags=re.DOTALL)


def setup(app):
    for name, directive in {"step": Step, "code-of": Function, "kernel": Kernel,
                            "sketch": Sketch,
                            "algorithm": Algorithm, "mistake": Mistake,
                            "numbers": Numbers, "draw": Draw, "exercise": Exercise,
                            "appendix": Appendix, "steps-of-a-walk": Walk,
                            "play": Play, "open": OpenExercise, "seen": Seen, "timed": Timed,
                            "elsewhere": Elsewhere}.items():
        app.add_directive(name, directive)
    app.add_role("n", Number())
    app.add_html_math_renderer("tex", (_tex, None), (_tex, None))
    app.config.html_math_renderer = "tex"
    app.connect("html-page-context", _with_mathml)
    app.connect("html-page-context", _with_labels)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
