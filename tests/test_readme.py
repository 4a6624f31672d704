"""README.md: what it shows is what there is."""

import json
import re
import subprocess
import sys

import pytest

from benchmarks import tables
from grader.assignment.submission import steps
from grader.course.stages import STAGES
from grader.starter import ROOT, WARM_UPS
from tools import mask_picture, stage_table

README = (ROOT / "README.md").read_text("utf-8")
PAGES = [page for place in (".", ".github", "benchmarks", "containers", "docs", "grader",
                            "sink_attn")
         for page in (ROOT / place).glob("*.md" if place == "." else "**/*.md")]


def anchors(page) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_page_and_a_heading_that_are_there(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if not target.startswith("https://"):
            path, _, heading = target.partition("#")
            found = page.parent / path if path else page
            assert found.exists() and (not heading or heading in anchors(found)), target


@pytest.mark.style
def test_no_line_is_longer_than_120_characters_and_nothing_is_left_to_fill_in():
    assert max(map(len, README.splitlines())) <= 120
    assert not re.search(r"@[A-Z]+@|TODO|\{\w+\}", README)


SCREEN = "\n".join(README.splitlines()[:40])
BLOCKS = re.findall(r"^```\n(.*?)^```$", README, re.S | re.M)


def test_it_is_short_and_its_first_screen_has_a_report_figures_and_five_commands():
    assert len(README.splitlines()) <= 130
    report, commands = BLOCKS
    assert report in SCREEN and "\n✗ step 6.8: problem_6.py:156: the " in report
    assert "**You need no GPU.**" in SCREEN
    assert commands in SCREEN and commands.startswith("git clone ADDRESS")
    assert len(commands.splitlines()) == 5 and "https://download.pytorch.org/whl/cpu" in commands


@pytest.mark.interpreter
def test_the_report_of_the_first_screen_is_what_the_grader_prints(tmp_path):
    solved = (ROOT / "problem_6.py").read_text("utf-8")
    assert solved.count("(age < window_size)") == 1
    (tmp_path / "problem_6.py").write_text(
        solved.replace("(age < window_size)", "(age <= window_size)"))
    ran = subprocess.run([sys.executable, "autograder.py", "--p6", "--quick", "--submission",
                          str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    command, *shown = BLOCKS[0].splitlines()
    assert command == "$ python autograder.py --p6 --quick" and shown[0].startswith("steps  ")
    said = [line.rstrip() for line in ran.stdout.splitlines()]
    # The line is searched for; where that takes over a second, the step is shown without it.
    with_line = "\n".join(shown)
    assert any(report in "\n".join(said) for report in (
        with_line, with_line.replace("problem_6.py:156: ", ""))), ran.stdout


def test_the_lines_that_a_student_writes_are_counted_so():
    new = [int(stage_table.row(number).split("|")[2]) for number in STAGES]
    assert f"You write {sum(new)} lines of code, {sum(new[:7])} of them in" in README
    first, *_ = steps((ROOT / WARM_UPS).read_text("utf-8"))
    assert first.last_line - first.first_line - 1 == 3
    assert "the first exercise: three lines" in SCREEN


def test_the_speed_of_the_first_screen_is_that_of_the_results():
    results = json.loads((ROOT / "benchmarks/results/h200/results.json").read_text("utf-8"))
    means = re.findall(r"^(\w+) against (.*): .* geometric mean (.*)x, over (\d+) workloads$",
                       "\n".join(tables.summary(results)), re.M)
    found = {(own, other): (mean, count) for own, other, mean, count in means}
    screen = " ".join(SCREEN.split())
    best = "the faster of cudnn, fa4"
    for own, other, words in (
            ("stages", "fa2",
             "{} times the speed of FlashAttention-2 (geometric mean of {} workloads)"),
            ("stages", best, "{} times that of the faster of cuDNN and FlashAttention-4 ({} "),
            ("sink_attn", best, "reaches {} times that speed")):
        assert words.format(*found[own, other]) in screen
    assert "On an H200" in screen and f"[measured {results['date']}]" in screen


def test_a_stage_has_one_title_everywhere():
    assignment = (ROOT / "grader/assignment/assignment.md").read_text("utf-8")
    for n, stage in STAGES.items():
        head = (ROOT / stage.filename).read_text("utf-8").partition("\n")[0]
        title = re.fullmatch(rf'"""Problem {n} -- (.*)\.', head)[1]
        short = title.partition(":")[0]
        assert stage.title == short
        assert f"| `{stage.filename}` | {title} |" in README
        assert f"| `{stage.filename}` | {short}{'; optional' * stage.optional} |" in assignment
        chapter = (ROOT / f"guide/text/stage_{n}.md").read_text("utf-8").partition("\n")[0]
        assert chapter.lower() == f"# stage {n}: {short}".lower()


def test_the_picture_is_the_one_its_script_draws():
    assert (ROOT / "docs/mask.svg").read_text("utf-8") == mask_picture.picture()


def test_every_stage_has_its_row_and_points():
    for stage in STAGES.values():
        points = f"{stage.points}" + ", optional" * stage.optional
        assert re.search(rf"\| `{stage.filename}` \| .* \| {points} \|", README)
