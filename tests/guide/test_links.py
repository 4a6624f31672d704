"""Where a learner stands, the guide is named, and what is named is there."""

import re
import tomllib

import pytest

from grader.assignment.hints import HINTS_FILE, RUNGS, next_hint
from guide.excerpts import ROOT, STAGES, TEXT


def chapter(name: str) -> bool:
    """Is there one chapter "Stage 4: ...", or "Warm-ups"?"""
    return 1 == sum(page.read_text("utf-8").startswith((f"# {name}: ", f"# {name}\n"))
                    for page in TEXT.glob("*.md"))


@pytest.mark.parametrize("stage", STAGES)
def test_the_head_of_a_problem_names_its_chapter(stage):
    head = (ROOT / f"problem_{stage}.py").read_text("utf-8").split('"""')[1]
    named = re.search(r'^Guide +"(.*)" of the companion guide; README.md says where it is$', head,
                      re.MULTILINE)
    assert named[1] == f"Stage {stage}" and chapter(named[1])


@pytest.mark.parametrize("step", tomllib.loads(HINTS_FILE.read_text("utf-8")))
def test_the_last_hint_names_a_chapter(step, tmp_path):
    *others, last = [next_hint(step, state_file=tmp_path / "state") for _ in RUNGS]
    assert chapter(re.search(r'The companion guide goes on, in "(.*)"', last)[1])
    assert not any("guide" in hint.splitlines()[-1] for hint in others)


def test_the_readme_and_the_page_for_instructors_say_how_it_is_built():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^guide:", makefile, re.MULTILINE) and "$(filter no,$(SOLUTIONS))" in makefile
    readme, page = ((ROOT / name).read_text("utf-8") for name in (
        "README.md", "docs/instructors.md"))
    assert "`make guide`" in readme and "`make guide SOLUTIONS=no`" in page
    assert "prints the solution of nearly every step" in " ".join(page.split())
    for text in (readme, page):
        for path in re.findall(r"`guide/_build/(\S+)`", text):
            assert path in ("html/index.html", "guide.pdf")  # what tests/guide/test_build.py finds
