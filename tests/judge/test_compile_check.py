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


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    """Where variants that compile are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    return tmp_path / "kept" / "flash-attention-course" / "checked" / f"{STAGE.filename}.json"


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


def test_what_compiled_before_is_not_compiled_again_unless_it_changed(tmp_path, kept):
    first, variants = compiled(tmp_path, SOLVED), kept.read_text()
    assert compiled(tmp_path, SOLVED) == first and first.outcome == "pass" and first.kernels
    assert kept.read_text() == variants
    changed = SOLVED.replace("tl.store(", "tl.store_nothing(", 1)
    assert changed != SOLVED and compiled(tmp_path, changed).outcome == "crashed"
    assert kept.read_text() == variants


def test_a_warning_comes_back_in_every_grading(tmp_path, kept):
    loop = "    for start_n in range(0, whole, BLOCK_N):\n"
    losing = SOLVED.replace(loop, f"    previous = l_i\n{loop}        m_i += 0 * previous\n"
                                  "        previous = l_i\n")
    assert SOLVED.count(loop) == 1
    first = compiled(tmp_path, losing)
    assert first.outcome == "wrong" and "loses the new value of previous" in first.message
    assert compiled(tmp_path, losing) == first and not kept.exists()
