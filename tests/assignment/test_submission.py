"""Reading a file without running it: missing, not started, broken or ready; and its steps."""

import ast
import hashlib
from pathlib import Path

import pytest

from grader.assignment import submission as reading
from grader.assignment.submission import (
    Step,
    blank_steps,
    foreign_texts,
    misjoined_tiles,
    read,
    steps,
)
from grader.blank import blank
from tests.commands import ROOT

TWO_STEPS = '''\
"""A stage."""


def entry(x):
    # Step 4.1 -- Which rows are mine?
    #   offs: row numbers.
    # BEGIN SOLUTION 4.1
    offs = x + 1
    # END SOLUTION 4.1
    if offs:
        # Step 4.2 -- Add them.
        # BEGIN SOLUTION 4.2
        offs += 2
        offs *= 3
        # END SOLUTION 4.2
    return offs
'''
BLANK_1 = TWO_STEPS.replace(
    "    offs = x + 1\n", '    raise NotImplementedError("step 4.1")  # TODO: your code here\n')
BLANK_BOTH = BLANK_1.replace(
    "        offs += 2\n        offs *= 3\n", "        # nothing yet\n        pass\n")


def submission(folder, text, name="problem_4.py"):
    data = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(data)
    return read(folder, name, "entry")


def test_an_expression_of_any_depth_is_read_for_joined_tiles_at_once():
    source = (f"@({'+'.join(['jit'] * 800)})\ndef f(): pass\n"
              f"@triton.jit\ndef g(x):\n    y = {'-' * 900}x\n    z = x < 1 and y < 2\n")
    assert misjoined_tiles(ast.parse(source))[0] == 6


def test_a_file_that_is_not_there_is_missing(tmp_path):
    found = read(tmp_path, "problem_4.py", "entry")
    assert (found.state, found.source, found.sha256) == ("missing", None, None)
    assert "problem_4.py" in found.sentence


def test_a_folder_in_place_of_the_file_is_missing_and_says_why(tmp_path):
    (tmp_path / "problem_4.py").mkdir()
    found = read(tmp_path, "problem_4.py", "entry")
    assert found.state == "missing" and "directory" in found.sentence


@pytest.mark.parametrize(("text", "state", "blank"), [
    (TWO_STEPS, "ready", ()), (BLANK_1, "ready", ("4.1",)),
    (BLANK_BOTH, "not_started", ("4.1", "4.2"))])
def test_a_file_is_hashed_and_started_with_its_first_step(tmp_path, text, state, blank):
    found = submission(tmp_path, text)
    assert (found.state, found.blank_steps, found.source) == (state, blank, text.encode())
    assert found.sha256 == hashlib.sha256(found.source).hexdigest()


def test_a_step_says_which_earlier_one_it_is_a_copy_of(tmp_path):
    text = TWO_STEPS.replace("# Step 4.2 -- Add them.", "# Step 4.2 -- Carried over: step 3.5.")
    first, second = submission(tmp_path, text).steps
    assert (first.origin, first.words) == ("", "step 4.1")
    assert (second.origin, second.words) == ("3.5", "step 4.2, copied from step 3.5")


def test_a_line_of_the_file_is_in_a_step_or_in_none(tmp_path):
    found = submission(tmp_path, TWO_STEPS)
    line = TWO_STEPS.splitlines().index("        offs *= 3") + 1
    assert found.step_at(line).id == "4.2"
    assert found.step_at(1) is None and found.step_at(None) is None


def test_the_students_own_line_is_the_innermost_in_a_step(tmp_path):
    found = submission(tmp_path, TWO_STEPS)
    first, given, second = (TWO_STEPS.splitlines().index(row) + 1
                            for row in ("    offs = x + 1", "    if offs:", "        offs *= 3"))
    assert found.own_line(given, (given, second, first)) == second
    assert found.own_line(first, (first, second)) == first
    assert found.own_line(given, (given, 1)) == given
    assert found.own_line(None, ()) is None


def test_what_is_blank_is_either_to_be_written_or_to_be_copied(tmp_path):
    text = BLANK_BOTH.replace("# Step 4.2 -- Add them.", "# Step 4.2 -- Copied from step 3.5.")
    found = submission(tmp_path, text)
    assert (found.blank_new, found.blank_carried) == (("4.1",), ("4.2",))
    assert found.blanks() == ("still to write: 4.1.",
                              "python -m grader.carry 4 copies what you wrote before into 4.2, "
                              "or says what is in the way.")
    assert submission(tmp_path, TWO_STEPS).blanks() == ()


@pytest.mark.parametrize("stage, order", [
    (2, "2.1 2.2 2.3 2.4 2.5 2.6"), (3, "3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8"),
    (8, "8.3 8.18 8.9 8.10 8.11 8.12 8.13 8.14 8.15 8.16 8.17"),
    (9, "9.4 9.20 9.21 9.12 9.16 9.17 9.3 9.11")])
def test_what_the_first_kernel_needs_is_written_first(stage, order, tmp_path):
    name = f"problem_{stage}.py"
    (tmp_path / name).write_text(blank((ROOT / name).read_text("utf-8")))
    assert " ".join(read(tmp_path, name, "").to_write) == order


def test_without_markers_blank_steps_keep_the_order_of_the_file(tmp_path):
    rows = blank(TWO_STEPS).splitlines(keepends=True)
    text = "".join(row for row in rows if "SOLUTION" not in row)
    assert submission(tmp_path, text).to_write == ("4.1", "4.2")


def test_a_raise_below_finished_code_is_told_from_a_blank_step(tmp_path):
    left = '        offs *= 3\n        raise NotImplementedError("step 4.2")\n'
    found = submission(tmp_path, BLANK_1.replace("        offs *= 3\n", left))
    line = found.source.decode().splitlines().index(left.splitlines()[1]) + 1
    said = f"your code is there; delete line {line}, raise NotImplementedError."
    assert (found.blank_new, found.left_raises) == (("4.1",), {"4.2": said})
    assert found.blanks() == (f"step 4.2: {said}", "still to write: 4.1.")
    written = TWO_STEPS.replace("        offs *= 3\n", left)
    written = written.replace("= x + 1\n", "= x + 1\n    raise NotImplementedError('step 4.1')\n")
    assert submission(tmp_path, written).state == "ready"


def test_code_above_the_region_of_a_step_whose_raise_is_left_is_to_be_moved(tmp_path):
    begin = "    # BEGIN SOLUTION 4.1\n"
    above = BLANK_1.replace(begin, f"    offs = x + 1\n{begin}")
    said = ("your code stands above line 8, BEGIN SOLUTION: move it below, and delete line 9, the "
            "raise.")
    assert submission(tmp_path, above).left_raises == {"4.1": said}
    assert submission(tmp_path, BLANK_1).left_raises == {}


@pytest.mark.parametrize("line, said", [
    ("keep = (i >= j) and (j < N)", "`and` does not join tiles: only its last part counts"),
    ("keep = i >= j or j < S", "`or` does not join tiles: only its first part counts"),
    ("x = tl.load(p, mask=a and b)", "Write &, and parentheses"),
    ("keep = i < N & j < D", "a chain of comparisons does not work on tiles"),
    ("keep = not i < j", "`not` asks for one truth value"),
    ("x = f(not MASKED)", ""),
    ("keep = (i < N) & (j < D)", ""),
    ("x = tl.load(p, mask=i < N) if CAUSAL and i < N else 0", ""),  # a test
    ("x = f(MASKED and RAGGED)", ""),  # constants
    ("tl.static_assert(q.numel.value >= 256 and not q.dtype.is_ptr())", ""),
    ("tl.device_assert(i < j and j < N)", "`and` does not join tiles"),
])
def test_tiles_joined_by_and_are_found(line, said):
    source = f"@triton.jit\ndef kernel(p):\n    {line}\n"
    found = misjoined_tiles(ast.parse(source))
    assert found is None if not said else found[0] == 3 and said in found[1]
    assert misjoined_tiles(ast.parse(source.replace("@triton.jit\n", ""))) is None


def test_what_decorates_a_kernel_joins_no_tiles():
    chosen = "@triton.heuristics({'EVEN': lambda a: a['N'] % a['T'] == 0 or a['D'] == a['T']})"
    source = f"{chosen}\n@triton.jit\ndef kernel(p):\n    x = tl.load(p)\n"
    assert misjoined_tiles(ast.parse(source)) is None


def test_of_a_file_whose_cases_pass_only_a_step_that_would_raise_is_missing(tmp_path):
    assert submission(tmp_path, BLANK_1).unreached == ("4.1",)
    moved = TWO_STEPS.replace("        offs += 2\n        offs *= 3\n", "        pass\n")
    found = submission(tmp_path, moved)
    assert (found.blank_steps, found.unreached) == (("4.2",), ())


@pytest.mark.parametrize(("body", "state"), [
    *((body, "not_started") for body in (
        "", "    pass", "    ...", "    # a note", '    raise NotImplementedError("step 4.1")',
        "    raise NotImplementedError", '    """a thought"""')),
    *((body, "ready") for body in ("    x = 1", "    raise ValueError", "    pass\n    x = 1"))])
def test_every_way_of_leaving_a_step_blank_counts_and_anything_else_is_a_start(
        tmp_path, body, state):
    text = f"def entry():\n    # BEGIN SOLUTION 4.1\n{body}\n    # END SOLUTION 4.1\n    return 1\n"
    assert submission(tmp_path, text).state == state


@pytest.mark.parametrize(("text", "state"), [
    ("", "not_started"), ("# only a note\n", "not_started"),
    ('"""Only a title."""\n', "not_started"),
    ("def entry(x):\n    pass\n", "not_started"),
    ('def entry(x):\n    """Doc."""\n    raise NotImplementedError\n', "not_started"),
    ("class entry:\n    def forward(ctx):\n        pass\n    def backward(ctx):\n        ...\n",
     "not_started"),
    ("class entry:\n    def forward(ctx):\n        return 1\n", "ready"),
    ("class entry:\n    def forward(ctx):\n        return 1\n    def backward(ctx): pass\n",
     "ready"),
    ("def entry(x):\n    return x\n", "ready"), ("def other(x):\n    pass\n", "ready"),
    ("entry = print\n", "ready"),
    (TWO_STEPS.replace("    # END SOLUTION 4.1\n", ""), "ready"),  # moved about
])
def test_a_file_without_markers_is_judged_by_its_entry_point(tmp_path, text, state):
    assert submission(tmp_path, text).state == state


def test_a_blank_step_is_named_even_without_its_markers(tmp_path):
    text = 'def entry(x):\n    raise NotImplementedError("step 4.1")\n    return x\n'
    found = submission(tmp_path, text)
    assert found.blank_steps == found.unreached == ("4.1",)
    assert blank_steps('# raise NotImplementedError("step 4.1")\n') == ()


@pytest.mark.parametrize(("text", "line"), [
    ("x = 1\ndef entry(:\n", 2), ("def entry():\n\tx = 1\n        y = 2\n", 3),
    ("if True:\npass\n", 2),
])
def test_a_syntax_error_has_its_line(tmp_path, text, line):
    found = submission(tmp_path, text)
    assert (found.state, found.line) == ("syntax_error", line)
    assert "Error: " in found.sentence


@pytest.mark.parametrize("text", [
    b"x = '\xff'\n", b"# coding: nonsense\nx = 1\n", b"x = 1\0\n", b"(" * 5000,
    b"# coding: punycode\n" + b"#" * (1 << 20),
    b"x = " + b"-" * 200_000 + b"1\n", b"#" * (2 << 20),
], ids=["not utf-8", "unknown coding", "null byte", "parentheses", "long and of a slow coding",
        "nesting", "two megabytes"])
def test_bytes_that_are_not_python_never_break_the_reader(tmp_path, text):
    found = submission(tmp_path, text)
    assert found.state == "syntax_error" and found.sentence and found.left_raises == {}


def test_a_file_is_parsed_once(tmp_path, monkeypatch):
    found = submission(tmp_path, f"import os\ndef entry(x):\n    return {'-' * 500}x\n")
    monkeypatch.setattr(reading, "syntax_tree", lambda *what: pytest.fail("it was parsed again"))
    assert found.parameters("entry") == {"x"}
    assert found.beside(1) == "" and found.steps_towards((3,)) == []
    assert misjoined_tiles(found.tree) is None


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
@pytest.mark.parametrize("number", range(1, 10))
def test_a_file_from_any_editor_is_graded_as_the_same_text(tmp_path, number, end, mark):
    given = (Path(__file__).parents[2] / f"problem_{number}.py").read_bytes()
    saved = mark + given.replace(b"\n", end)
    found = submission(tmp_path, saved)
    assert found.source == given and found.sha256 == hashlib.sha256(saved).hexdigest()
    assert found.steps == tuple(steps(given.decode())) and found.state == "ready"


@pytest.mark.parametrize(("data", "got", "line"), [
    (TWO_STEPS.encode("utf-16"), "UTF-16: save it as UTF-8", None),
    (TWO_STEPS.encode("utf-16-le"), "a null byte in line 1, as UTF-16 has them", 1),
    ((TWO_STEPS + "# d\xe9j\xe0 vu\n").encode("latin-1"), "the byte 0xe9 in line 17", 17),
    (("# d\xe9j\xe0 vu\n" + TWO_STEPS).encode("latin-1"), "the byte 0xe9 in line 1: save it", 1),
    (("x = 1\n# \u201ckeep\u201d\n").encode("cp1252"), "the byte 0x93 in line 2", 2),
    ("# coding: ascii\n\n# \xe9\n".encode(), "the byte 0xc3 in line 3, where coding ascii has", 3),
    (b"# -*- coding: nonsense -*-\nx = 1\n", "nonsense, which line 1 names: take that line out", 1),
    (b"#!/usr/bin/python\n# coding: gbk\n", "gbk, which line 2 names: take that line out", 2),
], ids=["UTF-16", "UTF-16 without a mark", "Latin-1", "Latin-1 in line 1", "cp1252", "ascii",
        "nonsense", "gbk"])
def test_a_file_that_is_not_utf_8_is_told_where_and_what_to_do(tmp_path, data, got, line):
    found = submission(tmp_path, data)
    assert (found.state, found.line) == ("syntax_error", line)
    assert found.sentence.startswith(f"want a file in UTF-8; got {got}")
    assert found.sentence.endswith("save it as UTF-8") and found.located == found.sentence
    assert found.blank_carried == () and found.unreached == ()  # nobody decodes it again


@pytest.mark.parametrize(("text", "said"), [
    ("%%writefile a.py\nx = 1\n", "line 1, %%writefile a.py, belongs to a notebook"),
    ("x = 1\n!pip install triton\n", "line 2, !pip install triton, belongs to a notebook"),
    ("%matplotlib inline\n", "line 1, %matplotlib inline, belongs to a notebook"),
    ("if 1:\n    files = !ls\n", "line 2, files = !ls, belongs to a notebook"),
    ("import torch\ntorch.where?\n", "line 2, torch.where?, belongs to a notebook"),
    ('{"cells": [], "metadata": {}}', "problem_4.py holds a notebook, and a Python file is wanted"),
    ("```python\nx = 1\n```\n", "line 1, ```python, belongs to the page or the chat"),
    ("<!DOCTYPE html>\n<html>\n", "line 1, <!DOCTYPE html>, belongs to a web page"),
    ("x = 1\n<<<<<<< HEAD\n", "line 2, <<<<<<< HEAD, belongs to git"),
])
def test_what_was_not_written_for_a_python_file_is_told_where_it_belongs(tmp_path, text, said):
    found = submission(tmp_path, text)
    assert found.state == "syntax_error" and found.sentence.startswith(said)


@pytest.mark.parametrize("text", ["x = = 1  # is it?\n", "x = (1\n     % )\n", "x = {1: 2\n"])
def test_any_other_line_that_python_refuses_keeps_pythons_words(tmp_path, text):
    assert "Error: " in submission(tmp_path, text).sentence


@pytest.mark.parametrize("odd", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_a_form_feed_is_no_line_end(tmp_path, odd):
    found = submission(tmp_path, f"# page{odd}two\n{odd if odd == chr(12) else ''}\n{TWO_STEPS}")
    assert [step.first_line for step in found.steps] == [9, 14]


def test_reading_never_runs_the_file(tmp_path):
    proof = tmp_path / "ran"
    assert submission(tmp_path, f"open({str(proof)!r}, 'w')\n").state == "ready"
    assert not proof.exists()


def test_steps_carry_id_title_and_the_lines_of_their_markers():
    assert steps(TWO_STEPS) == [
        Step("4.1", "Which rows are mine?", 7, 9), Step("4.2", "Add them.", 12, 15),
    ]


@pytest.mark.parametrize(("markers", "message"), [
    (["BEGIN SOLUTION 1.1", "BEGIN SOLUTION 1.2", "END SOLUTION 1.2", "END SOLUTION 1.1"],
     "begins inside step 1.1"),
    (["BEGIN SOLUTION 1.1"], "never closed"),
    (["END SOLUTION 1.1"], "ends inside no step"),
    (["BEGIN SOLUTION 1.1", "END SOLUTION 1.2"], "step 1.2 ends inside step 1.1"),
    (["BEGIN SOLUTION 1.1", "END SOLUTION 1.1"] * 2, "is there twice"),
    (["BEGIN SOLUTION"], "want an id"), (["BEGIN SOLUTION one"], "want an id"),
])
def test_malformed_markers_are_refused_with_their_line(markers, message):
    with pytest.raises(ValueError, match=message) as caught:
        steps("".join(f"# {marker}\n" for marker in markers))
    assert str(caught.value).startswith("line ")


def test_the_text_of_a_kernel_is_found_whatever_its_indentation_and_coding():
    source = "# -*- coding: latin-1 -*-\nclass A:\n    def f(x):\n        return x  # \xe9\n"
    text = "def f(x):\n    return x  # \xe9\n"
    there = source.encode("latin-1")
    assert foreign_texts(there, [("f", text)]) == []
    assert foreign_texts(there, [("f", text), ("f", text + "    pass")]) == ["f"]
    assert foreign_texts(there, [("f", "")]) == ["f"]


@pytest.mark.parametrize("statement", [
    "import utils", "from utils import f", "from .utils import f", "from . import utils",
    "import math, utils.deep"])
def test_an_import_of_what_lies_beside_is_named(tmp_path, statement):
    (tmp_path / "utils.py").write_text("")
    found = submission(tmp_path, f"import torch\n{statement}\n")
    assert found.beside(2) == ("utils.py lies beside it, but a file is graded alone: put what it "
                               "needs of that into problem_4.py")
    assert found.beside(1) == found.beside(None) == ""


def test_a_link_is_followed_inside_its_folder_only(tmp_path):
    (tmp_path / "solved.py").write_text(TWO_STEPS)
    (folder := tmp_path / "handed_in").mkdir()
    (folder / "mine.py").write_text(TWO_STEPS)
    (folder / "problem_2.py").symlink_to("mine.py")
    (folder / "problem_3.py").symlink_to(tmp_path / "solved.py")
    assert read(folder, "problem_2.py", "entry").state == "ready"
    found = read(folder, "problem_3.py", "entry")
    assert found.state == "missing" and found.source is None
    assert found.sentence.endswith("it is a link to a file outside this folder")


def test_arguments_that_a_gpu_rounds_to_16_bits_are_found_by_their_annotation():
    source = """
def kernel(
    x, scale: tl.float16,
    D: tl.constexpr, low: tl.bfloat16 = 0.0, high: tl.float32 = 1.0):
    pass
"""
    assert reading.narrow_arguments(ast.parse(source)) == [
        (3, "scale: tl.float16"), (4, "low: tl.bfloat16")]


@pytest.mark.parametrize("there, named", [("utils.ipynb", True), ("utils/", True),
                                          ("other.py", False)])
def test_a_notebook_or_a_folder_beside_it_is_named_too(tmp_path, there, named):
    path = tmp_path / there
    path.mkdir() if there.endswith("/") else path.write_text("")
    said = submission(tmp_path, "import utils\n").beside(1)
    assert said.startswith(f"{there.rstrip('/')} lies beside it") if named else said == ""


def test_an_address_was_made_in_steps_above_it_in_the_same_function(tmp_path):
    text = TWO_STEPS + TWO_STEPS.replace("entry", "other").replace(" 4.1", " 4.3").replace(
        " 4.2", " 4.4")
    found = submission(tmp_path, text)
    rows = text.splitlines()
    first, last = rows.index("    return offs") + 1, len(rows)
    assert [step.id for step in found.steps_towards((first,))] == ["4.1", "4.2"]
    assert [step.id for step in found.steps_towards((last,))] == ["4.3", "4.4"]
    assert [step.id for step in found.steps_towards((last, first))] == ["4.3", "4.4", "4.1", "4.2"]
    inside = found.step_at(found.steps[1].first_line + 1)
    assert [step.id for step in found.steps_towards((inside.first_line,))] == ["4.1", "4.2"]
    assert found.steps_towards((1,)) == []


def test_parameters_are_those_of_the_entry_with_those_that_need_a_name(tmp_path):
    found = submission(tmp_path, "def entry(q, k=1, *, sink_logits=None): pass\ndef f(x): pass\n")
    assert found.parameters("entry") == {"q", "k", "sink_logits"}
