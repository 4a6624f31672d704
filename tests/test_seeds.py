"""Whether a seed decides a verdict: what is far from the line, near it, and right."""

from dataclasses import replace

import pytest
import torch

from attacks import seeds
from attacks.catalogue import mutants, solved

torch.set_num_threads(1)  # tests run side by side


def of_stage_2(*edits: str):
    """The solved file of stage 2 with its first text replaced by its second."""
    row_sum = solved()[1]
    return replace(row_sum, outcomes=("wrong",), source=row_sum.source.replace(
        *(text.encode() for text in edits)))


@pytest.mark.interpreter
def test_what_is_far_over_a_limit_is_asked_no_further():
    far = next(attack for attack in mutants(2) if attack.id == "w_ignored")
    _, worst, case = seeds.over_seeds((far, 50))
    assert len(worst) == 1 and worst[0] >= seeds.FAR and case.startswith("standard/")


@pytest.mark.interpreter
def test_a_right_file_is_far_below_every_limit_with_every_seed():
    _, worst, _ = seeds.over_seeds((solved()[1], 2))
    assert len(worst) == 2 and max(worst) < 0.5


@pytest.mark.interpreter
def test_products_of_the_backward_in_16_bits_are_far_wrong():
    old = "dy.to(tl.float32)[:, None] * x.to(tl.float32)"
    _, worst, case = seeds.over_seeds((of_stage_2(old, "(dy[:, None] * x).to(tl.float32)"), 4))
    assert len(worst) == 1 and worst[0] >= seeds.FAR and "faint" in case


@pytest.mark.interpreter
def test_a_verdict_that_a_seed_decides_is_said(monkeypatch, capsys):
    found = {"a": [2.0, 0.9], "b": [1.5, 1.2], "c": [30.0]}
    chosen = [replace(solved()[1], id=name, outcomes=("wrong",)) for name in found]
    monkeypatch.setattr(seeds, "attacks", lambda kinds: chosen)
    monkeypatch.setattr(seeds, "over_seeds", lambda job: (job[0], found[job[0].id], "a case"))

    class Pool:
        def __init__(self, jobs):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        imap_unordered = staticmethod(map)
    monkeypatch.setattr(seeds.multiprocessing, "get_context", lambda kind: type(
        "Context", (), {"Pool": Pool}))
    monkeypatch.setattr("sys.argv", ["seeds", "--seeds", "2"])
    assert seeds.main() == 1
    said = capsys.readouterr().out
    assert "1 of   2     0.90     2.00" in said and "2 of   2     1.20     1.50" in said
    assert "1 are 10 times over a limit; 1 get another verdict" in said
