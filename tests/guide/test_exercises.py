"""The check of an exercise knows the answer, and tells three usual slips apart."""

import pytest

from guide.exercises import EXERCISES, close, judge, main


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


def test_a_whole_number_is_counted_exactly():
    assert close((9955.0,), (9955,)) and not close((9956.0,), (9955,))


def test_the_command_says_right_or_not_by_its_exit_code(capsys):
    assert main(["4.1", "36", "8"]) == 0
    assert main(["4.1", "36", "36"]) == 1
    assert main(["4.1", "36"]) == 1
    assert "want 2 numbers; got 1" in capsys.readouterr().out


def test_the_minus_sign_of_the_guide_is_read():
    assert main(["9.2", "−3"]) == 0 == main(["8.1", "4,", "0,", "−1,", "1"])


@pytest.mark.parametrize("arguments", [[], ["4.1"], ["99.1", "3"], ["4.1", "many"]])
def test_what_is_no_answer_is_refused(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().out.startswith("want an exercise (")
