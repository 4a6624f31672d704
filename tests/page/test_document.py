"""The page says what the terminal says, and nothing of a submission becomes markup."""

import html.parser
import re
from dataclasses import replace

import numpy as np
import pytest

from grader.assignment import submission
from grader.course.calls import Access, Launch
from grader.course.stages import STAGES
from grader.judge.pictures import turns
from grader.page import pictures
from grader.page.document import Shown, document
from grader.report.results import Check, StageResult, StepCheck
from grader.step_checks import evidence
from tests.guide.test_in_a_browser import FRAME, WIDTHS, left_by

VOID = {"meta", "br", "hr", "img", "input"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Tree(html.parser.HTMLParser):
    """All elements, each closed in its turn."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.all, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.all)


SOURCE = '''"""{evil}"""
def keep(query, key, window_size):
    # Step 6.8 -- The window.
    # BEGIN SOLUTION 6.8
    age = query - key  # {evil}
    keep = (age >= 0) & (age <= window_size)
    # END SOLUTION 6.8
    return keep
'''
STEP = StepCheck(
    "6.8", "wrong", "window-too-wide", "queries 32-47", ("Query 39 sees key 32.",), says="the "
    "window is one key too wide", rule="query i sees W keys", place="problem_6.py:6",
    change="`age <= window_size`. The comparison operator is wrong.", evidence={"tables": [
        {"name": "l_i", "role": "got", "rows": [4, 5], "columns": [0, 1],
         "cells": [["1.5", "nan"], ["-inf", "2"]], "wrong": [[0, 1], [0, 0]]}]}).as_dict()


def shown(tmp_path, steps=(), stage=6, **changes) -> Shown:
    name = f"problem_{stage}.py"
    (tmp_path / name).write_text(SOURCE.replace("{evil}", EVIL.replace('"', "")), "utf-8")
    result = StageResult(stage, STAGES[stage].title, STAGES[stage].points, "wrong",
                         steps=list(steps))
    return Shown(STAGES[stage], replace(result, **changes),
                 submission.read(tmp_path, name, "keep"))


def test_a_red_step_shows_its_line_its_numbers_its_mistake_and_its_rule(tmp_path):
    text = document([shown(tmp_path, [STEP])], (5, 60))
    Tree(text)
    assert "<title>6.8 is red</title>" in text
    assert ('<span class="row here"><i>6</i>keep = (age &gt;= 0) &amp; (<mark>age &lt;= '
            "window_size</mark>)</span>") in text
    assert "<dt>Mistake</dt><dd>the window is one key too wide.</dd>" in text
    assert "<dt>Rule</dt><dd>query i sees W keys.</dd>" in text
    assert '<td class="wrong">nan<span class="unseen"> wrong</span></td>' in text
    assert "python autograder.py --hint 6.8" in text
    assert '<progress id="course" max="60" value="5">' in text
    assert text.index("<b>got</b> l_i") > text.index("It was run on its own, with queries 32-47.")


@pytest.mark.parametrize("points, green", [(50, True), (35, False)])
def test_beside_a_red_step_only_all_points_make_the_outcome_green(tmp_path, points,
                                                                                green):
    text = document([shown(tmp_path, [STEP], outcome="pass", points=points, max_points=50)])
    assert ('class="chip good">passed' in text) == green
    assert ('class="chip bad">not right yet' in text) == (not green)



def test_a_red_page_opens_only_the_pictures_that_show_a_mistake(tmp_path):
    drawn = [pictures.Picture("The mask", "All weights are right.", ()),
             pictures.Picture("The loop over tiles", "Look at the 2×.", (), (), True)]
    tree = document([shown(tmp_path, [STEP], pictures=drawn)])
    Tree(tree)
    assert "<summary>Other pictures: the mask</summary>" in tree
    assert (tree.index("Look at the 2×.") < tree.index("<summary>Other pictures")
            < tree.index("All weights are right."))
    right = document([shown(tmp_path, [STEP | {"light": "right"}], outcome="pass", pictures=drawn)])
    assert "<summary>Other pictures" not in right and "All weights are right." in right


def test_numbers_are_folded_only_where_the_mistake_is_named(tmp_path):
    folded = "<summary>In numbers: given, expected, got</summary>"
    assert folded in document([shown(tmp_path, [STEP])])
    unnamed = document([shown(tmp_path, [STEP | {"says": "", "change": "", "rule": ""}])])
    assert folded not in unnamed and "<b>got</b> l_i" in unnamed


@pytest.mark.parametrize("following, said, typed", [
    ("fix step 6.8, then run python autograder.py --p6 --watch\n      more: python autograder.py "
     "--step 6.8, or --hint 6.8", ["Fix step 6.8, then run"],
     ["python autograder.py --p6 --watch"]),
    ("python autograder.py --p6   (2 of 9 points are missing)\n      or go on: python -m "
     "grader.carry 7   (copies your earlier steps into it)",
     ["(2 of 9 points are missing)", "Or go on: (copies your earlier steps into it)"],
     ["python autograder.py --p6", "python -m grader.carry 7"]),
    ("nothing: that was the last problem.", ["Nothing: that was the last problem."], []),
    ("fix step 6.8 and save", ["Fix step 6.8 and save"], [])])
def test_what_to_do_next_stands_above_the_pictures_its_command_in_a_box(
        tmp_path, following, said, typed):
    one = shown(tmp_path, [STEP], pictures=[pictures.Picture("The mask", "", (), (), True)])
    one.next = following
    text = document([one])
    Tree(text)
    assert text.index("</article>") < text.index("<h2>Next</h2>") < text.index("<h2>The mask</h2>")
    article = text[text.index("<h2>Next</h2>"):].partition("</article>")[0]
    assert [" ".join(one.split()) for one in re.findall("<p>(.*?)</p>", article)] == said
    assert re.findall('<pre class="next">(.*?)</pre>', article) == typed


def test_a_red_step_is_not_called_a_crash(tmp_path):
    text = document([shown(tmp_path, [STEP], outcome="crashed")])
    assert "> crashed<" not in text and '<span class="chip bad">not right yet</span>' in text


def test_nothing_of_a_submission_becomes_markup(tmp_path):
    """A name, a docstring, what was raised, printed or returned, a step's words."""
    folder = tmp_path / "<b>&\"'"
    folder.mkdir()
    step = {**STEP, "id": EVIL, "given": EVIL, "seen": [EVIL, f"`{EVIL}`"], "says": EVIL,
            "rule": EVIL, "place": f"problem_6.py:6{EVIL}", "change": f"`{EVIL}` {EVIL}",
            "evidence": {"tables": [{**STEP["evidence"]["tables"][0], "name": EVIL, "role": EVIL,
                                     "cells": [[EVIL, EVIL], [EVIL, EVIL]]}]}}
    check = Check(EVIL, "standard", "crashed", EVIL, what=EVIL, place=EVIL, advice=EVIL,
                  seen=(EVIL, f"`{EVIL}`"), detail=EVIL, diagnosis={"id": "x", "step": EVIL})
    for steps in ([step], []):
        one = shown(folder, steps, checks=[check], sentence=EVIL, detail=EVIL)
        one.hints, one.next = {EVIL: [EVIL]}, EVIL
        for one.served in (False, True):
            tree = Tree(document([one], (1, 2)))
            assert tree.count("script") == 1 and tree.count("img") == 0
            assert not [name for _, attributes in tree.all for name in attributes
                        if name.startswith("on")]
            assert "".join(tree.text).count("alert(1)") > 5


def test_only_the_scripts_of_the_page_may_run(tmp_path):
    text = document([shown(tmp_path)])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src 'none'" in policy and re.search(r"script-src 'sha256-[\w+/]+='", policy)
    assert "unsafe-inline'; script" in policy and "unsafe-eval" not in policy
    assert not re.search(r"(src|href)=\"?(https?:)?//", text)


@pytest.mark.parametrize("outcome, sentence, said", [
    ("missing", "there is no problem_6.py", "There is no problem_6.py"),
    ("crashed", "line 3: invalid syntax", "Line 3: invalid syntax"),
    ("timeout", "a call did not end", "A call did not end"),
    ("grader_fault", "the grader itself failed", "The grader itself failed"),
    ("skipped", "Triton is not installed", "Triton is not installed")])
def test_a_stage_that_ended_early_says_why(tmp_path, outcome, sentence, said):
    text = document([shown(tmp_path, outcome=outcome, sentence=sentence)])
    Tree(text)
    assert f'<p class="lead">{said}</p>' in text


def test_a_file_that_is_no_python_shows_the_line(tmp_path):
    one = shown(tmp_path, outcome="crashed", sentence="SyntaxError: unmatched ')' (problem_6.py:6)")
    (tmp_path / "problem_6.py").write_text(SOURCE.replace("window_size)\n", "window_size))\n"),
                                           "utf-8")
    one.file = submission.read(tmp_path, "problem_6.py", "keep")
    assert one.file.state == "syntax_error"
    assert '<span class="row here"><i>6</i>' in document([one])


def test_an_unfinished_file_shows_what_the_next_step_asks(tmp_path):
    one = shown(tmp_path)
    (tmp_path / "problem_6.py").write_text(re.sub(
        r"( *)age = .*\n.*\n", r'\1raise NotImplementedError("step 6.8")\n', SOURCE), "utf-8")
    one.file = submission.read(tmp_path, "problem_6.py", "keep")
    text = document([one])
    Tree(text)
    assert "Next to write: step 6.8</h2>\n<pre class=\"next\">Step 6.8 -- The window.</pre>" in text


def test_the_first_failure_is_shown_where_no_step_is_red(tmp_path):
    check = Check("standard/a", "standard", "crashed", "(L=128)", what=(
        "problem_6.py:5: NameError: name 'agee' is not defined"))
    right = {**STEP, "light": "right"}
    text = document([shown(tmp_path, [right], checks=[check])])
    Tree(text)
    assert "Standard test: crashed" in text
    assert '<span class="row here"><i>5</i>' in text


@pytest.mark.parametrize("steps, checks, named", [
    ([], [Check("a", "beyond", "wrong"), Check("b", "robust", "skipped"),
          Check("c", "robust", "crashed", diagnosis={"id": "blank-step"}),
          Check("d", "robust", "wrong")], "d"),
    ([], [Check("a", "beyond", "wrong")], None),
    ([STEP], [Check("d", "robust", "wrong")], None)])
def test_a_failure_is_of_a_test_that_counts_where_no_step_is_red(tmp_path, steps, checks, named):
    found = shown(tmp_path, steps, checks=checks).failure
    assert (found and found.name) == named


def test_a_red_step_comes_before_what_is_still_to_write(tmp_path):
    (tmp_path / "blank").mkdir()
    for steps, to_write in (([], "6.8"), ([STEP], None)):
        one = shown(tmp_path, steps)
        (tmp_path / "blank/problem_6.py").write_text(
            SOURCE.replace("    keep = (age >= 0) & (age <= window_size)\n", "").replace(
                "    age = query - key  # {evil}\n", "    pass\n"), "utf-8")
        one.file = submission.read(tmp_path / "blank", "problem_6.py", "keep")
        assert (one.to_write and one.to_write[0]) == to_write


@pytest.mark.parametrize("id, place, first, last", [
    ("", "problem_6.py:1", 1, 4),  # three lines on each side
    ("", "line 8", 5, 8), ("6.8", "problem_6.py:6", 5, 6), ("6.8", "", 5, 6), ("", "", 0, 0),
    ("", "problem_6.py:99", 0, 0)])
def test_the_lines_shown_are_those_of_the_step_or_around_the_place(tmp_path, id, place, first,
                                                                   last):
    numbers = [row[0] for row in shown(tmp_path).lines(id, place, "")]
    assert numbers == [*range(first, last + 1)] * bool(first)


def test_of_a_long_step_the_lines_around_the_place_are_shown(tmp_path):
    one = shown(tmp_path)
    rows = "".join(f"    x = {n}\n" for n in range(60))
    (tmp_path / "problem_6.py").write_text(SOURCE.replace("    age =", rows + "    age ="), "utf-8")
    one.file = submission.read(tmp_path, "problem_6.py", "keep")
    assert [row[0] for row in one.lines("6.8", "problem_6.py:40", "")] == [*range(37, 44)]
    assert len(one.lines("6.8", "", "")) == 26


def test_a_benchmark_is_drawn_as_bars_that_say_their_times(tmp_path):
    found = {"ms": 2.0, "spread_ms": 0.1, "naive_ms": 8.0, "sdpa_ms": 1.0, "peak_mib": 10.0,
             "naive_peak_mib": 300.0}
    text = document([shown(tmp_path, outcome="pass", benchmark=found)])
    Tree(text)
    widths = re.findall(r'width="([\d.]+)" height="22"', text)
    assert list(map(float, widths)) == [45, 22.5, 180]
    assert "PyTorch&#39;s SDPA takes 0.5 times your time. Naive PyTorch takes 4 times" in text
    assert "2 ms</text>" in text


ROOFLINE = {"label": "B=1, L=4096, bfloat16", "flops": 449e9, "bytes": 449e6, "ms": 1.0,
            "sdpa_ms": 0.8, "naive_ms": 50.0, "peak_flops": 747e12, "peak_bytes": 3e12}


def test_a_kernel_is_drawn_under_the_roofs_of_its_gpu(tmp_path):
    text = document([shown(tmp_path, outcome="pass", benchmark={"roofline": ROOFLINE})])
    Tree(text)
    assert ("B=1, L=4096, bfloat16. Yours reaches 449 of the 747 TFLOP/s that this GPU allows at "
            "1000 FLOP per byte, 60%. Look at the dashed line: it ends at the roof, the rate of "
            "its matrix products.") in text
    assert ("<desc>At 1000 FLOP per byte: SDPA 561 TFLOP/s, yours 449 TFLOP/s, naive 8.98 TFLOP/s. "
            "The roofs: 747 TFLOP/s in products, 3 TB/s from memory.</desc>") in text


def test_few_products_per_byte_are_limited_by_memory(tmp_path):
    few = ROOFLINE | {"flops": 44.9e9, "sdpa_ms": None}
    text = document([shown(tmp_path, outcome="pass", benchmark={"roofline": few})])
    assert "Yours reaches 44.9 of the 300 TFLOP/s" in text and "the rate of its memory." in text
    assert "SDPA" not in text


def test_what_was_not_timed_has_no_place_under_the_roofs(tmp_path):
    untimed = {"ms": None, "roofline": ROOFLINE | {"ms": None}}
    assert "The roofline" not in document([shown(tmp_path, outcome="pass", benchmark=untimed)])


def test_nothing_is_wider_than_a_phone_and_keys_scroll_a_wide_table(tmp_path):
    wide = {"name": "s", "role": "got", "rows": [0], "columns": [*range(5)],
            "cells": [["-1234.5678"] * 5], "wrong": [[1] * 5]}
    one = shown(tmp_path, [STEP | {"evidence": {"tables": [wide]}}],
                benchmark={"ms": 1.0, "naive_ms": 9.0, "sdpa_ms": 0.9, "roofline": ROOFLINE})
    text = document([one])
    assert '<table tabindex="0"><caption><b>got</b> s' in text
    text = re.sub(r'<meta http-equiv="Content-Security.*', "", text)
    (tmp_path / "phone.html").write_text(text.replace("</body>", WIDTHS + "</body>"), "utf-8")
    scroll = {said.split()[0] for said in left_by(tmp_path, FRAME.format("phone", 390))["wide"]}
    assert scroll - {"SPAN"} == {"PRE", "TABLE"}  # within themselves, but not the page


def test_the_loop_of_a_step_is_drawn_beside_the_one_it_should_make():
    [drawn] = pictures.evidence(evidence.tiles(
        ("query", "key"), np.arange(32, 64), 16, [(0, False), (16, False), (32, True)],
        [(0, False), (16, False), (16, False), (48, True)]))
    assert drawn.panels[0].name == "query rows 32 to 63, key tiles of 16"
    drawn = drawn.panels[0].drawn
    assert "your loop, tile 16: visited more than once" in drawn and "2×" in drawn
    assert "your loop, tile 32: its visit, or MASKED=True, is missing" in drawn
    assert "your loop, tile 48: visited in vain" in drawn
    assert "your loop, tile 0:" not in drawn and "should be, tile" not in drawn


def access(verb: str, tensor: str, first: int, last: int, tile: int = 0) -> Access:
    return Access(verb, tensor, 7, (first, max(tile, last), 0, 1), (first, last, 0, 1))


LAUNCH = Launch("_kernel", {"q_ptr": (6, 2), "k_ptr": (6, 2), "<o>": (6, 2)}, (
    (access("load", "q_ptr", 0, 3),),
    (access("load", "q_ptr", 4, 5), access("load", "k_ptr", 0, 3), access("load", "k_ptr", 4, 5, 7),
     access("store", "<o>", 4, 7))))


def test_loads_and_stores_are_drawn_by_program_and_turn():
    drawn = pictures.memory([(LAUNCH, list(map(turns, LAUNCH.programs)))], "L=6", "problem_3.py")
    [(name, svg, programs, first)] = drawn.panels
    assert (name, programs, first) == ("_kernel", 2, 1)
    said = re.findall(r'data-says="([^"]+)"', svg)
    assert said == ["Turn 1 of 1: reads q 0 to 3.", "Turn 1 of 3: reads q 4 to 5, reads k 0 to 3.",
                    "Turn 2 of 3: reads k 4 to 5.",
                    "Turn 3 of 3: writes &lt;o&gt; 4 to 7."]
    assert re.findall(r'<g class="(program[^"]*)"', svg) == ["program off", "program"]
    assert drawn.look == ("This call: L=6. Look at the red: program 1 of _kernel writes outside "
                          "<o>, `problem_3.py:7`.")
    assert drawn.is_wrong and ("wrong", "outside the tensor") in drawn.key
    Tree(str(svg))


def test_rows_that_one_program_reads_twice_are_darker():
    once, again = access("load", "q_ptr", 0, 3), access("load", "q_ptr", 3, 5)
    for program, is_darker in (((once, again), True), ((once,), False)):
        launch = replace(LAUNCH, programs=(program,))
        drawn = pictures.memory([(launch, list(map(turns, launch.programs)))], "L=6", "p.py")
        assert (("read read", "read more than once by one program") in drawn.key) == is_darker


def loop(**changes) -> pictures.Loop:
    """Two programs, three tiles; each visits what it should once."""
    right = np.array([[1, 0, 0], [1, 1, 0]])
    none = np.zeros((2, 3), bool)
    found = {"visits": right, "wanted": right > 0, "masked": none, "bare": none, "missed": none,
             "names": ("query", "key"), "sizes": (16, 16)}
    return pictures.Loop(**found | changes)


@pytest.mark.parametrize("changes, look", [
    ({}, "Every tile that has a visible pair is visited once, and no other."),
    ({"missed": np.eye(2, 3) > 0}, "red rings: the loop misses visible pairs of 2 tiles."),
    ({"bare": np.array([[1, 0, 0], [0, 0, 0]]) > 0}, "red rings: MASKED is False in 1 tile,"),
    ({"visits": np.array([[2, 0, 0], [1, 1, 0]])}, "2×: the loop visits 1 tile more than once,"),
    ({"visits": np.array([[1, 1, 1], [1, 1, 0]])}, "crosses: the loop visits 2 tiles in vain,")])
def test_what_to_look_at_in_a_loop_is_what_is_wrong_with_it(changes, look):
    drawn = pictures.loops([loop(**changes)], "L=48", True)
    assert look in drawn.look and drawn.is_wrong == bool(changes)
    assert drawn.look.count("Look at") == bool(changes) and "Hatched" not in drawn.look
    assert "Hatched tiles need a mask" in pictures.loops([loop()], "L=48", False).look


def test_a_wrong_mask_is_drawn_with_what_is_wrongly_seen_and_wrongly_hidden():
    found = {"mask": {"want": ["x.", "xx"], "got": ["xx", ".x"], "first": [32, 0]}}
    (drawn,) = pictures.evidence(found)
    difference = str(drawn.panels[-1].drawn)
    assert 'class="wrong" d="M150 34h' in difference  # query 32 sees key 1
    assert 'class="missing" d="M30 154h' in difference  # query 33 does not see key 0
    assert pictures.evidence(None) == []


def test_the_highest_bar_of_a_softmax_fills_its_height():
    for size in (1.0, 400.0):
        one = pictures.Turn(0, 15, 3.0, 0.5, 2.0, np.array([size, 0]), np.array([0, size / 2]))
        drawn = pictures.softmax("L=16", 3, [one], 8)
        assert re.findall(r"v-([\d.]+)h", drawn.panels[0].drawn) == ["46.0", "23.0"]
        assert "Query 3" in drawn.look
        assert "Keys 0 to 15: m = 3, alpha = 0.5, l = 2" in drawn.panels[0].drawn


def test_what_is_inside_of_its_tensor_is_not_called_wild():
    calm = replace(LAUNCH, programs=LAUNCH.programs[:1])
    drawn = pictures.memory([(calm, [[list(calm.programs[0])]])], "L=6",
                            "problem_3.py")
    assert not drawn.is_wrong and [words for _, words in drawn.key] == ["read", "masked off"]
