"""The guide's pages quote only what is there, and every measured number in them is computed."""

import ast
import re

import pytest

from guide import excerpts, exercises, measured, questions, worked

TEXT = excerpts.ROOT / "guide" / "text"
PAGES = sorted(TEXT.glob("*.md"))
TABLES = measured.TABLES | worked.TABLES
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def read(page) -> str:
    return page.read_text(encoding="utf-8")


def asked(name: str) -> list[tuple[str, str]]:
    """(page, argument) of every directive of this name."""
    return [(page.name, found) for page in PAGES
            for found in re.findall(rf"^```{{{name}}} *(.*)$", read(page), re.MULTILINE)]


def prose(page) -> str:
    """A page, captions too, without code, directives, formulas and roles: what an author typed."""
    text = FENCE.sub(lambda m: m[2] if m[1].startswith(("{draw}", "{timed}")) else "", read(page))
    for pattern in (r"\$\$.*?\$\$", r"\$[^$\n]+\$", r"\{n\}`[^`]*`", r"`[^`]*`"):
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return text


def names_of_figures() -> set[str]:
    """Without importing matplotlib: the public functions of the drawing files."""
    folder = excerpts.ROOT / "guide" / "figures"
    return {node.name.replace("_", "-") for name in ("diagrams", "masks", "plots")
            for node in ast.parse((folder / f"{name}.py").read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


@pytest.mark.parametrize("page, number", asked("step"))
def test_a_step_that_a_page_quotes_is_in_its_file(page, number):
    assert excerpts.step(number)


@pytest.mark.parametrize("page, argument", asked("code-of"))
def test_a_function_that_a_page_quotes_is_whole(page, argument):
    ast.parse(excerpts.definition(*argument.split()))


def test_a_step_or_function_that_is_gone_is_an_error():
    with pytest.raises(excerpts.Missing, match="want a step 4.99 in problem_4.py"):
        excerpts.step("4.99")
    with pytest.raises(excerpts.Missing, match="want a function or class _gone"):
        excerpts.definition("4", "_gone")
    with pytest.raises(excerpts.Missing, match="want a mutant gone of stage 4"):
        excerpts.slip(4, "gone")


def test_a_kernel_in_one_piece_is_the_file_s_without_its_marks():
    names = [name for name, _ in excerpts.kernel("3")]
    text = "\n".join(text for _, text in excerpts.kernel("3"))
    source = (excerpts.ROOT / "problem_3.py").read_text(encoding="utf-8")
    assert names == ["_fwd_kernel", "_attend", "_keep", "_head", "_load", "_store"]
    assert "SOLUTION" not in text and "Step 3" not in text
    whole = {node.name: ast.dump(node) for node in ast.parse(source).body
             if isinstance(node, ast.FunctionDef)}
    shown = {node.name: ast.dump(node) for node in ast.parse(text).body}
    assert shown == {name: whole[name] for name in names}


def test_step_8_1_is_not_the_start_of_step_8_10():
    assert excerpts.step("8.1") != excerpts.step("8.10")


def parsed(code: str) -> ast.Module:
    """Statements; the head of a loop gets a body."""
    return ast.parse(code + " pass" * code.endswith(":"))


@pytest.mark.parametrize("page, argument", asked("mistake"))
def test_a_mistake_is_in_the_catalogue_and_is_shown_in_whole_statements(page, argument):
    stage, name = argument.split()
    slip = excerpts.slip(int(stage), name)
    assert slip.mistake and page == f"stage_{stage}.md"
    assert ast.dump(parsed(slip.wrong)) != ast.dump(parsed(slip.right))
    file = excerpts.ROOT / f"problem_{stage}.py"
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    shown = [line.strip() for line in slip.right.splitlines()]
    assert any(lines[i : i + len(shown)] == shown for i in range(len(lines)))


def test_a_statement_that_a_mistake_touches_in_part_is_shown_whole():
    slip = excerpts.slip(3, "no_log2e")
    assert slip.right.splitlines()[0].startswith("acc, l_i, m_i = _attend(acc, l_i, m_i, q,")
    assert slip.right.replace("scale * LOG2E", "scale") == slip.wrong


@pytest.mark.parametrize("page, name", asked("numbers"))
def test_a_table_has_rows_as_wide_as_its_head(page, name):
    table = TABLES[name]()
    assert table.rows and all(len(row) == len(table.header) for row in table.rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.style
def test_a_sentence_stands_before_every_table(page):
    blocks = re.split(r"\n\n+", read(page))
    for before, block in zip(blocks, blocks[1:], strict=False):
        if block.startswith(("```{numbers}", "|")):
            assert not before.startswith(("#", "```", "|")), block


def test_every_number_asked_for_is_measured():
    roles = [text for page in PAGES for text in re.findall(r"\{n\}`([^`]*)`", read(page))]
    assert roles
    for text in roles:
        assert measured.value(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.style
def test_no_measured_number_is_typed(page):
    units = r"\d[\d.,]* ?(ms|us|µs|s|TFLOP/s|GFLOP|TB/s|GB|MB|MiB|GiB|KiB|%)(?![\w/])"
    assert not re.search(units, prose(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_files_that_are_there(page):
    for target in re.findall(r"\]\(([^)#\s]+)", read(page)):
        assert target.startswith("https://") or (TEXT / target).is_file(), target


def test_every_page_is_in_the_table_of_contents():
    listed = [line for argument, body in FENCE.findall(read(TEXT / "index.md"))
              if argument == "{toctree}" for line in body.split() if not line.startswith(":")]
    pages = {page.stem for page in PAGES} - {"index"}
    assert pages == {line for line in listed if line in pages} and len(set(listed)) >= len(pages)


def test_every_figure_and_exercise_is_on_a_page_and_none_is_missing():
    assert {name for _, name in asked("draw")} == names_of_figures()
    assert sorted(number for _, number in asked("exercise")) == sorted(questions.EXERCISES)


def reading_order() -> list[str]:
    """Pages after the first, as the table of contents has them."""
    return [line for argument, body in FENCE.findall(read(TEXT / "index.md"))
            if argument == "{toctree}" for line in body.split() if (TEXT / f"{line}.md").is_file()]


@pytest.mark.style
def test_a_term_is_explained_before_it_is_used():
    order, terms = reading_order(), re.findall(r"^\| (.+?) \| \[.*?\]\((\w+)\.md\)",
                                               read(TEXT / "terms.md"), re.MULTILINE)
    assert terms
    for names, page in terms:
        for name in names.removesuffix(" (tiles)").split(", "):
            explained = prose(TEXT / f"{page}.md")
            assert re.search(rf"\*\*{re.escape(name)}", explained, re.IGNORECASE), (name, page)
            for earlier in order[: order.index(page)]:
                used = re.search(rf"\b{re.escape(name)}s?\b", prose(TEXT / f"{earlier}.md"))
                assert not used, f"{name} is used in {earlier}.md, explained in {page}.md"


def test_the_sample_of_the_first_page_is_what_the_command_prints():
    number, *numbers = re.search(r"guide\.exercises (.*)", read(TEXT / "index.md"))[1].split()
    right, line = exercises.judge(number, tuple(map(float, numbers)))
    assert not right and line in read(TEXT / "index.md")


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem.startswith("stage_")],
                         ids=lambda page: page.name)
@pytest.mark.style
def test_a_stage_has_all_its_parts_and_five_learnings(page):
    parts = re.findall(r"^```{(\w+)}", read(page), re.MULTILINE)
    assert {"sketch", "step", "mistake", "numbers", "exercise"} <= set(parts)
    assert parts.index("sketch") < parts.index("step") < parts.index("mistake")
    heads = re.findall(r"^## (.*)$", read(page), re.MULTILINE)
    assert heads[-2:] == ["Exercises", "Key learnings"] and "What goes wrong" in heads
    assert re.findall(r"^(\d)\. ", read(page).split("## Key learnings")[1], re.MULTILINE) == [
        "1", "2", "3", "4", "5"]


GENERIC = {"The question", "The picture", "The mathematics", "A worked example", "The idea",
           "How the kernel says it", "How the code says it", "What it costs"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.style
def test_a_heading_says_what_is_found_below_it(page):
    assert not GENERIC & set(re.findall(r"^#+ (.*)$", read(page), re.MULTILINE))


@pytest.mark.parametrize("page, stage", asked("sketch"))
def test_a_sketch_has_steps_of_its_stage_and_no_line_of_a_solution(page, stage):
    body, = re.findall(rf"^```{{sketch}} {stage}\n(.*?)^```$", read(TEXT / page),
                       re.DOTALL | re.MULTILINE)
    steps = re.findall(r"▢ ([\d.]+)", body)
    assert len(steps) >= 1 and page == f"stage_{stage}.md"
    solved = {line.strip() for step in steps for line in excerpts.step(step).splitlines()}
    assert not solved & {line.split("  # ")[0].strip() for line in body.splitlines()}


def test_ten_open_exercises_of_three_kinds_say_what_a_good_answer_has():
    text, found = read(TEXT / "open.md"), excerpts.open_exercises()
    assert list(found) == [str(i) for i in range(1, 11)] == re.findall(
        r"^```{open} (\d+)$", text, re.MULTILINE)
    assert all(len(one.question) > 80 < len(one.answer) for one in found.values())
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Derive", "Predict, then measure", "Change a kernel"]
