"""What every program of a call loads and stores is noted, also what lies outside of a tensor."""

import pytest

from grader.assignment.record import ROOT
from grader.course.calls import Access, Launch
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host.processes import Worker
from grader.host.session import Session
from grader.judge.pictures import example

pytestmark = pytest.mark.interpreter


def launches(number: int, old: str = "", new: str = "", N: int = 100) -> list[Launch]:
    stage = STAGES[number]
    source = (ROOT / stage.filename).read_text("utf-8")
    assert old in source
    case = example(stage, N, grads=("q", "k", "v") * stage.differentiates)
    with Session(Worker(source.replace(old, new, 1).encode(), stage.filename, device="cpu",
                        interpret=True), 60.0) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        return session.accesses(build(case, 1).call)


def test_a_program_reads_queries_once_and_keys_tile_by_tile():
    [launch] = launches(3)
    assert launch.kernel == "_fwd_kernel" and len(launch.programs) == 2
    assert launch.tensors == {"q_ptr": (100, 64), "k_ptr": (100, 64), "v_ptr": (100, 64),
                              "o_ptr": (100, 64), "lse_ptr": (100, 1)}
    said = [(one.verb, one.tensor, one.lanes) for one in launch.programs[1]]
    first, last = (0, 63, 0, 63), (64, 99, 0, 63)
    assert said == [("load", "q_ptr", last),
                    ("load", "k_ptr", first), ("load", "v_ptr", first),
                    ("load", "k_ptr", last), ("load", "v_ptr", last),
                    ("store", "o_ptr", last), ("store", "lse_ptr", (64, 99, 0, 0))]
    assert launch.programs[1][-2].tile == (64, 127, 0, 63)


def test_the_grid_and_the_masked_tiles_are_noted():
    [launch] = launches(4, N=130)
    masked = [one.masked for one in launch.programs[0] if one.tensor == "k_ptr"]
    assert launch.grid == (3, 1, 1) and masked == [False, False, True]
    assert launch.programs[0][0].masked is None  # q is loaded outside of _attend()


def test_the_kernels_of_a_backward_are_noted_as_well():
    named = [(launch.kernel, [*launch.tensors][-1]) for launch in launches(8)]
    assert named == [("_fwd_kernel", "lse_ptr"), ("_dq_kernel", "dq_ptr"),
                     ("_dkdv_kernel", "dv_ptr")]


def test_a_store_outside_of_its_tensor_is_the_last_that_is_noted():
    [launch] = launches(3, "mask=(rows[:, None] < N) & (j < D))", "mask=j < D)")
    *_, last = launch.programs[-1]
    assert (last.verb, last.tensor, last.lanes) == ("store", "o_ptr", (64, 127, 0, 63))
    assert len(launch.programs) == 2 and last.line > 1


@pytest.mark.parametrize("found", [
    {"kernel": "k", "grid": [1], "tensors": {"q": [1, -1]}, "programs": []},
    {"kernel": "k", "grid": [-1], "tensors": {}, "programs": []},
    {"kernel": "k", "grid": [1], "tensors": {"q": [1, 1]}, "programs": [
        [["load", "q", 1, ["x"], None, None]]]},
    {"kernel": "k", "grid": [1], "tensors": [], "programs": []}, {}])
def test_what_is_no_such_note_is_refused(found):
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Launch.read(found)


def test_a_tensor_that_was_not_named_is_left_out():
    launch = Launch.read({"kernel": "k", "grid": [1], "tensors": {"q": [4, 2]}, "programs": [[
        ["load", "p", 1, [0, 1, 0, 1], None, None],
        ["load", "q", 1, [0, 3, 0, 1], [0, 1, 0, 1], None]]]})
    assert launch.programs == ((Access("load", "q", 1, (0, 3, 0, 1), (0, 1, 0, 1)),),)
