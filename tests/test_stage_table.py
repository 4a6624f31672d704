"""The table of what a student writes is that of the files."""

from tools import stage_table


def test_the_page_is_the_one_the_files_give():
    page = (stage_table.ROOT / "docs" / "stages.md").read_text("utf-8")
    assert page == stage_table.page(), "python -m tools.stage_table > docs/stages.md"


def test_docstrings_comments_and_blanks_are_no_code():
    source = '"""Text."""\n\n# why\nx = 1  # code\n\n\ndef f():\n    """More."""\n    return x\n'
    assert stage_table.code_lines(source) == {4, 7, 9}
