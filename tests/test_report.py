"""The human report: words beside every symbol, 80 columns, colour only on a terminal."""

import io

from grader.report import Reporter
from grader.results import Check, Run, StageResult
from grader.stages import STAGES


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Latin(io.StringIO):
    encoding = "latin-1"


def check(outcome, **more):
    return Check("standard/x", "standard", outcome, "(B=1, H=8, L=512, D=16)", **more)


def printed(stream, *checks):
    reporter = Reporter(stream)
    reporter.stage_begins(STAGES[3])
    for one in checks:
        reporter.check_done(STAGES[3], one)
    return stream.getvalue()


def test_a_passing_case_reads_as_in_the_assignment():
    text = printed(io.StringIO(), check("pass"))
    assert "--- Running Autograder for Problem 3: Non-Causal Flash Attention ---" in text
    assert "✅ P3 Correctness Test Passed! (B=1, H=8, L=512, D=16)" in text


def test_only_the_first_failing_case_is_told_in_full():
    failing = [check("wrong", lines=(f"o differs {i}", "try: this"), detail=f"output {i}")
               for i in range(3)]
    text = printed(io.StringIO(), *failing)
    assert "o differs 0" in text and "   | output 0" in text
    assert "o differs 1" not in text and "output 1" not in text
    assert text.count("Failed: wrong") == 3


def test_what_a_submission_prints_is_fenced_and_cut():
    text = printed(io.StringIO(), check("crashed", detail="\n".join(map(str, range(100)))))
    assert "   | (76 earlier lines are left out)" in text
    assert all(line.startswith("   | ") for line in text.splitlines()[3:])


def test_no_line_is_wider_than_80_columns():
    long = Check("robust/x", "robust", "wrong", "(" + "B=1, " * 30 + ")",
                 lines=("word " * 60,))
    text = printed(io.StringIO(), long, long, Check("r", "robust", "pass", "word " * 40))
    assert max(map(len, text.splitlines())) <= 80


def test_colour_only_on_a_terminal_and_not_with_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in printed(Terminal(), check("pass"))
    assert "\x1b" not in printed(io.StringIO(), check("pass"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(Terminal(), check("pass"))


def test_a_terminal_without_emoji_gets_words():
    text = printed(Latin(), check("pass"), check("wrong"))
    assert "[ok] P3" in text and "[XX] P3" in text


def test_a_live_line_on_a_terminal_and_nothing_when_piped():
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with Reporter(stream).working(STAGES[3], "case 1 of 4"):
            pass
        assert ("problem 3: case 1 of 4" in stream.getvalue()) == shown


def test_the_summary_has_points_seed_and_the_next_command():
    stream = io.StringIO()
    run = Run("cpu", "2", "3", 77, [StageResult(3, "Non-Causal Flash Attention", 200, "pass", 200)])
    Reporter(stream).summary(run, "python autograder.py --p4")
    text = stream.getvalue()
    assert "200 of 200" in text and "--seed 77" in text and "Self-check" in text
    assert text.rstrip().endswith("Next: python autograder.py --p4")


def test_a_reader_that_leaves_early_does_not_stop_the_grading():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    reporter = Reporter(Closed())
    reporter.check_done(STAGES[3], check("pass"))
    reporter.check_done(STAGES[3], check("pass"))
