"""Every mistake has a place, every step is said of something, and it is the right step."""

import itertools
import os
import tomllib

import pytest

from attacks.catalogue import HERE, ROOT, mutants
from attacks.named import names_of
from grader import submission
from grader.naming.candidates import Candidate, single
from grader.naming.gradients import GIVEN, KERNELS, ONE_P, deduce
from grader.naming.mistakes import TABLE
from grader.naming.words import WRITERS
from grader.stages import STAGES

EXPECTED = tomllib.loads((HERE / "names.toml").read_text("utf-8"))
# Planted where no one would make them, to give the numbers of a mistake that stands elsewhere.
ELSEWHERE = {(1, "copy_of_values"), (1, "mean_of_values"), (1, "tail_padded_with_zeros")}


def candidates(number: int) -> list[Candidate]:
    """All that is looked for in a stage."""
    stage = STAGES[number]
    parts = ["forward"] + ["lse"] * (number == 1)
    parts += ["backward"] * any(case.grads for case in stage.cases("cpu", False))
    return [c for part in parts for c in single(number, part)]


def steps_by_name(number: int) -> dict[str, set[str]]:
    """What may be said to be looked at: name -> steps."""
    found = {}
    for candidate in candidates(number):
        steps = STAGES[number].steps_of(candidate.places)
        found.setdefault(candidate.id, set()).update(steps)
    return found


@pytest.mark.parametrize("number", STAGES)
def test_every_step_is_said_of_some_mistake_or_of_what_was_seen(number):
    stage = STAGES[number]
    source = (ROOT / stage.filename).read_text("utf-8")
    assert list(stage.steps) == [step.id for step in submission.steps(source)]
    reached = set().union(*steps_by_name(number).values())
    asked = {name for case in stage.cases("cpu", False) for name in case.grads}
    for wrong in itertools.product((False, True), repeat=len(asked)):
        wrong = {"d_" + name: bad for name, bad in zip(sorted(asked), wrong, strict=True)}
        reached |= set(stage.steps_of(deduce(number, wrong)[1]))
    for name, places in WRITERS.items():
        if name[:2] != "d_" or name[2:] in asked:
            reached |= set(stage.steps_of(places))
    assert reached >= stage.steps.keys()


def test_places_are_those_of_a_stage():
    known = {place for stage in STAGES.values() for own in stage.steps.values()
             for place in own.split(", ")}
    for mistake in TABLE:
        for more in mistake.each:
            assert set(mistake.places(*more)) <= known, mistake.id
    seen = [GIVEN[1], *WRITERS.values(), *(p for table in (KERNELS, ONE_P) for _, p in
                                           table.values())]
    assert set().union(*seen) <= known


def test_few_steps_are_named_at_once():
    for number, stage in STAGES.items():
        for candidate in candidates(number):
            assert len(stage.steps_of(candidate.places)) <= 3, candidate


@pytest.mark.parametrize("number", STAGES)
def test_the_step_of_a_name_is_where_the_mistake_was_planted(number):
    """Of every mutant whose edit lies in steps; that of given code has none."""
    solved = (ROOT / STAGES[number].filename).read_text("utf-8")
    rows = tomllib.loads((HERE / "mutants" / f"stage_{number}.toml").read_text("utf-8"))["mutant"]
    named, wrong = steps_by_name(number), []
    for row, mutant in zip(rows, mutants(number), strict=True):
        names = [n for n in names_of(mutant, EXPECTED, "mutants") if n in named]
        true = set().union(*(planted(solved, *pair)
                             for pair in [[row["old"], row["new"]], *row.get("edits", [])]))
        steps = set().union(*(named[name] for name in names))
        if names and true and not true & steps and (number, row["id"]) not in ELSEWHERE:
            wrong.append((row["id"], names, sorted(true), sorted(steps)))
    assert not wrong


def planted(solved: str, old: str, new: str) -> set[str]:
    """The steps that hold the lines in which old and new differ."""
    before = len(os.path.commonprefix([old, new]))
    after = len(os.path.commonprefix([old[before:][::-1], new[before:][::-1]]))
    found, at = set(), solved.find(old)
    while at >= 0:
        first = solved.count("\n", 0, at + before) + 1
        last = solved.count("\n", 0, at + max(len(old) - after - 1, before)) + 1
        found |= {step.id for step in submission.steps(solved)
                  if step.first_line <= last and first <= step.last_line}
        at = solved.find(old, at + 1)
    return found
