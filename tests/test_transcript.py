"""The transcript of stage 4 is what the grader says."""

import re

import pytest

from tools import transcript

NUMBER = re.compile(r"\d+\.\d+|\d+")


def apart(text: str) -> tuple[list[str], list[float]]:
    """Words and numbers of what is not the clock's: times, date and versions are left out."""
    text = transcript.WHEN.sub("", re.sub(r"\d+\.\d s,", "", text))
    return NUMBER.split(text), [float(number) for number in NUMBER.findall(text)]


@pytest.mark.slow
@pytest.mark.interpreter
def test_the_page_is_what_the_grader_says_today(tmp_path):
    old = transcript.PAGE.read_text("utf-8")
    assert transcript.WHEN.search(old) and len(transcript.BLOCK.findall(old)) == 7
    words, numbers = apart(transcript.page(old, tmp_path / "flash"))
    want_words, want_numbers = apart(old)
    assert words == want_words, "python -m tools.transcript"
    # The last digits are another processor's.
    assert numbers == pytest.approx(want_numbers, rel=0.02), "python -m tools.transcript"


def test_a_mistake_that_is_not_in_the_solved_step_is_an_error(monkeypatch):
    monkeypatch.setitem(transcript.RIGHT, "4.6", "keep = gone")
    solved = (transcript.ROOT / "problem_4.py").read_text("utf-8")
    with pytest.raises(ValueError, match="want one 'keep = gone' in step 4.6; got keep = key"):
        transcript._filled(solved, ["4.6"])
