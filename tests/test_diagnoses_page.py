"""The page of diagnoses is the table, and ids are unique."""

from pathlib import Path

from grader.naming.mistakes import TABLE
from tools import diagnoses_page

PAGE = Path(__file__).parent.parent / "docs" / "diagnoses.md"


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text("utf-8") == diagnoses_page.page(), \
        f"python -m tools.diagnoses_page > {PAGE}"


def test_ids_are_unique_within_a_stage():
    for stage in range(1, 10):
        ids = [m.id for m in TABLE if stage in m.stages]
        assert len(ids) == len(set(ids))
