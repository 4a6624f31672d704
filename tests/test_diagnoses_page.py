"""The page of diagnoses is the table."""

from pathlib import Path

from tools import diagnoses_page

PAGE = Path(__file__).parent.parent / "docs" / "diagnoses.md"


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text("utf-8") == diagnoses_page.page(), \
        f"python -m tools.diagnoses_page > {PAGE}"
