"""Grades go into the gradebooks of other systems, by their own keys, or nowhere."""

import csv
import io
import json
import re

import pytest

from classroom import __main__ as program
from classroom import store

CANVAS = """\ufeffStudent,ID,SIS Login ID,Section,Essay (11),FlashAttention (12345),Current Score
,,,,,Manual Posting,
    Points Possible,,,,10,750,(read only)
"Anderson, Anna",101,aanderson,A,7,,70
"Braun, Ben",102,bb@x.org,A,8,12,80
"Student, Test",999,,A,,,
"""
MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum grade,""" \
    """Last modified (grade),Feedback comments
Participant 4711,Anna Anderson,anna@x.org,Submitted,,750.00,-,"well, fine"
Participant 4712,Ben Braun,bb@x.org,Submitted,12.00,750.00,"Friday, 20 November 2026, 1:00 PM",
"""
RED = {"id": "2.3", "light": "wrong", "mistake": "window",
       "text": "given x:\nthe mistake: too wide.", "says": "too wide"}


def report(student: str, points: float | None, **keys: str) -> dict:
    stage = {"stage": 2, "title": "Row-Sum", "outcome": "wrong", "points": points or 0.0,
             "max_points": 750, "message": "", "detail": "", "steps": [RED], "checks": []}
    return {"format": 2, "student": student, "key": student, "id": "", "login": "", "email": "",
            "state": "graded", "points": points, "max_points": 750, "grader": "0.3.0",
            "unsettled": [] if points is not None else [2], "stages": [stage]} | keys


ANNA, BEN = report("Anna Anderson", 700.0, id="101"), report("Ben", 350.5, email="BB@x.org")


@pytest.fixture
def run(tmp_path, capsys):
    """-> exit code, what was said, the files in results that were not there before."""
    def start(graded: list[dict], *options, exported: str = ""):
        students = tmp_path / "out/students"
        students.mkdir(parents=True, exist_ok=True)
        for each in graded:
            (students / f"{each['key']}.json").write_text(json.dumps(each))
        (tmp_path / "export.csv").write_text(exported, "utf-8")
        code = program.main(["gradebook", str(tmp_path / "out"), *map(str, options)])
        assert (tmp_path / "export.csv").read_text("utf-8") == exported, "the original is untouched"
        said = capsys.readouterr()
        return code, said.out + said.err, {path.name: path.read_bytes().decode() for path in
                                           (tmp_path / "out").glob("*.csv")}
    return start


def read_as_canvas(text: str) -> dict[str, tuple[str, str]]:
    """By the rules of its importer: the header's first two cells and Section, a row of points
    possible, an empty one or one of posting policies skipped; ID -> name, grade of 12345."""
    header, *rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    assert "Student" in header[0] and "ID" in header[1] and header[3] == "Section"
    (column,) = [i for i, title in enumerate(header) if re.fullmatch(r".* \(12345\)", title)]
    return {row[1]: (row[0], row[column]) for row in rows if "Points Possible" not in row[0]
            and not all(re.fullmatch(r"\s*(Muted|Manual Posting.*)?\s*", cell) for cell in row)}


# ------------------------------------------------------------------------- Canvas
def test_of_canvas_one_column_is_filled_by_its_own_keys(run, tmp_path):
    code, said, files = run([ANNA, BEN], "--canvas", tmp_path / "export.csv", "--column",
                            "FlashAttention", exported=CANVAS)
    assert (code, said) == (0, "1 row of export.csv had another grade before: Ben (12 -> 350.50)\n"
                            f"The grades are in {tmp_path / 'out/canvas.csv'}\n")
    assert read_as_canvas(files["canvas.csv"]) == {
        "101": ("Anderson, Anna", "700.00"), "102": ("Braun, Ben", "350.50"),
        "999": ("Student, Test", "")}
    header, _, possible, *_ = csv.reader(io.StringIO(files["canvas.csv"]))
    assert header == ["\ufeffStudent", "ID", "SIS Login ID", "Section", "FlashAttention (12345)"]
    assert possible[-1] == "750", "no other grade is written back, and no points changed"


def test_who_is_on_one_side_only_is_said_and_who_is_not_settled_stays(run, tmp_path):
    graded = [report("Ben Braun", None), report("Cleo", 10.0)]
    code, said, files = run(graded, "--canvas", tmp_path / "export.csv", "--column",
                            "FlashAttention (12345)", exported=CANVAS)
    assert code == 3
    for line in ("Cleo: not in export.csv", "Anderson, Anna: not in the class",
                 "Ben Braun: no grade yet; the row in export.csv is left"):
        assert line in said
    assert read_as_canvas(files["canvas.csv"])["102"] == ("Braun, Ben", "12")


def test_points_of_another_most_are_scaled_only_if_asked(run, tmp_path):
    hundred = CANVAS.replace(",750,", ",100,")
    options = ("--canvas", tmp_path / "export.csv", "--column", "FlashAttention")
    code, said, files = run([ANNA], *options, exported=hundred)
    assert code == 2 and "want a column of 750 points; got 100: pass --scale 100" in said
    assert not files
    files = run([ANNA], *options, "--scale", "100", exported=hundred)[2]
    assert read_as_canvas(files["canvas.csv"])["101"][1] == "93.33"


def test_a_student_named_as_the_test_student_has_a_row(run, tmp_path):
    with_sis = CANVAS.replace("SIS Login ID", "SIS User ID")
    graded = [report("Test Student", 700.0), report("Anna Anderson", 1.0), report("Ben Braun", 2.0)]
    options = ("--canvas", tmp_path / "export.csv", "--column", "FlashAttention")
    code, said, _ = run(graded, *options, exported=with_sis.replace("999,,", "999,S9,"))
    assert code == 0 and "Test Student" not in said
    code, said, _ = run(graded, *options, exported=with_sis)
    assert code == 3 and "Test Student: not in export.csv" in said


def test_who_is_excused_stays_so(run, tmp_path):
    code, said, files = run([ANNA, BEN], "--canvas", tmp_path / "export.csv", "--column",
                            "FlashAttention", exported=CANVAS.replace(",12,", ",EX,"))
    assert code == 3 and "Ben: excused in export.csv" in said
    assert read_as_canvas(files["canvas.csv"])["102"][1] == "EX"


def test_a_bonus_above_the_most_is_kept_by_canvas(run, tmp_path):
    files = run([report("Ben", 800.0, id="102")], "--canvas", tmp_path / "export.csv", "--column",
                "FlashAttention", exported=CANVAS)[2]
    assert read_as_canvas(files["canvas.csv"])["102"][1] == "800.00"


def test_names_may_stand_in_two_columns(run, tmp_path):
    two = "LastName,FirstName,ID,Section,FlashAttention (12345)\n    Points Possible,,,,750\n" \
        "Anderson,Anna,101,A,\nBraun,Ben,102,A,\n"
    graded = [ANNA, report("Ben Braun", 350.5)]
    code, said, files = run(graded, "--canvas", tmp_path / "export.csv", exported=two)
    assert code == 0, said
    assert files["canvas.csv"].splitlines()[2:] == [
        "Anderson,Anna,101,A,700.00", "Braun,Ben,102,A,350.50"]


@pytest.mark.parametrize(("system", "exported"), [("canvas", CANVAS), ("moodle", MOODLE)])
@pytest.mark.parametrize("keys", [{"id": "5", "system": "{}"},
                                  {"login": "b5", "email": "b5@x.org"}])
def test_a_namesake_with_another_number_gets_no_grade(run, tmp_path, system, exported, keys):
    anna = report("Anna Anderson", 700.0, login="aanderson", email="anna@x.org")
    ben = report("Ben Braun", 350.5, **{key: value.format(system) for key, value in keys.items()})
    option = (f"--{system}", tmp_path / "export.csv", *(
        ("--column", "FlashAttention") if system == "canvas" else ()))
    code, said, files = run([anna, ben], *option, exported=exported)
    assert code == 3 and "Ben Braun: not in export.csv" in said
    assert ",700.00" in files[f"{system}.csv"] and "350.50" not in files[f"{system}.csv"]


# ------------------------------------------------------------------------- Moodle
def test_of_moodle_the_grade_is_filled_and_all_else_stays(run, tmp_path):
    anna = report("andersonanna", 700.0, id="4711")
    code, said, files = run([anna, BEN], "--moodle", tmp_path / "export.csv", exported=MOODLE)
    assert code == 0, said
    before, after = (list(csv.DictReader(io.StringIO(text))) for text in (
        MOODLE, files["moodle.csv"]))
    assert [row.pop("Grade") for row in after] == ["700.00", "350.50"]
    assert "1 row of export.csv had another grade before: Ben (12.00 -> 350.50)" in said
    again = run([anna, BEN], "--moodle", tmp_path / "export.csv",
                exported=files["moodle.csv"].replace("\r", ""))
    assert again[0] == 0 and "another grade" not in again[1]
    for row in before:
        del row["Grade"]
    assert after == before


def test_more_than_the_most_which_moodle_would_drop_is_the_most(run, tmp_path):
    code, said, files = run([ANNA, report("Ben Braun", 800.0)], "--moodle",
                            tmp_path / "export.csv", exported=MOODLE)
    assert code == 3 and "Ben Braun: 800.00 points, written as 750" in said
    assert ",750.00,750.00," in files["moodle.csv"]


def test_a_worksheet_in_another_language_needs_the_column(run, tmp_path):
    german = MOODLE
    for word, wort in (("Identifier", "ID"), (",Grade", ",Bewertung"),
                       ("Participant", "Teilnehmer"),
                       ("Last modified (grade)", "Zuletzt geändert (Bewertung)")):
        german = german.replace(word, wort)
    option = ("--moodle", tmp_path / "export.csv")
    assert run([BEN], *option, exported=german)[0] == 2
    german = german.replace("Maximum grade", "Bestwertung")
    option = (*option, "--column", "Bewertung")
    assert "350.50" in run([BEN], *option, exported=german)[2]["moodle.csv"]
    hundred = german.replace(",750.00,", ",100.00,")
    assert "want a column of 750 points; got 100" in run([BEN], *option, exported=hundred)[1]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize(("delimiter", "point"), [(";", ","), ("\t", "."), (",", ",")])
def test_a_table_comes_back_as_it_was_written(run, tmp_path, encoding, newline, delimiter, point):
    rows = [["Identifier", "Full name", "Grade", "Maximum grade", "Last modified (grade)"],
            ["Participant 4711", "Jürgen Groß", "", "750,00", "-"],
            ["Participant 4712", "Ben Braun", "", "750,00", "-"],
            ["Participant 4713", "Cleo Coe", "", "750,00", "-"], []]

    def table(*grades: str) -> bytes:
        for row, grade in zip(rows[1:], grades, strict=False):
            row[2] = grade
        text = newline.join(delimiter.join(
            f'"{cell}"' if delimiter in cell else cell for cell in row) for row in rows)
        return text.replace(",00", f"{point}00").encode(encoding)
    students = [report("Jürgen Groß", 70.5, id="4711"), report("Ben", 70.0, id="4712"),
                report("Cleo Coe", 71.0)]
    run(students, "--check50", tmp_path / "checks")
    export = tmp_path / "exported.csv"
    export.write_bytes(table("70,00", "", "7.1e1"))
    given = (str(tmp_path / "out"), "--moodle", str(export))
    assert program.main(["gradebook", *given]) == 0
    assert (tmp_path / "out/moodle.csv").read_bytes() == table(
        *(grade.replace(".", point) for grade in ("70.50", "70.00", "71.00")))


def test_a_gradebook_that_was_killed_is_written_again(run, tmp_path, monkeypatch):
    given = ([ANNA, BEN], "--canvas", tmp_path / "export.csv", "--column", "FlashAttention")
    replace = store.files.replace

    def killed(*words):
        replace(*words)
        raise SystemExit
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(store.files, "replace", killed)
        run(*given, exported=CANVAS)
    assert run(*given, exported=CANVAS)[0] == 0


@pytest.mark.parametrize("cell", ["1_0", "1e", "nan", "1.000,00", "٧٠", "0x10"])
def test_a_grade_that_is_no_number_is_refused(run, tmp_path, cell):
    code, said, files = run([BEN], "--moodle", tmp_path / "export.csv",
                            exported=MOODLE.replace(",12.00,", f',"{cell}",'))
    assert code == 2 and not files and f"want a column of numbers; got {cell} in row 3" in said


@pytest.mark.parametrize("id", ["4.71235E+11", "4,7E+11", "5E+12"])
def test_a_number_that_excel_shortened_is_refused(run, tmp_path, id):
    code, said, files = run([ANNA], "--canvas", tmp_path / "export.csv", "--column",
                            "FlashAttention", exported=CANVAS.replace(",102,", f',"{id}",'))
    assert code == 2 and not files and f"want numbers in full; got {id} in row 5" in said


@pytest.mark.parametrize(("doubtful", "more", "says"), [
    ([report("Ben", 1.0, id="103", login="bb@x.org")], "", "Ben: matches rows 5 and 7 of export"),
    ([report("Ben Braun", 1.0), report("B", 2.0, id="102")], "",
     "B or Ben Braun: row 5 of export.csv matches both"),
    ([report("Ben Braun", 1.0)], '"Braun, Ben",104,b4,A,,,\n', "Ben Braun: matches rows 5 and 8")])
def test_a_doubtful_student_keeps_what_is_there_and_the_others_get_their_grades(
        run, tmp_path, doubtful, more, says):
    code, said, files = run([ANNA, *doubtful], "--canvas", tmp_path / "export.csv", "--column",
                            "FlashAttention",
                            exported=CANVAS + '"Coe, Cleo",103,cc,A,1,2,3\n' + more)
    assert code == 3 and says in said
    grades = {row[1]: row[-1] for row in csv.reader(io.StringIO(files["canvas.csv"]))}
    assert grades["101"] == "700.00" and grades["102"] == "12" and grades["103"] == "2"


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(("graded", "exported", "says"), [
    ([ANNA], "", "want an exported gradebook"),
    ([ANNA], MOODLE, "got Identifier, Full name"),
    ([ANNA], CANVAS.replace("(12345)", ""), "--column: want one of Essay [(]11[)]; got Flash"),
    ([ANNA], CANVAS.replace("750", "points"), "got points"),
    ([ANNA], CANVAS + '"Ben', "want a table of values"),
])
def test_nothing_is_written_where_it_is_not_clear(run, tmp_path, graded, exported, says):
    code, said, files = run(graded, "--canvas", tmp_path / "export.csv", "--column",
                            "FlashAttention", exported=exported)
    assert code == 2 and re.search(says, said) and files == {}


def test_results_of_another_version_are_refused(run, tmp_path):
    code, said, files = run([ANNA | {"format": 1}], "--nbgrader", tmp_path / "x.csv")
    assert code == 2 and "wrote, of this version; got" in said
    assert not (tmp_path / "x.csv").exists()


# -------------------------------------------------------------------- nbgrader, check50
def test_a_table_as_nbgrader_exports_it(run, tmp_path):
    graded = [report("Anna Maria Anderson (101)", 700.0, id="101",  # there is another one
                     late_penalty=50.0),
              report("Braun, Ben", 350.5, login="=bb"), report("Cleo", None)]
    code, said, _ = run(graded, "--nbgrader", tmp_path / "new/grades.csv")
    assert code == 3 and "Cleo: no grade yet, so no row" in said
    with open(tmp_path / "new/grades.csv", newline="", encoding="utf-8") as file:
        anna, ben = csv.DictReader(file)
    assert (anna["student_id"], anna["last_name"], anna["first_name"]) == (
        "101", "Anderson", "Anna Maria")
    late = [(row["raw_score"], row["late_submission_penalty"], row["score"]) for row in (anna, ben)]
    assert late == [("750.0", "50.0", "700.0"), ("350.5", "0.0", "350.5")]
    assert (ben["student_id"], ben["last_name"], ben["score"], ben["max_score"]) == (
        "'=bb", "Braun", "350.5", "750")


def test_json_as_check50_has_it(run, tmp_path):
    assert run([ANNA, report("Cleo", None)], "--check50", tmp_path / "checks")[0] == 0
    anna, cleo = (json.loads((tmp_path / f"checks/{name}.json").read_text())
                  for name in ("Anna Anderson", "Cleo"))
    (check,) = anna["results"]
    assert set(anna) == {"slug", "results", "version"} and check["passed"] is False
    assert check["cause"] == {"rationale": "step 2.3: too wide",
                              "help": "python autograder.py --hint 2.3"}
    assert cleo["results"][0]["passed"] is None and isinstance(check["log"], list)
