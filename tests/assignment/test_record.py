"""Which grader it is: one name for one content."""

import shutil

import pytest

from grader.assignment import record
from grader.assignment.record import ROOT, Assignment
from grader.assignment.submission import steps


@pytest.fixture
def engine(tmp_path):
    """A small one."""
    (tmp_path / "grader/judge").mkdir(parents=True)
    (tmp_path / "grader/judge/verdict.py").write_text("right\n")
    (tmp_path / "reference.py").write_text("truth\n")
    return tmp_path


def test_the_version_changes_with_what_decides_a_verdict_and_with_nothing_else(engine):
    first = record.version(engine)
    (engine / "grader/__pycache__").mkdir()
    (engine / "grader/__pycache__/verdict.pyc").write_text("x")
    (engine / "grader/assignment.json").write_text("{}")
    (engine / "README.md").write_text("x")
    assert record.version(engine) == first
    (engine / "reference.py").write_text("another\n")
    assert record.version(engine) != first
    (engine / "reference.py").write_text("truth\n")
    (engine / "grader/judge/verdict.py").rename(engine / "grader/other.py")
    assert record.version(engine) != first


def test_the_repository_and_an_assignment_of_it_are_one_grader(tmp_path):
    shutil.copytree(ROOT / "grader", tmp_path / "grader",
                    ignore=shutil.ignore_patterns("__pycache__", "assignment.md"))
    shutil.copy(ROOT / "reference.py", tmp_path)
    assert record.version(tmp_path) == record.version()


def test_the_grader_is_all_of_its_folder_but_an_assignments_pages():
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "grader").rglob("*")
             if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"}
    assert there == set(record.engine()) - {"reference.py"}


def test_a_record_is_read_as_it_was_written():
    given = Assignment("0.2.0+1a2b", (1, 2), {"problem_1.py": "00"})
    assert record.decoded(given.encoded()) == given


@pytest.mark.parametrize("contents", [b"", b"[]", b'{"grader": 1}', b'{"stages": 3}', b"\xff"])
def test_a_damaged_record_is_refused(contents):
    with pytest.raises(ValueError):
        record.decoded(contents)


def test_a_change_of_the_same_length_is_another_version(engine):
    first = record.version(engine)
    (engine / "reference.py").write_text("trust\n")
    assert record.version(engine) != first


def test_an_assignment_is_found_in_its_folder(tmp_path):
    given = Assignment("0.2.0+1a2b", (1, 2), {"problem_1.py": "00"})
    path = tmp_path / record.RECORD
    path.parent.mkdir()
    path.write_bytes(given.encoded())
    assert record.read(tmp_path) == given


@pytest.mark.parametrize(("stage", "program"), [
    (1, "autograder.py"), (7, "autograder.py"), (8, "autograder_optional.py")])
def test_each_stage_has_its_program(stage, program):
    assert record.grader_of(stage) == program and stage in record.GRADERS[program]


def test_every_warm_up_is_listed_in_its_order():
    text = (ROOT / record.WARM_UPS).read_text("utf-8")
    assert [*record.EXERCISES] == [step.id for step in steps(text)]


def test_where_nothing_was_given_there_is_no_record():
    assert record.read(ROOT) is None
