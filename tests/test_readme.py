"""README.md: what it shows is what there is."""

import re
from pathlib import Path

import pytest

from grader.course.stages import STAGES
from grader.report import overview
from grader.starter import ROOT, main
from tools import mask_picture

README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "grader/assignment/assignment.md", ROOT / "fast/README.md",
         ROOT / "containers/README.md", ROOT / "CONTRIBUTING.md",
         *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_no_line_is_longer_than_120_characters_and_nothing_is_left_to_fill_in():
    assert max(map(len, README.splitlines())) <= 120
    assert not re.search(r"@[A-Z]+@|TODO|\{\w+\}", README)


def test_it_is_short_and_begins_with_a_picture_a_report_and_three_commands():
    rows = README.splitlines()
    assert len(rows) <= 120
    screen = "\n".join(rows[:35])
    commands = re.findall(r"^python3? .*$", screen, re.M)
    assert "](docs/mask.svg)" in screen and "the mistake: " in screen and len(commands) == 3


def test_who_has_no_gpu_and_no_clone_finds_both_on_the_first_screen():
    screen = "\n".join(README.splitlines()[:35])
    assert "git clone ADDRESS" in screen and "https://download.pytorch.org/whl/cpu" in screen


def test_a_stage_has_one_title_everywhere():
    assignment = (ROOT / "grader/assignment/assignment.md").read_text("utf-8")
    for n, stage in STAGES.items():
        head = (ROOT / stage.filename).read_text("utf-8").partition("\n")[0]
        title = re.fullmatch(rf'"""Problem {n} -- (.*)\.', head)[1]
        short = title.partition(":")[0]
        assert f"| `{stage.filename}` | {title} |" in README
        assert f"| `{stage.filename}` | {short}{'; optional' * stage.optional} |" in assignment
        chapter = (ROOT / f"guide/text/stage_{n}.md").read_text("utf-8").partition("\n")[0]
        assert chapter.lower() == f"# stage {n}: {short}".lower()


def test_the_picture_is_the_one_its_script_draws():
    assert (ROOT / "docs/mask.svg").read_text("utf-8") == mask_picture.picture()


def test_the_first_screen_is_what_an_assignment_shows(tmp_path, monkeypatch, capsys):
    assert main([str(tmp_path / "flash")]) == 0
    said = capsys.readouterr().out.strip().replace(str(tmp_path), "/home/you")
    assert f"`{said}`" in README
    monkeypatch.chdir(tmp_path / "flash")
    shown = "\n".join(overview.first_screen(range(1, 8), Path(".")))
    assert f"```\n{shown}\n```" in README


def test_every_stage_has_its_row_and_points():
    for stage in STAGES.values():
        points = f"{stage.points}" + ", optional" * stage.optional
        assert re.search(rf"\| `{stage.filename}` \| .* \| {points} \|", README)
