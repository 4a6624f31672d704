"""Cases from the contract: every pair of classes meets, within budgets, inside what is promised."""

import dataclasses
import itertools
import random

import pytest
import torch

from grader.course import case_table, contract, inputs
from grader.course.stages import STAGES

TILES = {16, 64}


def cases(number: int, claimed: frozenset[str] | None = None, seed: int = 0):
    return contract.cases(STAGES[number], TILES, claimed, seed)


def test_the_table_is_what_the_tool_makes_of_the_classes():
    pytest.importorskip("covertable")
    from tools import contract_cases

    assert contract_cases.made(STAGES[2]) == list(contract.rows(2)), \
        "python -m tools.contract_cases > grader/course/contract.tsv"


@pytest.mark.parametrize("number", [7, 9])
def test_windows_and_sinks_that_cross_borders_meet_in_every_way(number):
    pytest.importorskip("covertable")
    from tools.contract_cases import COARSE

    for triple in itertools.product(*COARSE.values()):
        assert any(tuple(row[name] for name in COARSE) == triple for row in contract.rows(number))


@pytest.mark.parametrize("number", STAGES)
def test_every_row_may_be_and_is_of_known_classes(number):
    of = contract.classes(STAGES[number])
    rows = contract.rows(number)
    assert rows and all(row.keys() == of.keys() and contract.allowed(row) for row in rows)
    assert all(said in of[name] for row in rows for name, said in row.items())
    assert len(rows) <= (60 if STAGES[number].differentiates else 42)


@pytest.mark.parametrize("number", STAGES)
def test_every_pair_that_may_meet_is_in_a_row(number):
    of, dice = contract.classes(STAGES[number]), random.Random(0)
    apart = {frozenset(pair) for names in contract.APART
             for pair in itertools.combinations(names, 2)}
    rows = contract.rows(number)
    for a, b in itertools.combinations(of, 2):
        if frozenset((a, b)) in apart:
            continue
        for pair in itertools.product(of[a], of[b]):
            if any((row[a], row[b]) == pair for row in rows):
                continue
            others = ({name: dice.choice(said) for name, said in of.items()} | dict(
                zip((a, b), pair, strict=True)) for _ in range(2000))
            assert not any(map(contract.allowed, others)), (a, b, pair)


@pytest.mark.parametrize("number", STAGES)
def test_a_file_that_claims_nothing_is_asked_what_the_assignment_promises_alone(number):
    stage = STAGES[number]
    asked = {case for seed in range(50) for case in cases(number, frozenset(), seed)}
    assert not any(case.kinds for case in asked)
    asked |= {case for device in ("cpu", "cuda")
              for case in case_table.listed(number, device, device == "cuda")
              if case.group != "beyond" and not case.course}
    for case in asked:
        assert case.D in (16, 32, 64, 128) and (case.dtype != torch.float32 or case.D <= 64)
        assert not case.sink_logits and not case.bare
        assert stage.differentiates or not case.grads
        call = inputs.build(dataclasses.replace(case, N=5, M=3, NK=None), 0).call
        for name in call.inputs:
            assert as_sent(call, name).stride()[-1] == 1
        if not stage.sums_rows:  # the given wrapper stores o with q's strides
            q = as_sent(call, "q")
            own = zip(q.shape, q.stride(), torch.empty_like(q).stride(), strict=True)
            assert all(size == 1 or stride == of_o for size, stride, of_o in own)
        if stage.differentiates:
            assert case.dout in ("dense", "transposed", "expanded", "shared", "large", "loud")
            assert case.is_causal and call.between[1]["is_causal"]  # which the wrapper asserts


def all_kinds(number: int) -> frozenset[str]:
    asked = [*case_table.listed(number, "cpu", False), *cases(number)]
    return frozenset().union(*(case.kinds for case in asked))


@pytest.mark.parametrize("number", STAGES)
def test_a_file_that_claims_every_kind_is_asked_as_one_with_markers(number):
    every = all_kinds(number)
    for row in contract.rows(number):
        case = contract.case_of(STAGES[number], row, TILES, every)
        if number != 1 or row["family"] not in contract.FAR_OFF:
            assert case == contract.case_of(STAGES[number], row, TILES)


@pytest.mark.parametrize("number", STAGES)
def test_each_kind_is_asked_only_where_it_is_claimed(number):
    every = all_kinds(number)
    for kind in every:
        without = {case for seed in range(5) for case in cases(number, every - {kind}, seed)}
        assert not any(kind in case.kinds for case in without), kind


def as_sent(call, name: str) -> torch.Tensor:
    sent = call.inputs[name]
    return sent.storage.as_strided(sent.shape, sent.stride, sent.offset)


@pytest.mark.parametrize("number", STAGES)
def test_names_tell_the_cases_apart_and_lead_back_to_them(number):
    asked = cases(number, seed=5)
    assert len({case.name for case in asked}) == len(asked)
    for case in asked:
        assert contract.named(STAGES[number], case.name) == case
    for name in ("robust/nobody", "robust/N64", "standard/H1-N64-D16-float16", "", "robust/-"):
        assert contract.named(STAGES[number], name) is None


def test_borders_lie_where_the_tiles_of_the_file_do():
    row = contract.rows(6)[0] | {"length": "2T", "window": "T+1", "tile": "largest"}
    for tiles, tile in (((16, 32), 32), ((128,), 128), ((), 64), ((16,), 32)):
        case = contract.case_of(STAGES[6], row, tiles)
        assert (case.N, case.window) == (2 * tile, tile + 1)
    assert contract.case_of(STAGES[6], row | {"tile": "another"}, [64]).N == 256
    assert contract.case_of(STAGES[6], row | {"tile": "smallest"}, [64, 16]).N == 64


def test_all_sinks_and_a_huge_window_lie_past_every_length():
    row = contract.rows(7)[0] | {"sinks": "all", "window": "huge"}
    case = contract.case_of(STAGES[7], row, TILES)
    assert case.sinks > case.N and case.window == 2**31 - 1


def test_what_costs_most_is_asked_last_and_lengths_stay_short():
    for number in STAGES:
        asked = cases(number)
        assert asked[-1].N * asked[-1].B * asked[-1].HQ >= asked[0].N * asked[0].B * asked[0].HQ
        assert max(case.N for case in asked) <= 769


def test_two_further_cases_hang_on_the_seed_alone():
    first, again, other = (contract.drawn(STAGES[7], seed) for seed in (1, 1, 2))
    assert first == again != other and len(first) == contract.DRAWN
    assert all(map(contract.allowed, first))


def test_the_example_of_a_red_step_is_moved_to_the_borders_of_the_file():
    example = {"N": 97, "window_size": 20, "sink_size": 5, "BLOCK_N": 16, "BLOCK_M": 32}
    made = contract.aimed(STAGES[9], example, {64}, 3, compiled=False)
    assert 10 < len(made) <= contract.AIMED
    causal = {(case.N, case.window, case.sinks) for case in made if case.is_causal}
    assert {(97, 20, 5), (257, 68, 5)} <= causal <= {(97, 20, 5), (257, 68, 5), (513, 132, 5)}
    assert len({case.D for case in made}) > 2
    compiled = contract.aimed(STAGES[9], example, {64}, 3, compiled=True)
    assert {case.D for case in compiled} == {64, 128}
    for case in made:
        assert contract.named(STAGES[9], case.name) == case


def test_an_example_with_a_d_below_the_tile_has_nan_beside_every_row():
    example = {"N": 40, "start": 16, "D": 10, "BLOCK_D": 16}
    made = contract.aimed(STAGES[5], example, {32, 64}, 3, compiled=False)
    assert any(case.D == 17 and case.layout.endswith("wide.wide") and case.N > 64 for case in made)


@pytest.mark.parametrize("number", STAGES)
def test_an_example_without_borders_gives_cases_too(number):
    made = contract.aimed(STAGES[number], {}, (), 3, compiled=False)
    assert made and all(case.by_contract for case in made)


def test_tiles_are_numbers_under_a_name_that_says_so():
    arguments = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_SIZE": 16, "D": 128, "N": 64,
                 "TILE": 48, "num_warps": 16, "BLOCK_D": 32, "ROWS": True}
    assert contract.tiles_of(arguments.items()) == {64, 32, 16}
