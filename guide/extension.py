"""What the pages may ask for beyond Markdown.  Whatever is not there any more breaks the build.

    {step} 4.2              the solution of a step, from the problem file
    {code-of} 4 _keep       a whole function of it
    {mistake} 4 no_max      a mistake of the grader's catalogue, and what the grader says of it
    {numbers} name          a table of measured.py or worked.py
    {n}`name`               one number of measured.py
    {draw} name             a figure of figures/, light and dark, with a caption
    {exercise} 4.1          an exercise of exercises.py, its answer folded away
    {steps-of-a-walk}       the interactive page's walk; a table where there is no JavaScript
"""

import html
import json
import re
import subprocess

import pypandoc
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from guide import excerpts, exercises, figures, measured, worked

log = logging.getLogger(__name__)
TABLES = measured.TABLES | worked.TABLES


class Quoting(SphinxDirective):
    """A directive of words, which says where it stands if it cannot be answered."""

    has_content = True
    required_arguments, optional_arguments, final_argument_whitespace = 1, 0, True

    def run(self):
        try:
            return self.made(*self.arguments[0].split())
        except (LookupError, TypeError) as error:
            raise self.severe(f"{self.name} {self.arguments[0]}: {error}") from error

    def code(self, text: str, caption: str, language: str = "python") -> list[nodes.Node]:
        block = nodes.literal_block(text, text, language=language, classes=["excerpt"])
        self.env.note_dependency(__file__)
        return [nodes.paragraph("", "", nodes.literal(caption, caption), classes=["from"]), block]


class Step(Quoting):
    def made(self, number):
        path = f"problem_{number.split('.')[0]}.py"
        self.env.note_dependency(str(excerpts.ROOT / path))
        return self.code(excerpts.step(number), f"{path}, step {number}")


class Function(Quoting):
    def made(self, stage, name):
        self.env.note_dependency(str(excerpts.ROOT / f"problem_{stage}.py"))
        return self.code(excerpts.definition(stage, name), f"problem_{stage}.py, {name}")


class Mistake(Quoting):
    def made(self, stage, name):
        slip = excerpts.slip(int(stage), name)
        says = f"the mistake: {slip.mistake}." + f"\nthe rule: {slip.rule}." * bool(slip.rule)
        made = nodes.container("", classes=["mistake"])
        for kind, words, text in (("wrong", "✗ you wrote", slip.wrong),
                                  ("right", "✓ it should be", slip.right)):
            part = nodes.container("", classes=[kind])
            part += nodes.paragraph("", words, classes=["told"])
            part += nodes.literal_block(text, text, language="python")
            made += part
        made += nodes.literal_block(says, says, language="text", classes=["says"])
        return [made]


class Numbers(Quoting):
    def made(self, *name):
        table = TABLES[" ".join(name)]()
        made = nodes.table(classes=["numbers"])
        group = nodes.tgroup(cols=len(table.header))
        made += group
        for _ in table.header:
            group += nodes.colspec(colwidth=1)
        for part, rows in ((nodes.thead(), [table.header]), (nodes.tbody(), table.rows)):
            for cells in rows:
                row = nodes.row()
                for cell in cells:
                    row += nodes.entry("", nodes.paragraph("", "", *_inline(str(cell))))
                part += row
            group += part
        return [made, nodes.paragraph(table.source, table.source, classes=["source"])]


class Draw(Quoting):
    def made(self, name):
        if name not in figures.FIGURES:
            raise LookupError("want a figure of guide/figures; got none")
        figure = nodes.figure("", classes=["drawing"])
        themes = ("light", "dark") if self.env.app.builder.name == "html" else ("light",)
        alt = figures.FIGURES[name].__doc__.strip().splitlines()[0]
        for theme in themes:
            image = nodes.image(uri=f"drawn/{name}-{theme}.svg", alt=alt)
            if len(themes) == 2:
                image["classes"] = [f"only-{theme}"]
            figure += image
        caption = nodes.caption()
        self.state.nested_parse(self.content, self.content_offset, caption)
        figure += nodes.caption("", "", *caption.children[0].children)
        return [figure]


class Exercise(Quoting):
    def made(self, number):
        one = exercises.EXERCISES[number]
        made = nodes.container("", classes=["exercise"])
        asked = f"**Exercise {number}.** {one.question}\n\nCheck: " \
                f"`python -m guide.exercises {number} YOUR-ANSWER`"
        self.state.nested_parse(_lines(asked), self.content_offset, made)
        check = html.escape(json.dumps(exercises.for_the_page(number)))
        if self.env.app.builder.name == "html":
            answer = f"{exercises.shown(one.answer())}. {one.because}"
            made += nodes.raw("", f'<form class="check" data-check="{check}"></form>',
                              format="html")
            made += nodes.raw("", "<details><summary>Answer</summary>", format="html")
            self.state.nested_parse(_lines(answer), self.content_offset, made)
            made += nodes.raw("", "</details>", format="html")
        return [made]


class Answers(SphinxDirective):
    """All answers together: in the PDF nothing can be folded away."""

    def run(self):
        made = nodes.container("")
        for number, one in exercises.EXERCISES.items():
            text = f"**{number}** {exercises.shown(one.answer())}. {one.because}"
            self.state.nested_parse(_lines(text), self.content_offset, made)
        return [made]


class Walk(SphinxDirective):
    """The frames of a causal forward, to step through."""

    def run(self):
        frames = json.dumps(worked.causal_frames())
        if self.env.app.builder.name != "html":
            return []
        return [nodes.raw("", f'<div id="walk"></div><script type="application/json" '
                          f'id="walk-frames">{frames}</script>', format="html")]


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
    """`code` in a cell of a table."""
    for i, part in enumerate(text.split("`")):
        if part:
            yield nodes.literal(part, part) if i % 2 else nodes.Text(part)


def _tex(self, node):
    """Leave TeX for pandoc: build.py's for the PDF, `_with_mathml` for the site."""
    text = self.encode(node.astext())
    left, right = (r"\[", r"\]") if isinstance(node, nodes.math_block) else (r"\(", r"\)")
    self.body.append(f'<span class="tex">{left}{text}{right}</span>')
    raise nodes.SkipNode


def _with_mathml(app, page, template, context, doctree):
    """Put MathML in the place of all TeX of a page: one run of pandoc a page."""
    if app.builder.name != "html" or "body" not in context:
        return
    pattern = re.compile(r'<span class="tex">(.*?)</span>', re.DOTALL)
    found = pattern.findall(context["body"])
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
    # The TeX beside it is for programs that read formulas aloud; it doubles the page.
    made = iter(re.sub(r"<annotation.*?</annotation>", "", one, flags=re.DOTALL) for one in made)
    context["body"] = pattern.sub(lambda _: next(made), context["body"])


def setup(app):
    for name, directive in {"step": Step, "code-of": Function, "mistake": Mistake,
                            "numbers": Numbers, "draw": Draw, "exercise": Exercise,
                            "answers": Answers, "steps-of-a-walk": Walk}.items():
        app.add_directive(name, directive)
    app.add_role("n", Number())
    app.add_html_math_renderer("tex", (_tex, None), (_tex, None))
    app.config.html_math_renderer = "tex"
    app.connect("html-page-context", _with_mathml)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
