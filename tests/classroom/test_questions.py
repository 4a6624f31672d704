"""Questions on a student's own files; every answer comes from a run of the file."""

import json
import math
import re
from pathlib import Path

import pytest

from classroom import __main__ as program
from classroom import questions
from grader.assignment.record import ROOT, sha256
from grader.course.calls import Access, Launch
from grader.course.stages import STAGES
from grader.host.options import Options
from tests.classroom.classes import AS

pytestmark = pytest.mark.interpreter
SOLVED, PLAIN = ROOT / "problem_4.py", ROOT / "attacks/honest/original_4_two_phases.py"
SMALLER = (SOLVED.read_text("utf-8").replace("BLOCK_M=rows, BLOCK_N=rows",
                                             "BLOCK_M=rows, BLOCK_N=rows // 2"))


def graded(results: Path, name: str, source: str, outcome: str = "pass", red: tuple = ()) -> dict:
    """Results of a student with one file of stage 4; red: wrong steps."""
    path = results / "submissions" / name / "problem_4.py"
    path.parent.mkdir(parents=True)
    path.write_text(source, "utf-8")
    steps = [{"id": id, "light": "wrong" if id in red else "right"} for id in STAGES[4].steps]
    stage = {"stage": 4, "outcome": outcome, "sha256": sha256(source.encode()),
             "steps": steps * ("SOLUTION" in source)}
    (results / "students").mkdir(exist_ok=True)
    (results / f"students/{name}.json").write_text(json.dumps({
        "format": 2, "student": name, "key": name, "id": "", "login": "", "stages": [stage]}))
    return stage


def a_file(tmp_path, source: str, odd: int = 0, **more) -> questions.File:
    stage = graded(tmp_path, "anna", source, **more)
    return questions.File(tmp_path / "submissions/anna", stage, Options(tmp_path, "cpu", 0, 60.0),
                          "0", odd)


def of_topic(topic: str, file: questions.File) -> questions.Question:
    """The last such question about what the file loads."""
    return [one for one in questions.loads(file) if one.topic == topic][-1]


def number(pattern: str, question: questions.Question) -> int:
    return int(re.search(pattern, " ".join(question.texts))[1])


def visited(question: questions.Question, rows: int, size: int, reversed: bool) -> str:
    """The tiles of keys that a causal program visits, by arithmetic."""
    N = number(r"shape \(1, 1, (\d+),", question)
    mine, count = number(r"program_id\(0\) == (\d+)", question), -(-N // rows)
    start = (count - 1 - mine if reversed else mine) * rows
    return ", ".join(f"{at}" + "*" * (reversed and at >= start)
                     for at in range(0, min(start + rows, N) if not reversed else start + rows,
                                     size))


# ------------------------------------------------------------------------ from the trace
@pytest.mark.parametrize("source, rows, size, marked", [
    (SOLVED.read_text("utf-8"), 64, 64, True), (SMALLER, 64, 32, True),
    (PLAIN.read_text("utf-8"), 128, 64, False)])
def test_the_tiles_of_a_program_are_those_of_the_students_own_sizes(
        tmp_path, source, rows, size, marked):
    question = of_topic("tiles", a_file(tmp_path, source, odd=1))
    assert f"`{'k' if marked else 'K'}_ptr`" in question.texts[2]
    assert question.answer == visited(question, rows, size, marked)
    assert f"tiles of {size}" in question.drawn and f"{size} rows" not in " ".join(question.texts)
    assert ("MASKED" in question.texts[2]) == marked


@pytest.mark.parametrize("least, asked", [(3, 0), (1, 1)])
def test_a_loop_that_is_the_same_in_every_program_is_not_asked_about(least, asked):
    tiles = [Access("load", "k_ptr", 9, (first, first + 31, 0, 15), (first, first + 31, 0, 15))
             for first in (0, 32, 64)]
    launch = Launch("kernel", {"k_ptr": (96, 16)}, (tuple(tiles), tuple(tiles[:least])), (2, 1, 1))
    assert len([*questions._loops(launch)]) == asked


def test_the_programs_that_load_a_row_are_those_of_later_queries(tmp_path):
    question = of_topic("programs", a_file(tmp_path, PLAIN.read_text("utf-8")))
    row, N = number(r"load row (\d+)", question), number(r"shape \(1, 1, (\d+),", question)
    # Its programs of 128 queries visit whole tiles of 64 keys, in the order of the queries.
    wanted = [i for i in range(-(-N // 128)) if row < -(-min(128 * (i + 1), N) // 64) * 64]
    assert question.answer == ", ".join(map(str, wanted))


def test_a_loop_that_is_wrong_is_not_asked_about(tmp_path):
    file = a_file(tmp_path, SOLVED.read_text("utf-8"), outcome="wrong", red=("4.2",))
    assert not [*questions.loads(file)]


def test_a_wrong_file_without_markers_is_not_asked_about(tmp_path):
    assert not [*questions.loads(a_file(tmp_path, PLAIN.read_text("utf-8"), outcome="wrong"))]


# ------------------------------------------------------------- from a step's numbers
def after_a_tile(question: questions.Question, base: float) -> list[float]:
    """l of each row, by arithmetic on the numbers of the question."""
    found = []
    for text in question.texts[1:-1]:
        *scores, m, total = (float(x) for x in re.findall(
            r"-?inf|-?\d+", text.partition(": ")[2]))
        new = max(m, *scores)
        found.append(total * base ** (m - new) + sum(base ** (score - new) for score in scores))
    return found


NATURAL = re.sub(r"exp2\(", "exp(", SOLVED.read_text("utf-8")).replace(
    "scale * LOG2E", "scale").replace("(m_i + tl.math.log2(l_i)) * LN2", "m_i + tl.log(l_i)")


@pytest.mark.parametrize("source, base", [(SOLVED.read_text("utf-8"), 2), (NATURAL, math.e)])
def test_the_softmax_of_a_tile_is_asked_in_the_base_of_the_file(tmp_path, source, base):
    [question] = questions.softmax(a_file(tmp_path, source))
    said = [float(x) for x in re.findall(r"= (\S+?)\.(?:\s|$)", question.answer)]
    assert said == pytest.approx(after_a_tile(question, base), 1e-4) and len(said) == 2
    assert f"alpha = {'2' if base == 2 else 'e'}^" in question.answer


def test_a_softmax_that_does_something_else_is_not_asked_about(tmp_path):
    odd = SOLVED.read_text("utf-8").replace("l_i = l_i * alpha +", "l_i = l_i * alpha * 2 +")
    assert not [*questions.softmax(a_file(tmp_path, odd))]


def test_a_softmax_that_is_wrong_is_not_asked_about(tmp_path):
    file = a_file(tmp_path, SOLVED.read_text("utf-8"), outcome="wrong", red=("4.5",))
    assert not [*questions.softmax(file)]


# ------------------------------------------------------------------- from a variant
def test_the_rows_of_a_variant_are_those_that_a_run_of_it_leaves(tmp_path, monkeypatch):
    source = SOLVED.read_text("utf-8")
    old, new = "l_i = l_i * alpha + tl.sum(p, axis=1)", "l_i = tl.sum(p, axis=1)"
    never = source.replace(old, "l_i = l_i + alpha")
    line = source[:source.index(old)].count("\n") + 1
    monkeypatch.setattr(questions, "_variants", lambda file: [
        (line, old, "l_i = l_i + alpha", never.encode()), (0, "", "", b"no Python"),
        (line, old, new, source.replace(old, new).encode()), (1, "", "", source.encode())] * 1)
    monkeypatch.setattr(questions.random.Random, "sample", lambda self, some, count: some)
    [question] = questions.variant(a_file(tmp_path, source))
    # Only the first tile of queries visits a single tile of keys.
    assert f"line {line} read `{new}` in place of `{old}`" in question.texts[-1]
    assert question.answer == "0 to 63"


def test_variants_are_lines_of_the_file_that_read_differently(tmp_path):
    file = a_file(tmp_path, SOLVED.read_text("utf-8"))
    found = [*questions._variants(file)]
    rows = SOLVED.read_text("utf-8").splitlines()
    assert len(found) > 20
    for line, old, new, source in found:
        changed = source.decode().splitlines()
        assert [at for at, pair in enumerate(zip(rows, changed, strict=True), 1)
                if pair[0] != pair[1]] == [line]
        assert rows[line - 1].strip() == old and changed[line - 1].strip() == new


# ------------------------------------------------------------------------ a class
@pytest.fixture
def results(tmp_path):
    for name in ("anna", "ben"):
        graded(tmp_path / "out", name, PLAIN.read_text("utf-8"))
    return tmp_path / "out"


def ask(results, *words) -> int:
    return program.main(["questions", str(results), *AS, *words])


def pages(results) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in results.rglob("*.html")}


def test_a_class_gets_pages_without_answers_and_no_two_neighbours_the_same(results):
    assert ask(results) == 0
    made = pages(results)
    assert made.keys() == {"anna.html", "ben.html", "answers.html"}
    asked = [set(re.findall(r"<p>(.*?)</p>", made[name])) for name in ("anna.html", "ben.html")]
    assert all(text.count("<h3>") == 3 for name, text in made.items() if name != "answers.html")
    assert "Answer:" not in made["anna.html"] and made["answers.html"].count("Answer:") == 6
    told = [[text for text in some if "tl.program_id" in text] for some in asked]
    assert told[0] and told[1] and not {*told[0]} & {*told[1]}
    (results / "questions/ben.html").unlink()
    assert ask(results, "--student", "Ben") == 0
    after = pages(results)
    assert after.pop("answers-ben.html").count("Answer:") == 3
    assert after == made, "the same questions again"


@pytest.fixture
def quick(monkeypatch):
    """Questions that take no time; they say the seed."""
    monkeypatch.setattr(questions, "of_files", lambda files, seed: [questions.Question(
        4, "seed", (f"`{seed}` & <i>",), "none")])


def test_another_seed_asks_otherwise_and_names_are_only_text(results, quick):
    assert ask(results) == 0 and ask(results, "--seed", "1") == 0
    made = pages(results)
    assert "<code>1/anna</code> &amp; &lt;i&gt;" in made["anna.html"]
    assert "ben" not in made["anna.html"] and "1/ben" in made["answers.html"]


def test_what_was_changed_since_is_not_overwritten_or_asked_about(results, quick, capsys):
    assert ask(results) == 0 and ask(results) == 0, "its own pages it replaces"
    answers = results / "answers.html"
    answers.write_text(answers.read_text("utf-8") + "my notes", "utf-8")
    assert ask(results) == 2 and "answers.html, which it did not write" in capsys.readouterr().err
    assert answers.read_text("utf-8").endswith("my notes")
    (results / "submissions/ben/problem_4.py").write_text("pass")
    assert ask(results, "--student", "ben") == 2
    assert "want the file that was graded; got" in capsys.readouterr().err


def test_of_a_name_that_nobody_has_no_page_is_written(results, capsys):
    assert ask(results, "--student", "zoe") == 2 and not pages(results)
    assert "--student: want the name, id or login of one student; got zoe" in \
        capsys.readouterr().err
