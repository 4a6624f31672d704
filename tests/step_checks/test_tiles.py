"""W.8: what a choice may be, what its tiles need, and what is said of a prediction."""

import io
import shutil
from pathlib import Path

import pytest

from grader.assignment.record import ROOT
from grader.blank import blank
from grader.course.calls import SubmissionError
from grader.host.options import Options
from grader.report.screen import Reporter
from grader.step_checks import tiles, warmups
from grader.step_checks.examples import Observed

RIGHT = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3, "fastest": "'A'",
         "why": ("'registers'", "'little work'")}
SOURCE = (ROOT / "problem_4.py").read_bytes()
SOLVED = (ROOT / warmups.FOLDER / warmups.NAME).read_text("utf-8")


def check(**changed):
    return tiles.choice().check(Observed([RIGHT | changed], [], {}))


def test_a_choice_that_fits_is_right():
    assert check() is None
    assert check(BLOCK_M=128, num_warps=8, fastest="'C'", why=("'shared memory'",) * 2) is None


@pytest.mark.parametrize("changed, said", [
    ({"BLOCK_M": 32}, "BLOCK_M: want a power of two from 64 to 256; got 32"),
    ({"BLOCK_N": 24}, "BLOCK_N: want a power of two from 16 to 256; got 24"),
    ({"BLOCK_N": 128}, "BLOCK_N: want a divisor of BLOCK_M = 64; got 128"),
    ({"BLOCK_N": 32.0}, "got 32.0"), ({"BLOCK_M": True}, "got True"),
    ({"num_warps": 3}, "num_warps: want a power of two from 1 to 16; got 3"),
    ({"num_stages": 1}, "so that the next tiles are loaded while these are multiplied; got 1"),
    ({"BLOCK_M": 256}, "acc and s alone take 320 registers per thread, and a thread has 255"),
    ({"fastest": "'D'"}, "fastest: want 'A' or 'B' or 'C'; got 'D'"), ({"fastest": 3}, "got 3"),
    ({"why": "'registers'"}, "why: want two of 'registers', 'shared memory', 'little work'; got '"),
    ({"why": ("'registers'", "'cache'")}, "got 'registers', 'cache'")])
def test_a_choice_that_no_kernel_can_have_is_told(changed, said):
    assert said in check(**changed).lines[0]


@pytest.mark.interpreter
def test_a_text_is_read_out_of_the_step(tmp_path):
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(SOLVED.replace('= "A"', '= "D"'))
    shutil.copy(ROOT / "problem_4.py", tmp_path)
    said = io.StringIO()
    assert warmups.grade(options(tmp_path), Reporter(said), "W.8") == 1
    assert "got 'D'" in said.getvalue() and "--hint W.8" in said.getvalue()


def options(folder: Path, device: str = "cpu") -> Options:
    return Options(folder, device, 1, 60.0)


def test_a_program_s_shared_memory_is_what_the_hint_computes():
    made = {name: RIGHT[name] for name in tiles.NAMES}
    needed = tiles.shared_bytes(SOURCE, made, options(ROOT))
    assert needed == 2 * tiles.D * (64 + 2 * 3 * 32) <= tiles.LIMIT


def test_tiles_that_need_too_much_are_wrong_and_told_why(monkeypatch):
    monkeypatch.setattr(tiles, "shared_bytes", lambda source, made, options: 81_920)
    outcome, lines = tiles.judged(RIGHT | {"BLOCK_N": 64, "num_stages": 2}, options(ROOT))
    assert outcome == "wrong" and "81,920 bytes of shared memory; at most 76,800" in lines[0]
    assert "q's tile takes 16,384, and 2 tiles each of k and v take 65,536" in lines[1]


def test_a_kernel_that_cannot_be_compiled_is_told(monkeypatch):
    def fail(*arguments):
        raise SubmissionError("crashed", "the kernel does not compile", line=7)
    monkeypatch.setattr(tiles, "shared_bytes", fail)
    assert tiles.judged(RIGHT, options(ROOT)) == (
        "crashed", ("problem_4.py:7: the kernel does not compile",))


def test_a_prediction_is_shown_beside_what_speaks_against_the_others():
    said = " ".join(tiles.predicted(RIGHT | {"fastest": "'B'"}))
    assert "You predict that B is the fastest" in said
    assert "A: registers, C: little work" in said and "B needs 256 registers per thread" in said


def test_a_gpu_says_who_was_right(monkeypatch):
    def milliseconds(source, tiles, options):
        if tiles["BLOCK_M"] == 128:
            raise SubmissionError("crashed", "it needs too much shared memory")
        return tiles["BLOCK_M"] / 16
    monkeypatch.setattr(tiles, "milliseconds", milliseconds)
    *rows, last = tiles.timed(SOURCE, options(ROOT, "cuda"))
    assert rows == ["A  BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2: 4.000 ms",
                    "B  BLOCK_M=128, BLOCK_N=128, num_warps=4, num_stages=2: it needs too much "
                    "shared memory",
                    "C  BLOCK_M=16, BLOCK_N=16, num_warps=4, num_stages=2: 1.000 ms"]
    assert last == "Measured on this GPU: C is the fastest."
    assert tiles.timed(SOURCE, options(ROOT)) == (
        "Only a clock can tell, and there is no GPU here: run this again on one.",)


@pytest.mark.interpreter
def test_a_candidate_is_timed_with_its_own_tiles(monkeypatch):
    call = tiles._call
    monkeypatch.setattr(tiles, "_call", lambda heads, N, more: call(1, 32, more))
    monkeypatch.setattr(tiles, "MANY", 4)
    monkeypatch.setattr(tiles, "ROUNDS", 1)
    assert tiles.milliseconds(SOURCE, tiles.CANDIDATES["C"], options(ROOT)) > 0
    with pytest.raises(SubmissionError, match="power of"):
        tiles.milliseconds(SOURCE, tiles.CANDIDATES["C"] | {"BLOCK_M": 24}, options(ROOT))


def test_it_comes_later_until_problem_4_is_solved(tmp_path):
    assert tiles.too_early(tmp_path)
    path = tmp_path / "problem_4.py"
    path.write_text(blank(SOURCE.decode()))
    assert tiles.too_early(tmp_path)
    path.write_bytes(SOURCE)
    assert not tiles.too_early(tmp_path)
    path.write_bytes(SOURCE.replace(b"_tiles(q)", b"_sizes(q)"))  # nothing to choose there
    assert tiles.too_early(tmp_path)


@pytest.mark.interpreter
def test_the_others_are_done_without_it_as_long_as_it_comes_later(tmp_path):
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(blank(SOLVED, "W.8"))
    said, done = io.StringIO(), []
    assert warmups.grade(options(tmp_path), Reporter(said), then=done.append) == 0
    assert "W.8 tiles for a kernel, and a prediction: later, when problem 4" in said.getvalue()
    assert "Warm-ups: 7 of 7 right" in said.getvalue() and done == [""]


@pytest.mark.interpreter
@pytest.mark.parametrize("text, code, words", [
    (SOLVED, 1, "it takes 65,536 bytes of shared memory of 76,800, which fits."),
    (SOLVED.replace("64, 32, 4, 3", "64, 64, 4, 2"), 1,
     "81,920 bytes of shared memory of 76,800, which does not fit."),
    (SOLVED.replace("64, 32, 4, 3", "32, 32, 4, 3"), 1, "want a power of two from 64 to 256"),
    (blank(SOLVED, "W.8"), 1, "later, when problem 4 is solved")])
def test_before_problem_4_its_arithmetic_is_told(tmp_path, text, code, words):
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(text)
    assert warmups.grade(options(tmp_path), Reporter(said := io.StringIO()), "W.8") == code
    assert words in said.getvalue() and "0 of 0" not in said.getvalue()
    assert ("later" in said.getvalue()) == ("want" not in said.getvalue())


@pytest.mark.interpreter
def test_with_problem_4_solved_what_its_tiles_need_decides(tmp_path, monkeypatch):
    (tmp_path / warmups.FOLDER).mkdir()
    (tmp_path / warmups.FOLDER / warmups.NAME).write_text(SOLVED)
    shutil.copy(ROOT / "problem_4.py", tmp_path)
    for needed, code, words in ((70_000, 0, "1 of 1 right"), (80_000, 1, "more: python autograder"),
                                ("", 3, "the grader itself failed (TypeError")):
        monkeypatch.setattr(tiles, "shared_bytes", lambda *given, needed=needed: needed)
        assert warmups.grade(options(tmp_path), Reporter(said := io.StringIO()), "W.8") == code
        assert words in said.getvalue(), said.getvalue()
