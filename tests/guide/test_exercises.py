"""The check of an exercise knows the answer, and tells three usual slips apart."""

import json
import shutil
import subprocess
import sys

import pytest

from guide import exercises
from guide.exercises import FILE, judge, main
from guide.questions import EXERCISES, page


def close(got, want) -> bool:
    return exercises._fits("0.0", got, exercises.hashes("0.0", want))


def test_what_a_student_has_is_made_of_the_questions():
    assert FILE.read_text("utf-8") == page(), "python -m guide.questions"


def test_what_a_student_has_holds_no_number_of_an_answer():
    for one in json.loads(FILE.read_text("utf-8")):
        hashed = [*one["answer"], *(part for numbers, _ in one["slips"] for part in numbers)]
        assert all(len(key) == 8 for keys in hashed for key in keys)
        assert set(one) == {"number", "question", "answer", "slips"}


def test_it_runs_in_a_folder_that_has_nothing_else(tmp_path):
    (tmp_path / "guide").mkdir()
    for name in ("__init__.py", "exercises.py", "exercises.json"):
        shutil.copy(FILE.parent / name, tmp_path / "guide" / name)
    ran = subprocess.run([sys.executable, "-m", "guide.exercises", "4.1", "36", "36"], cwd=tmp_path,
                         capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, judge("4.1", (36, 36))[1] + "\n")


@pytest.mark.parametrize("number", EXERCISES)
def test_the_answer_is_right_and_no_slip_is(number):
    assert judge(number, EXERCISES[number].answer()) == (True, f"{number}: right.")
    said = set()
    for wrong, words in EXERCISES[number].slips:
        right, line = judge(number, wrong())
        assert not right and line == f"{number}: not yet. {words}"
        said.add(line)
    assert len(said) == 3


def test_three_digits_are_enough_and_two_are_not():
    assert close((0.135, 1.39), (0.1353, 1.3863)) and not close((0.13,), (0.1353,))
    assert close((-0.1353352,), (-0.1353,)) and not close((0.1353,), (-0.1353,))
    assert close((1.0004,), (0.9996,)) and not close((1.01,), (0.9996,))


def test_a_whole_number_is_counted_exactly():
    assert close((9955.0,), (9955,)) and not close((9956.0,), (9955,))


def test_the_command_says_right_or_not_by_its_exit_code(capsys):
    assert main(["4.1", "36", "8"]) == 0
    assert main(["4.1", "36", "36"]) == 1
    assert main(["4.1", "36"]) == 1
    assert "want 2 numbers; got 1" in capsys.readouterr().out


def test_the_minus_sign_of_the_guide_is_read():
    assert main(["9.2", "−3"]) == 0 == main(["8.1", "4,", "0,", "−1,", "1"])


def test_without_an_answer_the_question_is_printed(capsys):
    assert main(["4.1"]) == 0
    assert capsys.readouterr().out == f"4.1  {EXERCISES['4.1'].question}\n"
    assert main([]) == 0
    assert capsys.readouterr().out.count("\n") == len(EXERCISES)


@pytest.mark.parametrize("arguments", [["99.1", "3"], ["99.1"], ["4.1", "many"]])
def test_what_is_no_answer_is_refused(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().out.startswith("want an exercise (")
