"""python -m grader.hunt: one line of a solved stage is wrong; asked about, fixed, or given up."""

import re
import shutil

import pytest

from grader import blank, hunt
from grader.assignment.record import HUNT, ROOT
from grader.course.stages import STAGES
from tests.commands import grader

pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A hunt in stage 6, whose window one wants to ask about."""
    folder = tmp_path_factory.mktemp("flash")
    shutil.copy(ROOT / "problem_6.py", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(hunt, "CASES", 3)
        assert hunt.main(["6", "--seed", "4"]) == 0
    return folder


@pytest.fixture
def flash(begun, tmp_path, monkeypatch):
    """A copy of it."""
    shutil.copytree(begun, tmp_path / "flash")
    monkeypatch.chdir(tmp_path / "flash")
    monkeypatch.setattr(hunt, "CASES", 3)
    return tmp_path / "flash"


def solve(flash, line: str = "") -> None:
    """Put the right line back, or another one in its place."""
    path = flash / "hunt_6/problem_6.py"
    rows, wrong = ((flash / "problem_6.py").read_text().splitlines(True),
                   path.read_text().splitlines(True))
    at, = (i for i, pair in enumerate(zip(rows, wrong, strict=True)) if pair[0] != pair[1])
    if line:
        rows[at] = f"{re.match(' *', rows[at])[0]}{line}\n"
    path.write_text("".join(rows))


@pytest.mark.parametrize("row, plain", [
    ("x = (HQ)", "x = HQ"), ("x = ((a // b)) * c", "x = a // b * c"), ("f(a, (b,", "f(a, (b,"),
    ("x = a * (b + 1)", "x = a * (b + 1)"), ("y = f((a), (b + c) * d)", "y = f(a, (b + c) * d)")])
def test_a_change_leaves_no_parentheses_that_give_it_away(row, plain):
    assert hunt.bare(row) == plain


def test_one_line_is_changed_and_nothing_tells_which(begun):
    right, wrong = ((begun / name).read_text().splitlines()
                    for name in ("problem_6.py", "hunt_6/problem_6.py"))
    assert len(right) == len(wrong) and sum(map(str.__ne__, right, wrong)) == 1
    changed, = (row.strip() for row, other in zip(wrong, right, strict=True) if row != other)
    record = (begun / "hunt_6" / HUNT).read_text()
    assert changed not in record and "step" not in record


def test_a_colleague_names_no_mistake(flash, capsys):
    assert hunt.main(["6"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"Not yet: .*(% off|NaN or inf) for N=", said) and "Reported: " in said
    assert "step" not in said and "mistake" not in said


@pytest.mark.parametrize("stage", STAGES.values())
def test_every_case_of_a_report_can_be_asked_in_its_own_words(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(hunt, "CASES", 99)
    cases = hunt.Hunt(stage, tmp_path, 1).cases
    assert len(cases) > hunt.CASES // 10
    assert [hunt.asked(stage, hunt.words(case)) for case in cases] == cases


def test_asked_about_its_own_cases_a_report_is_true(flash, capsys):
    report = hunt.read(flash / "hunt_6")["report"]
    far, wrong, fine = re.fullmatch("(.*) for (.*); fine for (.*).", report).groups()
    for words, said in (wrong, far), (fine, "right."):
        assert hunt.main(["6", "--ask", words]) == 0
        assert capsys.readouterr().out.startswith(f"{words}: {said}")


@pytest.mark.parametrize("field", ["family", "layout", "dtype", "D"])
def test_the_page_lists_the_values_that_can_be_asked(field):
    with pytest.raises(ValueError) as error:
        hunt.asked(STAGES[6], f"N=9 window=3 {field}=other")
    values = re.search(f"want {field} of (.*); got", str(error.value))[1].split(", ")
    page = (ROOT / "docs/hunting.md").read_text("utf-8")
    assert len(values) > 1 and all(f"`{value}`" in page for value in values)


def test_a_question_gets_numbers_and_where_and_is_counted(flash, capsys):
    for question in ("N=130 window=17", "N=200, window=70, D=32"):
        assert hunt.main(["6", "--ask", question]) == 0
    said = capsys.readouterr().out
    assert "N=130 window=17: " in said and "N=200 window=70 D=32: " in said
    assert hunt.read(flash / "hunt_6")["asked"] == 2
    solve(flash)
    assert hunt.main(["6"]) == 0
    said = capsys.readouterr().out
    assert "Solved. Questions asked: 2. The mistake: " in said
    assert re.search(r"The grader would have said:\n  step 6\.\d+: problem_6.py:\d+: ", said)


def test_a_solved_hunt_says_how_to_begin_another_or_the_same(flash, capsys):
    path = flash / "hunt_6/problem_6.py"
    was, report = path.read_bytes(), hunt.read(flash / "hunt_6")["report"]
    assert hunt.main(["6", "--seed", "9"]) == 2 and path.read_bytes() == was
    assert "want the hunt in hunt_6 solved before another seed" in capsys.readouterr().err
    solve(flash)
    assert hunt.main(["6", "--seed", "4"]) == 0
    said = capsys.readouterr().out
    assert "Solved. " in said and "add --seed and a number to this command for another" in said
    fixed = path.read_bytes()
    assert hunt.main(["6", "--seed", "4"]) == 0 and path.read_bytes() == was
    assert (flash / ".autograder/hunt_6/problem_6.py").read_bytes() == fixed
    said = capsys.readouterr().out
    assert f"A colleague reports: {report}" in said and hunt.main(["6"]) == 1
    assert "problem_6.py as it was is kept as .autograder/hunt_6/problem_6.py\n" in said


def test_a_fix_in_another_form_is_a_fix_and_another_mistake_is_none(flash, capsys):
    path = flash / "hunt_6/problem_6.py"
    solve(flash)
    text = path.read_text()
    path.write_text(text.replace("(age < window_size)", "(age <= window_size)"))
    assert hunt.main(["6"]) == 1 and "Not yet: " in capsys.readouterr().out
    path.write_text(text.replace("(age < window_size)", "(age + 1 <= window_size)"))
    assert hunt.main(["6"]) == 0 and "Solved." in capsys.readouterr().out


def test_a_file_that_crashes_is_not_yet_right(flash, capsys):
    solve(flash, "not_there")
    assert hunt.main(["6"]) == 1 and "it crashes: " in capsys.readouterr().out
    solve(flash, "= 1")
    assert hunt.main(["6"]) == 2 and "that can be run; got problem_6.py:" in capsys.readouterr().err


@pytest.mark.parametrize("answer, over", [("n", False), ("y", True)])
def test_the_grader_asks_before_it_names_the_mistake(flash, monkeypatch, answer, over):
    monkeypatch.setattr("builtins.input", lambda words: answer)
    done = grader("--p6", "--quick", "--submission", str(flash / "hunt_6"))
    assert "A hunt is on in " in done.stdout and (done.returncode == 1 or over)
    assert ("✗ step" in done.stdout) == over == hunt.read(flash / "hunt_6")["over"]


@pytest.mark.parametrize("arguments, said", [
    (["6", "--ask", "N=0 window=3"], "want N of 1 to 8192; got 0"),
    (["6", "--ask", "N=9"], "want window for stage 6; got none"),
    (["6", "--ask", "wide"], "got wide"),
    (["6", "--ask", "N=9 window=3 stage=3"], "want a case of stage 6, each of its fields once; "
     "got stage=3"),
    (["6", "--ask", "N=9 window=3 N=8"], "each of its fields once; got N=8"),
    (["6", "--ask", ""], "want N for stage 6; got none"),
    (["4", "--ask", ""], "want a hunt in hunt_4"),
    (["4", "--ask", "N=9"], "want a hunt in hunt_4"),
    (["4", "--folder", "hunt_6"], "want stage 6 in hunt_6, as a file that "
     "can be run; got there is no hunt_6/problem_4.py"),
    (["4"], "want problem_4.py solved; got: there is no problem_4.py"),
    (["6", "--folder", "."], "want a hunt in ., or nothing there"),
])
def test_what_cannot_be_done_is_said_and_nothing_is_written(flash, capsys, arguments, said):
    before = {path: path.read_bytes() for path in flash.rglob("*") if path.is_file()}
    assert hunt.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in flash.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change, said", [
    (lambda text: blank.blank(text, "6.8"), "still to write: 6.8"),
    (lambda text: text.replace("(age < window_size)", "(age <= window_size)"), "o is "),
    (lambda text: re.sub("# (BEGIN|END) SOLUTION.*", "", text), "no step markers")])
def test_only_a_solved_stage_can_be_hunted_in(tmp_path, monkeypatch, capsys, change, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem_6.py").write_text(change((ROOT / "problem_6.py").read_text()))
    assert hunt.main(["6"]) == 2
    assert f"want problem_6.py solved; got: {said}" in capsys.readouterr().err
    assert not (tmp_path / "hunt_6").exists()


def test_the_course_has_a_catalogue_of_mistakes_for_its_own_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hunt, "CASES", 3)
    assert hunt.main(["5", "--course", "--seed", "1", "--folder", str(tmp_path / "h")]) == 0
    assert "A colleague reports: o " in capsys.readouterr().out
    assert (tmp_path / "h/problem_5.py").read_text() != (ROOT / "problem_5.py").read_text()
    monkeypatch.setattr(hunt.record, "read", lambda root: "an assignment")
    assert hunt.main(["5", "--course"]) == 2
