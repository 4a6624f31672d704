"""What students hand in is taken as it is, or refused with a reason; nothing of it is unpacked."""

import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import zipfile
from datetime import UTC, datetime

import pytest

from classroom import gather as gathering
from classroom import grades
from classroom.gather import Asked, file_name, gather
from grader import starter
from grader.assignment.record import ROOT
from grader.assignment.submission import MAX_BYTES
from grader.starter import blank
from tests.classroom.classes import make

ANNA = {1: "one", 2: "two"}


def only(folder):
    """The one student of a class."""
    (student,) = gather(folder)
    return student


def zipped(path, members: dict[str, bytes | str]):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def marked(name: str, kind: int) -> zipfile.ZipInfo:
    """A member that claims to be of this kind."""
    member = zipfile.ZipInfo(name)
    member.external_attr = (kind | 0o644) << 16
    return member


# ------------------------------------------------------------------ what is taken
def test_a_folder_a_student(tmp_path):
    students = gather(make(tmp_path, {"ben": {2: "two"}, "anna": ANNA}))
    assert [student.name for student in students] == ["anna", "ben"]
    assert students[0].files == {1: b"one", 2: b"two"}


def tarred(path, members: dict[str, str | tarfile.TarInfo]):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            member = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            text = b"" if data is member else data.encode()
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return path


def test_an_archive_a_student(tmp_path):
    zipped(tmp_path / "anna.zip", {"problem_1.py": "one", "notes.txt": "x"})
    tarred(tmp_path / "ben.tar.gz", {"./problem_1.py": "one", "notes.txt": "x"})
    tarred(tmp_path / "cleo.tgz", {"work/problem_1.py": "one"})
    assert {student.name: student.files for student in gather(tmp_path)} == {
        name: {1: b"one"} for name in ("anna", "ben", "cleo")}


@pytest.mark.parametrize("name", ["dora.rar", "dora.7z", "dora.pdf", "dora"])
def test_a_file_that_is_not_read_has_a_row(tmp_path, name):
    (tmp_path / name).write_text("no")
    student = only(tmp_path)
    assert student.name == "dora"
    assert student.trouble == f"want a folder, a .zip or a .tar.gz; got {name}"


@pytest.mark.parametrize("inner", ["problem_1.py", "flash/problem_1.py", "a/b/problem_1.py"])
def test_the_files_may_lie_some_folders_below(tmp_path, inner):
    path = tmp_path / "folders" / "anna" / inner
    path.parent.mkdir(parents=True)
    path.write_text("one")
    assert only(tmp_path / "folders").files == {1: b"one"}
    zipped(tmp_path / "zips" / "anna.zip", {inner: "one"})
    assert only(tmp_path / "zips").files == {1: b"one"}


def test_what_is_in_another_folder_or_archive_alone_is_taken_and_of_two_none(tmp_path):
    make(tmp_path / "folders", {"anna": ANNA, "anna/a/b/c/d": {1: "old", 2: "two # again",
                                                               3: "three"}})
    rest = zipped(tmp_path / "rest.zip", {"w/problem_1.py": "old", "w/problem_3.py": "three"})
    make(tmp_path / "beside", {"anna": ANNA})
    (tmp_path / "beside/anna/rest.zip").write_bytes(rest.read_bytes())
    (tmp_path / "flat").mkdir()
    for name, data in (("problem_1.py", b"one"), ("problem_2.py", b"two"),
                       ("rest.zip", rest.read_bytes())):
        (tmp_path / f"flat/Anna_11_assignsubmission_file_{name}").write_bytes(data)
    for place, inner in (("folders", "a/b/c/d"), ("beside", "rest.zip/w"), ("flat", "rest.zip/w")):
        student = only(tmp_path / place)
        assert student.files == {2: b"two", 3: b"three"}
        assert student.refused == {1: "it is there twice or more, and not the same: problem_1.py, "
                                      f"{inner}/problem_1.py"}
        assert student.aside == (f"{inner}/problem_3.py was taken as problem_3.py",)


RIGHT = (ROOT / "problem_3.py").read_text("utf-8")
BLANK = blank(RIGHT)


def test_copies_with_the_same_code_are_one_file(tmp_path):
    make(tmp_path, {"anna": {3: RIGHT}, "anna/copy": {3: RIGHT + "# mine"}})
    (tmp_path / "anna/copy of problem_3.py").write_text(RIGHT, "utf-8")
    student = only(tmp_path)
    assert student.files == {3: RIGHT.encode()} and not (student.refused or student.notes)


def test_a_file_with_the_code_of_another_problem_is_taken_for_neither(tmp_path):
    make(tmp_path, {"anna": {4: RIGHT}})
    make(tmp_path, {"ben": {2: RIGHT, 3: (ROOT / "problem_2.py").read_text("utf-8")}})
    make(tmp_path, {"cleo": {3: RIGHT, 8: "def flash_attention_forward(): pass\n", 9: "x = 1"}})
    make(tmp_path, {"dora": {3: RIGHT, 4: RIGHT.replace("SOLUTION 3.1", "SOLUTION 4.1")}})
    anna, ben, cleo, dora = gather(tmp_path)
    assert not anna.files and anna.refused == {
        3: "want problem_3.py; got problem_4.py", 4: "problem_4.py has the code of problem 3"}
    assert not ben.files and ben.refused == {
        2: "problem_2.py has the code of problem 3", 3: "problem_3.py has the code of problem 2"}
    assert cleo.files.keys() == {3, 9} and cleo.refused.keys() == {4, 5, 6, 7, 8}
    assert dora.files.keys() == {3, 4}, "it has some of its own, too"


HIDDEN = [".work/problem_2.py", ".problem_2.py", "grader/problem_2.py", ".work/flash.py",
          "__pycache__/problem_2.cpython-313.pyc", ".ipynb_checkpoints/problem_2-checkpoint.py"]


@pytest.mark.parametrize("name", [*HIDDEN, ".git/HEAD", "site-packages/torch/problem_2.py"])
@pytest.mark.parametrize("pack", ["folder", "zip"])
def test_who_sent_nothing_that_can_be_taken_has_not_handed_in_nothing(tmp_path, name, pack):
    text = (ROOT / "problem_2.py").read_text("utf-8")
    for student, more in (("anna", {}), ("ben", {"problem_1.py": "one"})):
        files = {name: text, "__MACOSX/._problem_2.py": "x", ".DS_Store": "x", **more}
        if pack == "zip":
            zipped(tmp_path / f"in/{student}.zip", files)
            continue
        for file, contents in files.items():
            path = tmp_path / "in" / student / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents)
    anna, ben = gather(tmp_path / "in")
    assert "no problem_1.py ... problem_9.py is in it, but " in anna.trouble
    assert name.split("/")[0] in anna.trouble and not anna.files
    assert ben.files == {1: b"one"}
    assert ben.refused == ({2: f"want problem_2.py; got {name}"} if name in HIDDEN else {})


def test_what_a_system_added_is_not_handed_in_and_an_empty_archive_is(tmp_path):
    for folder in ("anna/__MACOSX", "anna/work"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (".DS_Store", "desktop.ini", "__MACOSX/._problem_1.py"):
        (tmp_path / "anna" / name).write_text("x")
    zipped(tmp_path / "ben.zip", {"__MACOSX/._problem_1.py": "x"})
    zipped(tmp_path / "cleo/work.zip", {})
    anna, ben, cleo = gather(tmp_path)
    assert anna.is_nothing and ben.trouble == "ben.zip has no files in it"
    assert cleo.trouble.endswith("is in it, but work.zip")


@pytest.mark.parametrize(("beside", "file", "refused"), [
    ({"flash attention.py": RIGHT}, RIGHT, ""), ({"final/attention_v2.py": RIGHT}, RIGHT, ""),
    ({"problem_3.py": BLANK, "solved/problem_3.py": RIGHT}, None, "not the same"),
    ({"problem_3.py": BLANK, "solved/flash.py": RIGHT}, None, "not the same"),
    ({"problem_3.py": BLANK, "problem_3_final.py": RIGHT}, None, "not the same"),
    ({"a.py": RIGHT, "b.py": BLANK}, None, "twice or more, and not the same: a.py, b.py"),
    ({"a.py": "def flash_attention_forward(): pass"}, None, "want problem_3.py; got a.py"),
    ({"rest.rar": "Rar!"}, None,
     "could not be opened: want a folder, a .zip or a .tar.gz; got rest.rar"),
    ({"rest.zip": "PK"}, None, "rest.zip: cannot read the archive"),
    ({"solution.txt": RIGHT}, None, "want problem_3.py; got solution.txt"),
    ({"utils.py": "x = 1"}, None, "want problem_3.py; got utils.py"),
    ({"report.pdf": "%PDF"}, None, "want problem_3.py; got report.pdf"),
    ({"of_2.py": (ROOT / "problem_2.py").read_text("utf-8")}, None, ""),
    ({"empty.txt": "", "README.md": "x"}, None, "")])
def test_nothing_that_may_be_a_file_is_skipped_or_chosen_by_its_content(
        tmp_path, beside, file, refused):
    make(tmp_path, {"anna": ANNA})
    for name, text in beside.items():
        (tmp_path / "anna" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "anna" / name).write_text(text, "utf-8")
    student = only(tmp_path)
    assert student.files.get(3) == (file and file.encode())
    assert refused in student.refused.get(3, "") and bool(refused) == (3 in student.refused)
    assert "empty.txt" in beside or any(name in line for name in beside for line in (
        *student.aside, *student.refused.values()))


@pytest.mark.parametrize("written", ["", "# later\n", BLANK])
@pytest.mark.parametrize("name", [
    "solution.txt", "my work.docx", "notes.odt", "problem_3.docx", "problem_3.py~", "rest.rar",
    "__pycache__/problem_3.py", ".ipynb_checkpoints/problem_3-checkpoint.py", "p3.py", ".work/a.py",
    "rest.zip"])
def test_code_beside_a_file_with_nothing_in_it_is_for_a_person(tmp_path, written, name):
    make(tmp_path, {"anna": ANNA | {3: written}})
    path = tmp_path / "anna" / name
    path.parent.mkdir(exist_ok=True)
    if name in ("my work.docx", "notes.odt"):
        zipped(path, {"content.xml" if name[-1] == "t" else "word/document.xml":
                      "<w:t>def </w:t><w:t>flash_attention_forward</w:t>(q, k, v):"})
    else:
        path.write_text("x = 1" if name == "p3.py" else RIGHT)
    student = only(tmp_path)
    assert student.files.keys() == {1, 2}
    assert student.refused[3].startswith("nothing is written in it, and its code may be in ")
    assert name in student.refused[3]


def test_a_blank_file_whose_code_has_the_name_of_another_is_for_a_person(tmp_path):
    make(tmp_path, {"anna": {1: RIGHT, 3: BLANK}})
    student = only(tmp_path)
    assert not student.files
    assert student.refused == {
        1: "problem_1.py has the code of problem 3",
        3: "nothing is written in it, and its code may be in problem_1.py"}


@pytest.mark.parametrize("name", ["photo.jpg", "Report.pdf", "my answers.txt", "utils.py"])
def test_any_file_beside_one_with_nothing_in_it_is_seen_by_a_person(tmp_path, name):
    make(tmp_path, {"anna": {3: BLANK}, "ben": {2: "two", 3: BLANK}, "cleo": {2: "two"}})
    for student in ("anna", "ben", "cleo"):
        (tmp_path / student / name).write_text("see there")
    anna, ben, cleo = gather(tmp_path, asked=Asked([2, 3]))
    blank = f"nothing is written in it, and its code may be in {name}"
    assert anna.refused == {2: f"want problem_2.py; got {name}", 3: blank}
    assert ben.refused == {3: blank} and cleo.refused == {3: f"want problem_3.py; got {name}"}
    assert not gather(tmp_path, asked=Asked([2]))[1].refused, "nothing is missing there"
    _, ben, cleo = gather(tmp_path, asked=Asked([2, 3], ["report.pdf", "*.JPG", "[mu]*"]))
    assert ben.files.keys() == {2, 3} and cleo.files.keys() == {2}
    assert not (ben.refused or cleo.refused)


def test_no_file_of_an_assignment_is_taken_for_an_answer(tmp_path):
    starter.write(starter.build(ROOT, [2, 3]), tmp_path / "in/anna")
    for name in ("site/problem_3.html", "site/index.html", "venv/bin/activate", "env/pyvenv.cfg"):
        (tmp_path / "in/anna" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in/anna" / name).write_text("the guide, or what pip installed")
    assert not only(tmp_path / "in").refused.keys() & {2, 3}


def test_who_sent_only_what_is_ignored_has_not_handed_in_nothing(tmp_path):
    make(tmp_path, {"anna": {}})
    (tmp_path / "anna/report.pdf").write_text("x")
    (student,) = gather(tmp_path, asked=Asked([2], ["report.pdf"]))
    assert student.trouble == "no problem_1.py ... problem_9.py is in it, but report.pdf"


def test_beside_a_file_with_nothing_in_it_the_ordinary_says_nothing(tmp_path):
    make(tmp_path, {"anna": {2: "two", 3: BLANK, 4: ""}, "anna/old": {3: BLANK}})
    for name in (".DS_Store", "README.md", "LICENSE", ".git/problem_3.py",
                 "__pycache__/problem_3.cpython-313.pyc", "problem_4.pyc", "submission.json",
                 ".gitignore", "site-packages/problem_3.py", "pyproject.toml", "Makefile"):
        (tmp_path / "anna" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "anna" / name).write_text(RIGHT)
    (tmp_path / "anna/problem_3.py~").write_text(BLANK)
    student = only(tmp_path)
    assert student.refused == {} and student.files.keys() == {2, 3, 4}
    assert not student.aside and student.notes == ("problem_4.py is empty",)


# ----------------------------------------------------------------------- near misses
NEAR = ["problem2.py", "problem_2 (1).py", "problem_2-1.py", "Problem_2.py",
        "problem_02.py", "problem_2.py.txt", "my problem 2.PY"]


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_that_is_the_only_one_is_taken_and_said(tmp_path, name):
    make(tmp_path / "folders", {"anna": {1: "one"}})
    (tmp_path / "folders/anna" / name).write_text("two")
    zipped(tmp_path / "zips/anna.zip", {"w/problem_1.py": "one", f"w/{name}": "two"})
    for folder, path in (("folders", name), ("zips", f"w/{name}")):
        student = only(tmp_path / folder)
        assert student.files == {1: b"one", 2: b"two"} and not student.refused
        assert student.aside == (f"{path} was taken as problem_2.py",)


def notebook(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Mine"]}, *(
        {"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells)]})


def test_a_notebook_whose_cells_make_one_file_is_that_file(tmp_path):
    make(tmp_path, {"anna": {1: "one"}})
    (tmp_path / "anna/problem_2 (final).ipynb").write_text(
        notebook("%pip install x\nimport torch", "def f():\n    return 1\n", "!ls"))
    student = only(tmp_path)
    assert student.refused == {} and student.files[2].decode().split() == [
        "import", "torch", "def", "f():", "return", "1"]


def test_what_nbconvert_made_of_a_notebook_is_graded_as_the_notebook(tmp_path):
    text = "# In[1]:\n\nget_ipython().system('pip install x')\nx = 1\nif x:\n" \
        "    get_ipython().run_line_magic('time', '')\n    get_ipython = x\n"
    make(tmp_path / "class", {"anna": {2: text}, "ben": {
        1: "one", 2: "get_ipython().run_cell_magic('bash', '', 'ls\\n')\n"}})
    anna, ben = gather(tmp_path / "class")
    assert anna.files[2].decode() == "# In[1]:\n\npass\nx = 1\nif x:\n    pass\n" \
        "    get_ipython = x\n"
    assert ben.refused == {2: "has a cell that is not Python: it begins with %%bash"}


@pytest.mark.parametrize(("text", "says"), [
    (notebook("x = 1", "%%bash\nls"), "has a cell that is not Python: code cell 2 begins with %%b"),
    (notebook("def f(:"), "makes no Python file: code cell 1: invalid syntax"),
    (notebook(), "has no code in it"), ("{", "cannot be read as a notebook"),
    ("[" * 100_000, "cannot be read as a notebook"),
    ('{"cells": 3}', "cannot be read as a notebook")])
def test_a_notebook_that_makes_no_file_says_why(tmp_path, text, says):
    make(tmp_path, {"anna": {1: "one"}})
    (tmp_path / "anna/problem_2.ipynb").write_text(text)
    assert only(tmp_path).refused[2].startswith(f"problem_2.ipynb {says}")


def test_a_near_miss_beside_the_file_is_for_a_person(tmp_path):
    make(tmp_path, {"anna": ANNA})
    (tmp_path / "anna/problem_2 (1).py").write_text("newer?")
    (tmp_path / "anna/problem_1_notes.txt").write_text("no code")
    student = only(tmp_path)
    assert student.files == {1: b"one", 2: b"two"} and student.refused == {}
    assert student.notes == ("problem_2 (1).py lies beside problem_2.py, which was taken",)


@pytest.mark.parametrize("name", ["problem_10.py", "problem.py", "problems.md", "p2.py"])
def test_other_names_are_no_near_misses(tmp_path, name):
    make(tmp_path, {"anna": ANNA})
    (tmp_path / "anna" / name).write_text("x")
    (student,) = gather(tmp_path, asked=Asked([1, 2]))
    assert student.refused == {} and student.notes == ()


# ----------------------------------------------------- what learning systems download
def test_a_flat_download_of_moodle(tmp_path):
    for file in ("problem_1.py", "problem_2.py"):
        (tmp_path / f"Ben Braun_4712_assignsubmission_file_{file}").write_text(file)
    (tmp_path / "Ben Braun_4712_assignsubmission_onlinetext_onlinetext.html").write_text("hello")
    zipped(tmp_path / "Ben Braun_4713_assignsubmission_file_submission.zip",
           {"problem_3.py": "three"})
    found = {student.name: student for student in gather(tmp_path)}
    assert found["Ben Braun (4712)"].files == {1: b"problem_1.py", 2: b"problem_2.py"}
    assert found["Ben Braun (4713)"].files == {3: b"three"}
    assert found["Ben Braun (4713)"].person.id == "4713" and len(found) == 2


@pytest.mark.parametrize("end", ["", "_"])
def test_a_download_of_moodle_in_folders(tmp_path, end):
    make(tmp_path, {f"Ben Braun_4712_assignsubmission_file{end}/work": ANNA})
    typed = tmp_path / f"Ben Braun_4712_assignsubmission_onlinetext{end}"
    typed.mkdir()
    (typed / "onlinetext.html").write_text("hello")
    student = only(tmp_path)
    assert (student.name, student.files) == ("Ben Braun", {1: b"one", 2: b"two"})


def test_a_download_of_canvas(tmp_path):
    for name in ("andersonanna_101_55101_problem_1.py", "andersonanna_101_55102_problem_2-1.py",
                 "braunben_LATE_102_55103_problem_1.py"):
        (tmp_path / name).write_text("one")
    (tmp_path / "andersonanna_101_55104_not_LATE_yet.txt").write_text("a name of her own")
    (tmp_path / "mohnmia_103_text.html").write_text("see my page")
    anna, ben, mia = gather(tmp_path, asked=Asked([1, 2]))
    assert (anna.name, anna.person.id, anna.files, anna.refused) == (
        "andersonanna", "101", {1: b"one", 2: b"one"}, {})
    assert (ben.name, ben.files) == ("braunben", {1: b"one"})
    assert ben.marked_late and not anna.marked_late
    assert mia.trouble == "no problem_1.py ... problem_9.py is in it, but text"


def test_two_files_of_which_canvas_marks_one_late_are_late(tmp_path):
    for name in ("braunben_102_55102_problem_1.py", "braunben_LATE_102_55103_problem_2.py"):
        (tmp_path / name).write_text("one")
    assert only(tmp_path).marked_late and only(tmp_path).files.keys() == {1, 2}


def test_a_download_of_canvas_that_hides_the_names(tmp_path):
    for name in ("anon_lmzFN_5500_problem_1.py", "anon_lmzFN_5501_problem_2.py",
                 "anon_x3A9q_LATE_5502_problem_2.py", "anon_Bb1_text.html"):
        (tmp_path / name).write_text("one")
    text, anna, ben = gather(tmp_path)
    assert (anna.name, anna.files, anna.returns) == (
        "anon_lmzFN", {1: b"one", 2: b"one"}, "anon_lmzFN_5500_")
    assert ben.marked_late and ben.files == {2: b"one"} and text.trouble


def test_a_download_of_moodle_with_teams(tmp_path):
    make(tmp_path, {"Team_7-Ben Braun_102_assignsubmission_file": {2: "two"},
                    "Team 12-Anna-Lena Anderson_101_assignsubmission_file": ANNA})
    assert [student.name for student in gather(tmp_path)] == ["Anna-Lena Anderson", "Ben Braun"]


# ------------------------------------------------------------------------- the roster
ROSTER = """Name;ID;Login;E-Mail
"Anderson, Anna";101;aanderson;anna@x.org
Ben Braun;102;bbraun;ben@x.org
Cleo;103;cc;cleo@x.org
"""


def listed(tmp_path, text: str = ROSTER):
    path = tmp_path / "roster.csv"
    path.write_bytes(text.encode("utf-8-sig"))
    return path


@pytest.mark.parametrize("name", ["Anna Anderson", "anderson_anna", "101", "AAnderson",
                                  "anna@x.org", "Anna Anderson_101_assignsubmission_file"])
def test_everyone_on_the_roster_has_a_row(tmp_path, name):
    make(tmp_path / "class", {name: ANNA})
    students = {student.name: student for student in gather(tmp_path / "class", listed(tmp_path))}
    assert list(students) == ["Anderson, Anna", "Ben Braun", "Cleo"]
    assert students["Anderson, Anna"].files and students["Anderson, Anna"].person.id == "101"
    cleo = students["Cleo"]
    assert not (cleo.files or cleo.refused or cleo.trouble or cleo.notes)


def test_who_is_not_on_the_roster_is_said_and_graded(tmp_path):
    make(tmp_path / "class", {"dora": ANNA})
    dora = next(each for each in gather(tmp_path / "class", listed(tmp_path)) if each.files)
    assert dora.name == "dora" and dora.notes == ("not on the roster",)


def test_a_name_and_a_number_of_two_people_are_nobodys(tmp_path):
    make(tmp_path / "class", {"Ben Braun_101_assignsubmission_file": ANNA})
    found = {student.name: student for student in gather(tmp_path / "class", listed(tmp_path))}
    assert found["Ben Braun (101)"].notes == (
        "of several on the roster: Anderson, Anna, Ben Braun",)
    for name in ("Ben Braun (102)", "Anderson, Anna"):  # who have not handed in nothing
        assert found[name].trouble == "it is not known whose it is" and not found[name].files


@pytest.mark.parametrize(("stray", "table"), [
    ("lichen_5104_70005_problem_1.py", "Student,ID,Section\nLi Chen,5103,A\n"),
    ("lichen_5104_70005_problem_1.py", "name,id\nAnna,5101\nChen Li,5103\n"),
    ("Chen Li_8104_assignsubmission_file_problem_1.py",
     "Identifier,Full name,Status\nParticipant 8103,Chen Li,No submission\n")])
def test_a_namesake_with_another_number_is_somebody_else(tmp_path, stray, table):
    if "name,id" in table:  # the roster's ids are those of the download, as Anna's shows
        (tmp_path / "anna_5101_7_problem_1.py").write_text("x")
    (tmp_path / stray).write_text("x")
    (tmp_path / "roster.csv").write_text(table)
    found = {each.person.id: each for each in gather(tmp_path, tmp_path / "roster.csv")}
    (namesake,) = [each for id, each in found.items() if id in ("5104", "8104")]
    (chen,) = [each for id, each in found.items() if id in ("5103", "8103")]
    assert namesake.files and chen.is_nothing and not chen.may_own
    assert namesake.notes == ("not on the roster, where the number, login or address is another "
                              f"one: {chen.person.name}",)


def test_a_namesake_is_found_by_name_where_numbers_are_of_two_kinds(tmp_path):
    for name in ("Chen Li_8104", "Anna_8101"):
        make(tmp_path / "class", {f"{name}_assignsubmission_file": ANNA})
    roster = listed(tmp_path, "name,id\nAnna,S1\nChen Li,S3\n")
    assert all(each.files and not each.notes for each in gather(tmp_path / "class", roster))


def test_two_submissions_of_one_person_are_refused(tmp_path):
    make(tmp_path / "class", {"Ben Braun": ANNA, "bbraun": {1: "other"}})
    found = {student.name: student for student in gather(tmp_path / "class", listed(tmp_path))}
    assert found["Ben Braun"].trouble == "it is there more than once: Ben Braun, bbraun"


def test_what_one_student_handed_in_stops_nobody_else_in_a_download(tmp_path, monkeypatch):
    for limit in ("MOST_ARCHIVE", "MOST_HANDED_IN"):
        monkeypatch.setattr(gathering, limit, 1 << 20)
    monkeypatch.setattr(gathering, "MOST_ENTRIES", 30)
    place = "{}_{}_assignsubmission_file/{}".format
    long = f"Dora_14_assignsubmission_file_{'x' * 240}.py"
    assert len(long) > 255, "longer than any file's name on a disk"
    zipped(tmp_path / "all.zip", {
        place("Anna", 11, "problem_2.py"): "two", place("Ben", 12, "problem_2.py"): "two",
        place("Ben", 12, "video.mp4"): bytes(2 << 20), place("Eve", 15, "../../x"): "x",
        place("Finn", 16, "work.zip"): bytes(2 << 20),
        "Dora_14_assignsubmission_file_problem_2.py": "two", long: "x",
        **{place("Cleo", 13, f"venv/{number}.py"): "" for number in range(40)},
        **{place(f"Student {number}", number, "problem_2.py"): "two" for number in range(20)}})
    found = {student.name: student for student in gather(tmp_path / "all.zip")}
    assert len(found) == 26
    troubles = {name: each.trouble for name, each in found.items() if each.trouble}
    assert list(troubles) == ["Cleo", "Eve", "Finn"]
    assert troubles["Cleo"] == "more than 30 files are in it"
    assert "climbs out" in troubles["Eve"] and "more than 1 MiB" in troubles["Finn"]
    assert all(each.files == {2: b"two"} for each in found.values() if not each.trouble)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("name", ["problem_3.py", "my work.py"])
def test_a_file_in_another_encoding_is_for_a_person(tmp_path, encoding, name):
    (tmp_path / "anna").mkdir()
    text = "import x\n# BEGIN SOLUTION 3.1\nx = 'größer'\n# END SOLUTION 3.1\n"
    (tmp_path / "anna" / name).write_bytes(text.encode(encoding))
    (anna,) = gather(tmp_path)
    if encoding.startswith("utf-8"):
        assert set(anna.files) == {3} and not anna.refused
    else:
        assert not anna.files and "save it as UTF-8" in anna.refused[3]


@pytest.mark.parametrize("text, words", [
    (r"{\rtf1\ansi import torch}", "RTF"), ("\n<!DOCTYPE html>\n<p>404", "an HTML page"),
    ("<HTML>", "an HTML page"), ("%PDF-1.7", "a PDF")])
def test_a_file_that_is_no_python_at_all_is_for_a_person(tmp_path, text, words):
    make(tmp_path, {"anna": {2: "two", 3: text}})
    anna = only(tmp_path)
    assert anna.files == {2: b"two"} and anna.refused == {3: f"want Python; got {words}"}


@pytest.mark.parametrize("columns", ["Student,{}\n{}", "LastName,FirstName,{}\n{}"])
def test_the_test_student_of_canvas_is_no_student(tmp_path, columns):
    for name in ("studenttest_5990_101_problem_3.py", "andersonanna_101_102_problem_3.py"):
        (tmp_path / "class").mkdir(exist_ok=True)
        (tmp_path / "class" / name).write_text("x")
    rows = '"Student, Test",5990,\n"Anderson, Anna",101,\n'
    text = columns.format("ID,Section", rows if "Student" in columns else rows.replace(
        ", ", ",").replace('"', ""))
    said = []
    (anna,) = gather(tmp_path / "class", listed(tmp_path, text), say=said.append)
    assert anna.person.id == "101" and anna.files
    (anna,) = gather(tmp_path / "class", say=said.append)
    assert said == 2 * ["not graded, as they are of Canvas's Test Student (5990): "
                        "studenttest_5990_101_problem_3.py"]


def test_a_student_named_as_the_test_student_of_canvas_is_graded(tmp_path):
    for number in (5990, 102):
        (tmp_path / f"studenttest_{number}_101_problem_3.py").write_text("x")
    text = 'Student,ID,SIS User ID,Section\n"Student, Test",5990,,\n"Student, Test",102,S2,\n'
    said = []
    (student,) = gather(tmp_path, listed(tmp_path, text), say=said.append)
    assert student.person.id == "102" and student.files and "(5990)" in said[0]
    (student,) = gather(tmp_path, listed(tmp_path, "name\nTest Student\n"))
    assert student.trouble.startswith("it is there more than once")


def test_every_number_of_a_student_finds_them(tmp_path):
    make(tmp_path / "class", {"s1234": ANNA})
    text = "Identifier,Full name,ID number,Email address,Status\n" \
        "Participant 101,Anna Anderson,S1234,a@x,-\nParticipant 102,Ben,S99,b@x,-\n"
    anna, ben = gather(tmp_path / "class", listed(tmp_path, text))
    assert anna.files and anna.person.id == "101" and not ben.files
    assert grades.one("s99", [anna, ben], "--overrides") is ben


def test_where_names_are_hidden_a_worksheet_has_numbers_only(tmp_path):
    make(tmp_path / "class", {"Teilnehmer_102_assignsubmission_file": ANNA})
    text = "ID,Status,Bewertung\n" + "".join(f"Teilnehmer/in{n},Abgegeben,-\n" for n in (101, 102))
    one, two = gather(tmp_path / "class", listed(tmp_path, text))
    assert (one.name, two.name) == ("101", "102") and two.files and not one.files


def test_gradescopes_address_finds_whom_its_number_does_not(tmp_path):
    make(tmp_path / "in", {"submission_1": ANNA})
    (tmp_path / "in/submission_metadata.yml").write_text(
        "submission_1:\n  :submitters:\n  - :name: Annie\n    :sid: '77'\n    :email: Anna@x.org\n")
    text = "Name,ID,E-Mail\nAnna Anderson,101,anna@x.org\nBen,102,ben@x.org\n"
    anna, ben = gather(tmp_path / "in", listed(tmp_path, text))
    assert anna.files and anna.person.id == "101" and not ben.files
    assert gather(tmp_path / "in")[0].person.email == "Anna@x.org"


def test_the_zip_that_gradescope_makes_is_read_as_it_is(tmp_path):
    zipped(tmp_path / "all.zip", {
        "assignment_7_export/submission_metadata.yml":
            "submission_1:\n  :submitters:\n  - :name: Anna\n    :sid: '7'\n",
        "assignment_7_export/submission_1/problem_2.py": "two"})
    (anna,) = gather(tmp_path / "all.zip")
    assert (anna.name, anna.person.id, anna.files) == ("Anna", "7", {2: b"two"})


EXPORT = """---
submission_1:
  :submitters:
  - :name: Anna Anderson
    :sid: '101'
    :email: anna@x.org
  :created_at: 2026-11-30 17:34:00.861687000 Z
  :score: 2.0
  :results:
    output: |-
      submission_2:
        :created_at: 2020-01-01 00:00:00 Z
  :history:
  - :id: 7
    :created_at: 2026-11-01 10:00:00.000000000 Z
submission_2:
  :submitters:
  - :name: Ben O'Braun
    :sid:
    :email: Ben@X.org
  - :name: 'Cleo ''C'' Coe'
    :sid: '103'
  :created_at: 2026-12-01 01:00:00.000000000 +01:00
"""


def test_an_export_of_gradescope_says_whose_a_folder_is_and_when(tmp_path):
    make(tmp_path / "in", {"submission_1": ANNA, "submission_2": {2: "two"}, "submission_3": ANNA})
    (tmp_path / "in/submission_metadata.yml").write_text(EXPORT)
    found = {student.name: student for student in gather(tmp_path / "in")}
    assert list(found) == ["Anna Anderson", "Ben O'Braun", "Cleo 'C' Coe", "submission_3"]
    assert found["Anna Anderson"].time == datetime(2026, 11, 30, 17, 34, 0, 861687, UTC)
    assert found["Cleo 'C' Coe"].time == datetime(2026, 12, 1, tzinfo=UTC)
    assert found["Cleo 'C' Coe"].files == found["Ben O'Braun"].files == {2: b"two"}
    found = {student.name: student for student in gather(tmp_path / "in", listed(tmp_path))}
    assert found["Ben Braun"].files == {2: b"two"}, "by the address"
    assert found["submission_3"].notes == ("not on the roster",)
    (tmp_path / "in/submission_metadata.yml").write_text("a: b\n")
    with pytest.raises(ValueError, match="as Gradescope exports it; got no submitters"):
        gather(tmp_path / "in")


def test_a_zip_in_a_students_folder_as_some_systems_leave_it(tmp_path):
    zipped(tmp_path / "anna_123_file" / "work.zip", {"work/problem_2.py": "two"})
    assert only(tmp_path).files == {2: b"two"}


def test_a_zip_made_on_windows(tmp_path):
    zipped(tmp_path / "anna.zip", {"work\\problem_2.py": "two"})
    assert only(tmp_path).files == {2: b"two"}


def test_an_index_names_folders_and_zips(tmp_path):
    make(tmp_path / "somewhere", {"x1": ANNA})
    zipped(tmp_path / "x2.zip", {"problem_3.py": "three"})
    index = tmp_path / "index.csv"
    index.write_text("\ufeffid;Name;PATH\n7;Müller Anna;somewhere/x1\n8;Ben;x2.zip\n9;Cleo;gone\n"
                     "10;Dora;\n")
    students = gather(index)
    found = {student.name: student for student in students}
    assert found["Müller Anna"].files[2] == b"two" and found["Ben"].files == {3: b"three"}
    assert found["Cleo"].trouble == "there is no gone"
    assert not (found["Dora"].files or found["Dora"].trouble)


@pytest.mark.parametrize("size", [MAX_BYTES, MAX_BYTES + 1, 30 << 20])
def test_a_file_that_is_too_long_is_refused_in_a_folder_as_in_an_archive(tmp_path, size):
    long = "x" * size
    make(tmp_path, {"anna": {1: long, 2: "two"}})
    zipped(tmp_path / "ben.zip", {"problem_1.py": long, "problem_2.py": "two"})
    tarred(tmp_path / "cleo.tar.gz", {"problem_1.py": long, "problem_2.py": "two"})
    for student in gather(tmp_path):
        assert student.files.keys() == ({1, 2} if size == MAX_BYTES else {2})
        assert student.refused == ({} if size == MAX_BYTES else {
            1: "want at most 256 KiB; got more"})


@pytest.mark.parametrize(("most", "cell"), [(1 << 10, "x = 1"), (16 << 20, "x = 1\n" * 60_000)])
def test_a_notebook_that_is_too_long_is_refused(tmp_path, monkeypatch, most, cell):
    monkeypatch.setattr(gathering, "MOST_NOTEBOOK", most)
    make(tmp_path, {"anna": ANNA})
    (tmp_path / "anna/problem_3.ipynb").write_text(notebook(cell, "y = 2\n" * 300))
    assert only(tmp_path).refused[3] == f"problem_3.ipynb want at most {most >> 10} KiB, and " \
        "256 KiB of code in it; got more"


# ---------------------------------------------------------------- what is refused
def link(path):
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(("put", "why"), [
    (link, "it is a link"),
    (os.mkfifo, "not a regular file"),
    (os.mkdir, "not a regular file"),
])
def test_of_a_folder_only_regular_files_are_taken(tmp_path, put, why):
    make(tmp_path, {"anna": {2: "two"}})
    put(tmp_path / "anna" / "problem_1.py")
    student = only(tmp_path)
    assert why in student.refused[1] and student.files == {2: b"two"}


def test_a_link_to_another_students_folder_is_refused(tmp_path):
    make(tmp_path, {"anna": ANNA})
    (tmp_path / "ben").symlink_to("anna")
    students = gather(tmp_path)
    assert students[1].trouble == "it is a link" and not students[1].files


def test_a_link_to_a_folder_is_not_followed(tmp_path):
    make(tmp_path, {"class/anna": {2: "two"}, "elsewhere": {1: "secret"}})
    (tmp_path / "class/anna/more").symlink_to(tmp_path / "elsewhere")
    assert only(tmp_path / "class").files == {2: b"two"}


@pytest.mark.parametrize("end", ["zip", "tar.gz"])
@pytest.mark.parametrize("name", ["../problem_1.py", "/problem_1.py", "a/../../problem_1.py",
                                  "..\\problem_1.py", "../../notes.txt", "C:/x.py"])
def test_an_archive_that_climbs_out_is_refused_whole(tmp_path, end, name):
    pack = zipped if end == "zip" else tarred
    pack(tmp_path / f"anna.{end}", {"problem_2.py": "two", name: "one"})
    student = only(tmp_path)
    assert "climbs out" in student.trouble and not student.files


def of_a_tar(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("problem_1.py")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


@pytest.mark.parametrize(("member", "why"), [
    *((marked("problem_1.py", kind), why) for kind, why in (
        (stat.S_IFLNK, "link"), (stat.S_IFCHR, "regular"), (stat.S_IFIFO, "regular"))),
    *((of_a_tar(kind), why) for kind, why in (
        (tarfile.SYMTYPE, "link"), (tarfile.LNKTYPE, "link"), (tarfile.CHRTYPE, "regular"),
        (tarfile.DIRTYPE, "regular")))])
def test_a_member_that_is_a_link_or_a_device_is_refused(tmp_path, member, why):
    if isinstance(member, zipfile.ZipInfo):
        zipped(tmp_path / "anna.zip", {member: "/etc/passwd", "problem_2.py": "two"})
    else:
        tarred(tmp_path / "anna.tar.gz", {"problem_1.py": member, "problem_2.py": "two"})
    student = only(tmp_path)
    assert why in student.refused[1] and student.files == {2: b"two"}


def test_a_member_that_lies_about_its_length_is_read_no_further_than_the_limit(tmp_path):
    path = zipped(tmp_path / "anna.zip", {"problem_1.py": bytes(8 << 20)})
    data = path.read_bytes()
    true, lie = (8 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")
    assert data.count(true) == 2  # in the member's head and in the directory
    path.write_bytes(data.replace(true, lie))
    student = only(tmp_path)
    assert len(student.files.get(1, b"")) <= 100 and (student.files or student.refused)


def test_archives_of_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "MOST_ENTRIES", 3)
    zipped(tmp_path / "anna.zip", {f"{i}.txt": "" for i in range(4)} | {"problem_1.py": "one"})
    make(tmp_path, {"ben": {i: "x" for i in range(1, 6)}})
    students = gather(tmp_path)
    assert all("more than 3 files" in student.trouble for student in students)


def with_a_wrong_checksum(data: bytearray) -> bytes:
    data[45] ^= 0xff  # in what is compressed
    return data


def encrypted(data: bytearray) -> bytes:
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return data


@pytest.mark.parametrize(("damaged", "why"), [
    *((lambda data, new=new: new, "cannot read the archive")
      for new in (b"", b"not a zip", b"PK\x03\x04" + bytes(100))),
    (lambda data: data[:-40], "cannot read the archive"),
    (with_a_wrong_checksum, "cannot unpack"), (encrypted, "it is encrypted")])
def test_a_damaged_archive_or_member_is_refused(tmp_path, damaged, why):
    path = zipped(tmp_path / "anna.zip", {"problem_1.py": "a = 1  # some text of one's own\n" * 9})
    path.write_bytes(damaged(bytearray(path.read_bytes())))
    student = only(tmp_path)
    assert why in (student.trouble or student.refused[1]) and not student.files


def test_a_file_that_is_in_the_archive_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "anna.zip", "w") as archive, pytest.warns(UserWarning):
        archive.writestr("problem_1.py", "one")
        archive.writestr("problem_1.py", "other")
    assert "twice" in only(tmp_path).refused[1]


def test_problem_files_in_two_folders_are_ambiguous(tmp_path):
    make(tmp_path, {"anna/try_1": {1: "one"}, "anna/try_2": {1: "other"}})
    zipped(tmp_path / "ben.zip", {"a/problem_1.py": "one", "b/problem_1.py": "other"})
    for student in gather(tmp_path):
        assert "twice" in student.refused[1] and not student.files


def test_two_archives_of_one_student_are_ambiguous_where_they_differ(tmp_path):
    for name in ("first", "second"):
        zipped(tmp_path / "anna" / f"{name}.zip", {"problem_1.py": name})
    assert "first.zip/problem_1.py, second.zip/problem_1.py" in only(tmp_path).refused[1]
    assert not only(tmp_path).files


def test_archives_in_archives_are_read_two_deep(tmp_path):
    inner = zipped(tmp_path / "inner" / "x.zip", {"w/problem_1.py": "one"}).read_bytes()
    for level in range(1, 4):
        inner = zipped(tmp_path / f"{level}" / "x.zip", {f"{level}/x.zip": inner}).read_bytes()
    assert only(tmp_path / "1").files == only(tmp_path / "2").files == {1: b"one"}
    assert "want at most 2 archives in each other; got more" in only(tmp_path / "3").trouble


def test_a_tar_that_unpacks_past_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "MOST_ARCHIVE", 1 << 20)
    tarred(tmp_path / "anna.tar.gz", {"problem_1.py": "one", "zeros": "0" * (2 << 20)})
    zipped(tmp_path / "ben.zip", {"x.zip": bytes(2 << 20)})
    anna, ben = gather(tmp_path)
    assert anna.trouble == "it would unpack to more than 1 MiB"
    assert ben.trouble == "x.zip has more than 1 MiB"


@pytest.mark.parametrize("name", ["anna.tar.gz", "anna.tar"])
@pytest.mark.parametrize("data", [b"", b"no tar at all" * 99, b"\x1f\x8b\x08\x00" + bytes(99)])
def test_a_damaged_tar_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert "cannot read the archive" in only(tmp_path).trouble


def test_a_name_that_is_there_twice_is_refused_and_the_others_are_not(tmp_path):
    make(tmp_path, {"anna": ANNA, "ben": ANNA})
    zipped(tmp_path / "anna.zip", {"problem_1.py": "one"})
    anna, ben = gather(tmp_path)
    assert "more than once" in anna.trouble and not anna.files and ben.files


@pytest.mark.parametrize("name", ["../anna", "a/b", "/etc", "..", "."])
def test_a_name_that_looks_like_a_path_is_graded_under_a_key_that_is_none(tmp_path, name):
    make(tmp_path, {"x": ANNA})
    (tmp_path / "index.csv").write_text(f"name,path\n{name},x\n")
    student = only(tmp_path / "index.csv")
    assert student.files and student.name == name
    assert (tmp_path / f"{student.key}.json").resolve().parent == tmp_path
    assert (tmp_path / student.key).resolve().parent == tmp_path and student.key != name


def test_a_name_that_is_not_utf_8_is_shown_escaped(tmp_path):
    folder = os.fsencode(tmp_path) + b"/anna\xff\n"
    os.mkdir(folder)
    with open(folder + b"/problem_1.py", "w") as file:
        file.write("one")
    student = only(tmp_path)
    assert student.files and student.name == "anna\\udcff\n" and student.key == "anna%FF%0A"


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_for_a_person_to_look_at(tmp_path, text):
    make(tmp_path, {"anna": {1: text, 2: "x"}})
    (anna,) = gather(tmp_path)
    assert set(anna.files) == {1, 2} and anna.notes == ("problem_1.py is empty",)
    assert not anna.aside, "her page says it with the stage"


def test_an_empty_folder_is_nothing_and_one_of_other_things_is_not_read(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "ben").mkdir()
    (tmp_path / "ben/work.py").write_text("x")
    anna, ben = gather(tmp_path)
    assert not (anna.files or anna.refused or anna.trouble)
    assert ben.trouble == "no problem_1.py ... problem_9.py is in it, but work.py"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_refused(tmp_path):
    make(tmp_path, {"anna": ANNA})
    (tmp_path / "anna").chmod(0)
    assert "Permission denied" in only(tmp_path).trouble


# ------------------------------------------------------------------- what is usage
@pytest.mark.parametrize(("name", "contents", "says"), [
    ("index.csv", b"who,path\nanna,x\n", "columns name, path"),
    ("index.csv", b"", "columns name, path"),
    ("index.csv", b"name,path\nann\x81,x\n", "UTF-8"),
    ("index.csv", b"name,path\n", "got none"),
    ("index.txt", b"name,path\nanna,x\n", "want a folder"),
])
def test_an_index_that_is_none(tmp_path, name, contents, says):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(ValueError, match=says):
        gather(tmp_path / name)


def test_every_name_has_a_file_name_of_its_own_that_stays_in_its_folder():
    names = ["anna", "Anna", "a/b", "a%2Fb", "..", ".", " ", "Łódź, Ewa", "x" * 300,
             "x" * 301, "a\nb", "a\udcffb", "con", "-rf"]
    made = [file_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(len(name.encode()) < 200 and "/" not in name and name[0] != "." for name in made)


# --------------------------------------------------------------- a student's own report
def test_the_report_beside_the_files_is_read_from_folders_and_zips(tmp_path):
    make(tmp_path, {"anna": ANNA})
    (tmp_path / "anna/submission.json").write_text("{}")
    zipped(tmp_path / "ben.zip", {"w/problem_1.py": "one", "w/submission.json": "[]"})
    zipped(tmp_path / "cleo.zip", {"w/problem_1.py": "one", "submission.json": "of others"})
    link(make(tmp_path, {"dora": ANNA}) / "dora/submission.json")
    assert [student.report for student in gather(tmp_path)] == [b"{}", b"[]", b"", b""]


def test_of_whom_something_is_refused_all_is_kept_as_it_was_handed_in(tmp_path):
    make(tmp_path, {"anna": {2: "x = 1", 3: "z"}, "ben": {2: "x"}})
    zipped(tmp_path / "anna/final.zip", {"problem_2.py": "x = 2"})
    big = bytes(gathering.MOST_KEPT)
    (tmp_path / "anna/more.bin").write_bytes(big)
    (tmp_path / "anna/problem_4.py").symlink_to("/etc/passwd")
    anna, ben = gather(tmp_path, asked=Asked([2, 3, 4]))
    assert set(anna.refused) == {2, 4} and not ben.kept
    assert anna.kept == {
        "anna/problem_2.py": b"x = 1", "anna/problem_3.py": b"z",
        "anna/final.zip": (tmp_path / "anna/final.zip").read_bytes(),
        gathering.NOT_KEPT:
            f"anna/more.bin: the sha256 of its first {len(big)} bytes is "
            f"{hashlib.sha256(big).hexdigest()}\nanna/problem_4.py: it is a link\n".encode()}
    (tmp_path / "anna.zip").write_bytes(b"no zip")
    shutil.rmtree(tmp_path / "anna")
    anna, _ = gather(tmp_path)
    assert anna.trouble and anna.kept == {"anna.zip": b"no zip"}
