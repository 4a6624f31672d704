"""What a submission does not bear is found by asking the case again without it."""

from dataclasses import replace

import pytest
import torch

from grader.course.cases import Case
from grader.course.correctness import answer
from grader.course.inputs import build
from grader.diagnosis import isolating
from grader.diagnosis.samples import Sample

CASE = Case(3, "robust", 40, D=16, HQ=2, HKV=2, B=2, family="shift+", layout="transposed")


def wrong_where(condition):
    """answer(case) of a submission that is wrong where the condition holds."""
    def asked(case):
        built = build(case, 1)
        o = answer(built, "cpu").tiled["o"].clone()
        return Sample.of(built, {"o": -o if condition(case) else o}, "cpu")
    return asked


@pytest.mark.parametrize("condition, id", [
    (lambda c: "transposed" in c.layout, "strides"),
    (lambda c: c.layout == "transposed" or c.layout.endswith(".transposed"), "strides-of-v"),
    (lambda c: c.family == "shift+", "large-scores"),
    (lambda c: c.dtype != torch.float32, "float32"), (lambda c: c.B > 1, "batch"),
    (lambda c: c.N % 64 > 0, "length"), (lambda c: c.D < 32, "width")])
def test_the_one_thing_is_found_and_its_hint_given(condition, id):
    things = isolating.isolate(CASE, wrong_where(condition), ["o"])
    assert [thing.id for thing in things] == [id]
    assert isolating.in_words(things) == (f"The same case passes {things[0].right}.",
                                          things[0].hint)


def test_what_is_barely_right_without_a_thing_is_not_isolated_by_it():
    def asked(case):
        sample = wrong_where(lambda c: c.dtype != torch.float32)(case)
        near = {name: replace(verdict, fro=0.9 * verdict.fro_limit)
                for name, verdict in sample.verdicts.items()}
        return sample if sample.wrong else Sample(sample.built, sample.got, sample.exact, near)
    assert isolating.isolate(CASE, asked, ["o"]) == []


def test_two_things_together_are_said_without_a_hint():
    things = isolating.isolate(CASE, wrong_where(lambda c: c.B > 1 and c.D == 16), ["o"])
    assert [thing.id for thing in things] == ["width", "batch"]
    observed, hint = isolating.in_words(things)
    assert ", and also " in observed and not hint


def test_two_things_that_say_more_together_have_a_hint_of_their_own():
    things = [next(thing for thing in isolating.THINGS if thing.id == id)
              for id in next(iter(isolating.BOTH))]
    assert isolating.in_words(things)[1] == isolating.BOTH[tuple(thing.id for thing in things)]
    assert not isolating.in_words(things[:1] * 2)[1]


def test_what_is_wrong_in_every_way_is_isolated_by_nothing():
    assert isolating.isolate(CASE, wrong_where(lambda c: True), ["o"]) == []
    assert isolating.in_words([]) == ("", "")


def test_what_is_right_with_numbers_around_it_reads_what_it_should_not():
    case = replace(CASE, layout="guarded")
    assert isolating.isolate(case, wrong_where(lambda c: False), ["o"]) == [isolating.SURROUNDINGS]
    case = replace(CASE, layout="dense")
    assert isolating.isolate(case, wrong_where(lambda c: False), ["o"]) == [isolating.NUMBERS]


def test_a_case_that_fails_there_isolates_nothing():
    assert isolating.isolate(CASE, lambda case: None, ["o"]) == []
