"""README.md: what it shows is what there is."""

import json
import re
import statistics

import pytest

from benchmarks import tables
from grader.assignment.submission import steps
from grader.course.stages import STAGES
from grader.starter import ROOT, WARM_UPS
from tests.commands import grader
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
def test_nothing_is_left_to_fill_in():
    assert not re.search(r"@[A-Z]+@|TODO|\{\w+\}", README)


@pytest.mark.parametrize("page", [
    page for page in PAGES if not {"benchmarks", "measured"} & {*page.relative_to(ROOT).parts}
], ids=lambda page: page.relative_to(ROOT).as_posix())
@pytest.mark.style
def test_no_line_of_a_page_is_longer_than_120_characters(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.S | re.M)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


SCREEN = "\n".join(README.splitlines()[:40])
BLOCKS = re.findall(r"^```\n(.*?)^```$", README, re.S | re.M)


def test_its_first_screen_has_a_report_figures_and_five_commands():
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
    ran = grader("--p6", "--quick", "--submission", tmp_path)
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
    ("0.74 times as fast as cuDNN or FlashAttention-4, whichever is faster (12 workloads, slower "
     "on all 12)",
     without_small_shapes, f"stages against {BEST}"),
    ("tuned Triton reaches 0.88 times that speed (slower on 10)",
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


LADDER = (ROOT / "sink_attn/README.md").read_text("utf-8")
PEERS = {"FA-2": "fa2", "FA-4": "fa4", "cuDNN": "cudnn", "cuDNN (frontend)": "cudnn_fe",
         "Flex": "flex", "tutorial": "tutorial"}
ROWS = {"3: B=4, 16 heads, N=4096, D=128": "stage 3, D=128, forward",
        "4: B=4, 32 heads, N=4096, D=64, causal": "stage 4, D=64, forward",
        "5: Llama-3, B=2, 32/8 heads, N=8192, D=128": "stage 5, Llama-3, forward",
        "7: streaming, 32/8 heads, N=16384, W=4096, 4 sinks": "stage 7, streaming, forward",
        "9: GPT-OSS, 64/8 heads, N=8192, D=64, W=128, logits": "stage 9, GPT-OSS window, forward",
        "8: Llama-3, backward": "stage 8, Llama-3, backward",
        "9: streaming, backward": "stage 9, streaming, backward"}


def times(gpu: str, label: str) -> dict[str, str]:
    """Name -> ms of every right answer, with three digits and at most three decimals.

    "" -> the best peer's, and its name.
    """
    record, = (r for r in results(f"benchmarks/results/{gpu}")["records"] if r["label"] == label)
    found = {name: tables.digits(ms) if ms >= 0.1 else f"{ms:.3f}"
             for name, ms in tables.ranked(record).items()}
    best = tables.best_peer(record)
    name, = (words for words, peer in PEERS.items() if peer == best)
    return found | {"": f"{found[best]} {name}"}


def table(head: str) -> list[list[str]]:
    """The rows below the line that begins with head."""
    lines = LADDER.split(f"\n{head}")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def test_the_ladder_begins_and_ends_where_the_results_say():
    rows = table("| workload | H200: stages |")
    assert [row[0] for row in rows] == [
        r["label"] for r in results("benchmarks/results/h200")["records"] if r["group"] == "table"]
    for label, *cells in rows:
        for gpu, shown in (("h200", cells[:4]), ("h100", cells[4:])):
            found = times(gpu, label)
            assert shown == [found.get(n, "-") for n in ("stages", "fast", "gluon", "")], label


def test_the_ladder_compares_with_other_kernels_as_the_results_say():
    rows = table("| workload | stages | Triton | Gluon | FA-2 |")
    assert [row[0] for row in rows] == [*ROWS]
    for row, *shown in rows:
        found = times("h200", ROWS[row])
        assert shown == [found.get(n, "-") for n in (
            "stages", "fast", "gluon", "fa2", "cudnn", "flex", "fa4", "tutorial")], row


def test_the_ladder_says_how_the_better_kernel_compares_on_the_h100():
    ratios = {r["label"]: max(tables.best_ratio(r, "fast"), tables.best_ratio(r, "gluon") or 0)
              for r in results("benchmarks/results/h100")["records"] if r["group"] == "table"}
    large = [ratio for label, ratio in ratios.items() if "original" not in label]
    slower = [f"({ratio:.2f})".replace("0.", ".") for ratio in ratios.values() if ratio < 1]
    text = " ".join(LADDER.split())
    said, = re.findall(r"On the H100 the better of .*? It is slower on six .*?\. [A-Z]", text)
    assert f"is {statistics.geometric_mean(large):.2f} times as fast" in said
    assert f"of the {len(large)} workloads" in said and f"over all {len(ratios)})" in said
    assert f"{statistics.geometric_mean(ratios.values()):.2f} over all" in said
    assert sorted(re.findall(r"\(\.\d\d\)", said)) == sorted(slower) and len(slower) == 6


def rounded(shown: str, value: float) -> bool:
    """Whether a number of a text is this one, rounded to its digits."""
    decimals = len(shown.partition(".")[2])
    return abs(float(shown.replace(",", "")) - value) <= 0.5001 * 10**-decimals


@pytest.mark.parametrize("folder, head, columns", [
    ("gpt_oss", "| N | ours | FlexAttention | eager |",
     [("sweep", "flash_course"), ("sweep", "flex_attention"), ("sweep", "eager")]),
    ("gpt_oss_h100", "| N | ours | FlashAttention-4 | packed: ours | packed: FlashAttention-4 |",
     [("sweep", "flash_course"), ("sweep", "flash_attention_4"), ("packed", "flash_course"),
      ("packed", "flash_attention_4")]),
])
def test_a_training_step_takes_what_the_page_says(folder, head, columns):
    page, run = (ROOT / "docs/gpt_oss.md").read_text("utf-8"), results(f"docs/measured/{folder}")
    rows = re.findall(r"^\| (\d+)k \| (.*) \|$", page.split(head)[1].split("\n\n")[0], re.M)
    assert [int(N) for N, _ in rows] == [4, 8, 16, 32, 64]
    for N, cells in rows:
        for cell, (part, attn) in zip(cells.split(" | "), columns, strict=True):
            point, = [p for p in run[part]["points"]
                      if (p["attn"], p["N"]) == (attn, 1024 * int(N))] or [{}]
            shown = re.findall(r"[\d.]+", cell)
            assert bool(shown) == ("ms" in point), (N, attn)
            for number, key in zip(shown, ("ms", "peak_gib"), strict=False):
                assert rounded(number, point[key]), (N, attn, key)


def test_the_results_of_the_first_screen_are_the_newest():
    dates = {gpu: results(f"benchmarks/results/{gpu}")["date"] for gpu in ("h100", "h200")}
    assert f"[Measured {max(dates.values())}](benchmarks/results/h100/results.md)" in SCREEN
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
