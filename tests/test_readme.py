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
    assert "**You need no GPU.**" in " ".join(SCREEN.split())
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


def results(folder: str) -> dict:
    return json.loads((ROOT / folder / "results.json").read_text("utf-8"))


def without_small_shapes(key: str) -> dict[str, str]:
    """key: "OURS against PEERS", as benchmarks.tables.summary says it -> its three numbers."""
    line, = (line for line in tables.summary(results("benchmarks/results/h100"))
             if line.startswith(f"{key}: "))
    return re.search(r"shapes (?P<mean>[\d.]+)x, over (?P<count>\d+) workloads, slower on "
                     r"(?P<slower>\d+)$", line).groupdict()


def ms_of_a_step(key: str) -> dict[str, str]:
    """key: "ATTENTION LENGTH" -> the whole milliseconds of a training step."""
    attn, length = key.split()
    point, = (p for p in results("docs/measured/gpt_oss")["sweep"]["points"]
              if (p["attn"], p["N"]) == (attn, int(length)))
    return {"ms": f"{point['ms']:.0f}"}


BEST = "the fastest of cudnn, cudnn (frontend), fa4"


# What README says with numbers from a results file: the sentence, where to read, what to read.
@pytest.mark.parametrize("sentence, read, key", [
    ("1.45 times as fast as FlashAttention-2 (geometric mean of 7 workloads)",
     without_small_shapes, "stages against fa2"),
    ("0.74 times as fast as the fastest of cuDNN and FlashAttention-4 (12 workloads, slower on all "
     "12)",
     without_small_shapes, f"stages against {BEST}"),
    ("tuned Triton reaches 0.88 times their speed (slower on 10)",
     without_small_shapes, f"sink_attn against {BEST}"),
    ("Gluon 1.01 times (slower on 6)", without_small_shapes, f"sink_attn (Gluon) against {BEST}"),
    ("takes 220 ms.", ms_of_a_step, "flash_course 16384"),
    ("With FlexAttention it takes 254 ms", ms_of_a_step, "flex_attention 16384"),
])
def test_a_number_from_a_results_file_is_what_the_file_says(sentence, read, key):
    assert sentence in " ".join(README.split())
    numbers = read(key).values()
    assert set(re.findall(r"\b\d+(?:\.\d+)?\b", sentence.replace("FlashAttention-", "FA"))) <= {
        *numbers}, numbers


def test_the_results_of_the_first_screen_are_the_newest():
    dates = {gpu: results(f"benchmarks/results/{gpu}")["date"] for gpu in ("h100", "h200")}
    assert f"[measured {max(dates.values())}](benchmarks/results/h100/results.md)" in SCREEN
    assert dates["h100"] == max(dates.values()) and "On an H100" in SCREEN


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
