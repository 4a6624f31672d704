"""What is compiled and not run: a previous value that the compiler loses is found exactly there."""

import shutil
from pathlib import Path

import pytest

import problem_7
from grader.course.case_table import listed
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host.processes import Worker
from grader.host.session import Session
from tests.sessions import SUBMISSIONS, double_call, open_session

pytest.importorskip("triton")


def test_a_lost_previous_value_is_found_once_where_the_compiler_loses_it():
    rows = (SUBMISSIONS / "previous_values.py").read_text("utf-8").splitlines()
    lost = [number for number, row in enumerate(rows, 1) if row.endswith("# lost")]
    with open_session("previous_values.py", compile_for=90) as session:
        session.load("double", None, ("x",))
        compiled = session.compile(double_call())
        found = [line for kernel in compiled for line, _ in kernel.warnings]
        again = session.compile(double_call())
    assert found == lost and len(compiled) == 14
    assert not any(kernel.warnings for kernel in again)


def _compiled(to_ptx: bool) -> list[tuple]:
    stage, case = STAGES[7], listed(7, "cuda", True)[0]
    source = Path(problem_7.__file__).read_bytes()
    with Session(Worker(source, stage.filename, device="cpu", interpret=False, compile_for=90),
                 120) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        return [(kernel.name, kernel.line, kernel.shared_bytes, kernel.warnings)
                for kernel in session.compile(build(case, 1).call, to_ptx)]


def test_as_far_as_ptx_a_kernel_has_the_same_name_line_and_shared_memory():
    assert _compiled(to_ptx=True) == _compiled(to_ptx=False) != []


@pytest.mark.parametrize("entry, compiles", [("by_libdevice", False), ("metadata_read", True)])
def test_a_known_variant_is_compiled_again_only_if_the_file_reads_it(entry, compiles, tmp_path):
    def compiled(known: dict):
        with open_session("needs_gpu.py", compile_for=90, cache=tmp_path / "cache") as session:
            session.load(entry, None, ("x",))
            return session.compile(double_call(), to_ptx=True, known=known)

    (tmp_path / "cache").mkdir()
    (first,) = compiled({})
    for left in (tmp_path / "cache").iterdir():
        shutil.rmtree(left)
    (again,) = compiled({first.hash: first.shared_bytes})
    assert (again.hash, again.name, again.line) == (first.hash, first.name, first.line)
    assert again.shared_bytes == first.shared_bytes
    assert any((tmp_path / "cache").rglob("*.ptx")) == compiles
