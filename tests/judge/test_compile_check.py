"""Compiling beside the cases: what a file does while it is imported there."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.assignment import submission
from grader.course.stages import STAGES
from grader.host.options import Imports
from grader.host.processes import Worker
from grader.host.session import Session
from grader.judge import compile_check

pytest.importorskip("triton")
STAGE = STAGES[3]
SOLVED = (Path(__file__).parents[2] / STAGE.filename).read_text()


def compiled(folder: Path, source: str, promises_all: bool = False):
    (folder / STAGE.filename).write_text(source)
    context = SimpleNamespace(
        stage=STAGE, file=submission.read(folder, STAGE.filename, STAGE.entry),
        promises_all=promises_all,
        options=SimpleNamespace(imports=Imports(), seed=1))
    with Session(Worker(source.encode(), STAGE.filename, device="cpu", interpret=False,
                        compile_for=90), 120) as session:
        return compile_check._compile(context, session)[0]


def test_a_self_check_of_a_module_does_not_fail_on_idle_kernels(tmp_path):
    check = compiled(tmp_path, SOLVED + """
x = torch.randn(1, 2, 64, 16)
want = torch.nn.functional.scaled_dot_product_attention(x, x, x)
assert torch.allclose(flash_attention_forward(x, x, x), want, atol=1e-2)
""")
    assert check.outcome == "pass" and check.kernels


BLOCK_D = "max(16, triton.next_power_of_2(q.shape[3]))"


@pytest.mark.parametrize("promises_all, outcome", [(True, "crashed"), (False, "pass")])
def test_the_smallest_size_is_compiled_where_a_file_promises_it(tmp_path, promises_all, outcome):
    assert SOLVED.count(BLOCK_D) == 1
    check = compiled(tmp_path, SOLVED.replace(BLOCK_D, "triton.next_power_of_2(q.shape[3])"),
                     promises_all)
    assert (check.outcome, "D=8" in check.label) == (outcome, promises_all)


@pytest.mark.parametrize("place", ["at the end", "at the start"])
def test_what_only_this_import_raises_is_said_as_the_files_own(tmp_path, place):
    line = "assert 1 == 2, 'nothing was launched yet'\n"
    check = compiled(tmp_path, SOLVED + line if place == "at the end" else line + SOLVED)
    assert check.outcome == "crashed" and check.name == "compile/sm_90"
    assert "nothing was launched yet" in check.message
