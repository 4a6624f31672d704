"""Who is in a class, and whose a submission is, by what learning systems write."""

import pytest

from classroom import roster
from classroom.roster import Person, joined, match

ANNA = Person("Anna Anderson", "S101", "AAnderson", "Anna@X.org", also=(("sid", "U7"),))
BEN = Person("Ben Braun", "S102", "BBraun", "Ben@X.org")


def read(tmp_path, text: str, encoding="utf-8") -> list[Person]:
    (tmp_path / "roster.csv").write_bytes(text.encode(encoding))
    return roster.read(tmp_path / "roster.csv")


@pytest.mark.parametrize("text", [
    "Student,ID,SIS User ID,SIS Login ID,Section,Flash (7)\n    Points Possible,,,,,100\n"
    "\"Anderson, Anna\",101,s1,aa,A,\n",
    "Identifier,Full name,Email address,Grade\nParticipant 101,Anna Anderson,a@x,-\n",
    "ID,Vollständiger Name,E-Mail-Adresse,Status,Bewertung\n"
    "Teilnehmer/in101,Anna Anderson,a@x,Abgegeben,-\n",
    "标识号,全名,电子邮件地址,状态,成绩\n参与者101,Anna Anderson,a@x,已提交,-\n",
    "First Name,Last Name,SID,Email,Role\nAnna,Anderson,101,a@x,Student\n",
    "Name\tID\tE-Mail\nAnderson, Anna\t101\ta@x\n"])
def test_what_systems_export_is_a_roster(tmp_path, text):
    (anna,) = read(tmp_path, text)
    assert "andersonanna" in anna.keys and anna.id == "101"
    assert anna.email == ("" if "SIS" in text else "a@x")
    assert ("s1" in anna.keys, anna.login) == (("SIS" in text), "aa" * ("SIS" in text))


def test_a_roster_as_excel_saves_it(tmp_path):
    (joerg,) = read(tmp_path, "Name;ID\nJörg Müller;7\n", "cp1252")
    assert (joerg.name, joerg.id) == ("Jörg Müller", "7")


def test_ids_that_begin_alike_stay_as_they_are_in_other_tables(tmp_path):
    anna, ben = read(tmp_path, "Name,Login,Group\nAnna,abc101,1\nBen,abc102,2\n")
    assert (anna.login, ben.login, ben.name) == ("abc101", "abc102", "Ben")


def test_times_and_states_of_a_worksheet_are_kept_and_other_states_are_not(tmp_path):
    head = "Identifier,Full name,Status,Last modified (submission)\n"
    row = "Participant 101,Anna,Submitted for grading,\"Monday, 30 November 2026, 5:00 PM\"\n"
    (anna,) = read(tmp_path, head + row)
    assert (anna.status, anna.handed_in) == (
        "Submitted for grading", "Monday, 30 November 2026, 5:00 PM")
    (anna,) = read(tmp_path, "Name,Status\nAnna,enrolled\n")
    assert anna.status == ""
    (anna,) = read(tmp_path, "ID,Name,Abgabe\nTeilnehmer/in101,Anna,30.11.2026 17:00\n")
    assert (anna.status, anna.handed_in) == ("no column of that name", "30.11.2026 17:00")


@pytest.mark.parametrize(("text", "says"), [
    ("", r"want a column name \(or first name and last name\), id, login or e-mail; got nothing"),
    ("Matrikel Nr;Nachname;Vorname\n1;A;B\n", "want a column name .*; got Matrikel Nr, Nachname"),
    ("Last name,Given\nA,B\n", "want a column name .*; got Last name, Given"),
    ("name,id\n", "want a row per student; got none"),
    ("name,id\nAnderson, Anna,7\n", "want 2 cells a row; got 3 in row 2"),
    ('name,id\n"Anna,7\n', "separated by commas, semicolons or tabs"),
    ("name,id\nanna,7\nben,7\n", "want an id for one student each; got 7 twice"),
    ("name,email\nanna,A@x\nben,a@X\n", "want an email for one student each; got a@x twice"),
    ("name,id\nanna,\nanna,\n", "want each student once; got anna twice"),
    ("name,name\nanna,a\n", "want each column once; got name twice"),
    ("PK\x03\x04", "a workbook: open it in Excel or LibreOffice, and save it as CSV UTF-8"),
    ("näme\0\n", "want a table in UTF-8; got another encoding")])
def test_a_table_that_is_no_roster_says_why(tmp_path, text, says):
    with pytest.raises(ValueError, match=says):
        read(tmp_path, text, "utf-16" if "\0" in text else "utf-8")
    with pytest.raises(ValueError, match="--roster: want a table, a .csv; got .*gone.csv"):
        roster.read(tmp_path / "gone.csv")


def test_a_short_row_has_empty_cells_and_an_empty_one_is_nobody(tmp_path):
    anna, ben = read(tmp_path, "name,id,email\nanna,7\n,,\nben,8,b@x\n")
    assert (anna.email, ben.email) == ("", "b@x")


def test_the_words_of_a_name_may_come_in_any_order():
    assert Person("von der Anna, Lea").keys == {
        "vonderannalea", "derannaleavon", "annaleavonder", "leavonderanna"}


def test_capitals_on_the_rosters_side_make_no_difference():
    for number in ("s101", "anna@x.org", "u7"):
        assert match(Person("Annie", number), [ANNA, BEN]) == [ANNA]
    assert match(Person("aanderson"), [ANNA, BEN]) == [ANNA]


def test_a_name_and_a_number_that_contradict_each_other_are_two_people():
    assert match(Person("Ben Braun", "S101"), [ANNA, BEN]) == [ANNA, BEN]
    assert match(Person("Ben Braun", "S102"), [ANNA, BEN]) == [BEN]
    assert match(Person("Cleo"), [ANNA, BEN]) == []


def test_of_a_roster_and_a_gradebook_the_roster_comes_first():
    row = Person("Anna Anderson", "9001", "aa", "other@x", "today", "Draft", "tomorrow")
    anna, ben = joined([ANNA, BEN], [row])
    assert ben == BEN
    assert (anna.name, anna.id, anna.email) == (ANNA.name, ANNA.id, ANNA.email)
    assert (anna.handed_in, anna.status, anna.extension) == ("today", "Draft", "tomorrow")
    assert {value for _, value in anna.known} > {"U7", "9001", "aa"}


def test_a_roster_leaves_names_and_logins_that_it_has_not_as_they_are():
    row = Person("Novák, Jana", "5111", "jn11", "j@x", system="canvas")
    (jana,) = joined([Person(id="5111", extension="tomorrow")], [row])
    assert (jana, jana.extension, jana.system) == (row, "tomorrow", "canvas")


def test_a_roster_and_a_gradebook_with_other_logins_are_of_two_people():
    found = joined([ANNA, BEN], [
        Person("Ben B", login="bbraun"), Person("Anna Anderson", login="anna2")])
    assert {(each.name, each.login) for each in found} == {
        ("Anna Anderson", "AAnderson"), ("Ben Braun", "BBraun"), ("Anna Anderson", "anna2")}


def test_who_is_in_the_gradebook_alone_or_there_twice_stays_apart():
    cleo, twin = Person("Cleo"), Person("Anna Anderson", "9002")
    assert set(joined([ANNA, BEN], [cleo])) == {ANNA, BEN, cleo}
    assert len(joined([ANNA], [twin, Person("Anna Anderson", "9003")])) == 3
