"""Autotuned kernels in a worker without a GPU: any configuration, and run as if it was timed."""

import pytest
import torch

from grader.course.cases import Case
from grader.course.inputs import build
from tests.sessions import X, double_call, open_session, run

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def session():
    with open_session("autotuned.py") as session:
        yield session


def in_configuration(session, entry, kernel, number, timed):
    """What y is divided by x, in that configuration; and the arguments that each run changes."""
    reply = run(session, entry, double_call(configuration=(kernel, number, timed)))
    assert reply.trace.launches == 1  # those of the clock do not count
    return (reply.outputs[0]["y"] / X)[X != 0].unique().tolist(), reply.tuned.changed


@pytest.mark.parametrize("entry", ["plain", "heuristic", "tuned_heuristic", "first_is_refused",
                                   "pruned", "adding", "second_is_wrong"])
def test_the_first_configuration_that_fits_runs_without_a_gpu(session, entry):
    reply = run(session, entry)
    assert torch.equal(reply.outputs[0]["y"], X * 2) and reply.trace.launches == 1


def test_a_reply_says_which_configurations_there_are(session):
    assert run(session, "plain").tuned.configurations["_plain"] == (
        "BLOCK=16, num_warps=4, num_stages=3", "BLOCK=4, num_warps=2, num_stages=3")


@pytest.mark.parametrize("entry, kernel, number, factor", [
    ("plain", "_plain", 1, 2), ("second_is_wrong", "_second_is_wrong", 0, 2),
    ("second_is_wrong", "_second_is_wrong", 1, 3), ("first_is_refused", "_first_is_refused", 0, 2),
    ("pruned", "_second_is_wrong", 1, 2), ("plain", "_another_kernel", 1, 2)])
def test_the_configuration_that_is_asked_for_runs_where_a_gpu_might_choose_it(
        session, entry, kernel, number, factor):
    for timed in (False, True):
        assert in_configuration(session, entry, kernel, number, timed) == ([factor], ())


@pytest.mark.parametrize("entry, factor, changed", [
    ("plain", 2, ()), ("adding", 6, ("y_ptr",)), ("reset", 2, ()), ("restored", 2, ())])
def test_a_run_for_the_clock_leaves_what_a_kernel_adds_unless_it_is_reset(
        session, entry, factor, changed):
    kernel = "_plain" if entry == "plain" else "_adding"
    assert in_configuration(session, entry, kernel, 0, True) == ([factor], changed)
    assert in_configuration(session, entry, kernel, 0, False) == ([2], ())


def test_a_persistent_kernel_has_more_work_than_programs_where_a_call_says_so():
    with open_session("persistent.py") as session:
        right = {(entry, count): torch.equal(
            run(session, entry, double_call(multiprocessors=count)).outputs[0]["y"], X * 2)
            for entry in ("double", "double_as_imported") for count in (3, 132)}
    assert right == {("double", 3): False, ("double", 132): True,
                     ("double_as_imported", 3): False, ("double_as_imported", 132): False}


def test_the_cases_of_the_contract_say_so():
    made = [build(Case(4, "robust", 64, by_contract=by_contract), 0).call
            for by_contract in (True, False)]
    assert made[0].multiprocessors < 4 and made[1].multiprocessors > 100
