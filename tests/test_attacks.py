"""A share of the catalogue that needs no GPU ends as it must, and the catalogue is whole."""

import json
import os
import re
import tempfile
import tomllib
from dataclasses import replace

import pytest

from attacks.catalogue import HERE, KINDS, ROOT, Attack, attacks, from_file
from attacks.run import fires, run
from grader.assignment import submission

ALL = attacks()


# `make attacks` runs all of them, which takes the better part of an hour on two cores.
SHARE = {"mutants": 47, "unfinished": 29, "dishonest": 11, "destructive": 12, "honest": 12}
WITHOUT_GPU = [attack for attack in ALL if attack.device != "cuda"]
CHOSEN = [attack for kind, every in SHARE.items()
          for attack in [one for one in WITHOUT_GPU if one.kind == kind][::every]]


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.parametrize("attack", CHOSEN, ids=lambda attack: f"{attack.kind}/{attack.name}")
def test_a_share_of_the_catalogue_ends_as_it_must_without_a_gpu(attack):
    outcome = run(attack, "cpu", seed=0)
    assert not outcome.problem, f"{attack.tries}: {outcome.problem}, got {outcome.got}"


def test_the_catalogue_is_as_large_as_it_says():
    kinds = {kind: [attack for attack in ALL if attack.kind == kind] for kind in KINDS}
    assert len(kinds["dishonest"]) >= 30 and len(kinds["destructive"]) >= 20
    assert len(kinds["honest"]) >= 15 and {attack.stage for attack in kinds["honest"]} == \
        set(range(1, 10))
    assert len(kinds["unfinished"]) >= 60
    live = [attack for attack in kinds["mutants"] if attack.outcomes != ("pass",)]
    assert len(live) > 100
    for stage in range(1, 10):
        assert sum(attack.stage == stage for attack in live) >= 12
        assert sum(attack.stage == stage for attack in kinds["unfinished"]) >= 5


def test_a_dishonest_file_must_get_one_thing_and_never_a_pass():
    for attack in attacks(("dishonest",)):
        assert "pass" not in attack.outcomes, attack.name
        # Whether a submission may read the checkout is the machine's: where its Python lies.
        reads_it = attack.id in ("solution_imported", "reference_imported")
        assert len(attack.outcomes) == 1 or attack.device == "cuda" or reads_it, attack.name


@pytest.mark.parametrize(("based", "marked", "got", "heard", "it_did"), [
    (False, False, "rejected", False, True),  # right numbers, by forbidden means
    (False, False, "wrong", False, False),  # so is a file of zeros
    (False, False, "crashed", False, False),
    (True, False, "crashed", False, True),  # the solved file does not
    (True, False, "pass", False, False),
    (False, True, "wrong", True, True),
    (True, True, "rejected", False, False),  # what it is about was never called
])
def test_when_an_attack_took_place(based, marked, got, heard, it_did):
    attack = Attack("dishonest", "x", 3, "tries", b"", ("wrong",), based=based, marked=marked)
    assert fires(attack, got, heard) == it_did


@pytest.mark.interpreter
@pytest.mark.parametrize(("name", "now", "then"), [
    ("plan_null", b'_replies("trace")', b'_replies("evidence")'),  # as the field was called before
    pytest.param("channel_send_replaced", b'if "trace" in', b'if "evidence" in',
                 marks=pytest.mark.slow),
])
def test_an_attack_that_no_longer_takes_place_is_told(name, now, then):
    attack = from_file(HERE / "dishonest" / f"{name}.py")
    assert now in attack.source and not run(attack, "cpu", seed=0).problem
    late = replace(attack, source=attack.source.replace(now, then))
    assert run(late, "cpu", seed=0).problem == "the attack did not take place"


def test_an_unfinished_file_may_neither_pass_nor_be_accused():
    for attack in attacks(("unfinished",)):
        assert set(attack.outcomes) <= {"wrong", "crashed", "not_started"}, attack.name


def test_names_are_unique_and_every_entry_says_what_it_tries():
    names = [(attack.kind, attack.name) for attack in ALL]
    assert len(set(names)) == len(names)
    assert all(attack.tries for attack in ALL)


def test_a_mutant_whose_text_is_gone_is_an_error(monkeypatch):
    from attacks import catalogue

    path = HERE / "mutants" / "stage_3.toml"
    row = tomllib.loads(path.read_text("utf-8"))["mutant"][0]
    with pytest.raises(ValueError, match="want 1 of"):
        catalogue._mutant(3, {**row, "old": "no such text", "count": 1}, "source")


def test_a_step_is_left_blank_or_written_anew():
    from attacks import catalogue

    solved = "a = 0\n    # BEGIN SOLUTION 3.1\n    b = 1\n    c = 2\n    # END SOLUTION 3.1\n"
    row = {"id": "x", "breaks": "y"}
    blank = catalogue._mutant(3, row | {"steps": {"3.1": ""}}, solved, "unfinished")
    assert submission.blank_steps(blank.source.decode()) == ("3.1",)
    text = "\nif a:\n    b = 3"
    anew = catalogue._mutant(3, row | {"steps": {"3.1": text}}, solved, "unfinished")
    assert anew.source.decode() == solved.replace("    b = 1\n    c = 2\n",
                                                  "    if a:\n        b = 3\n")
    with pytest.raises(ValueError, match="want steps of the file; got 3.2"):
        catalogue._mutant(3, row | {"steps": {"3.2": ""}}, solved, "unfinished")


def test_a_file_follows_its_solved_file_and_then_its_pieces():
    source = from_file(HERE / "dishonest" / "backward_copied_by_kernels.py").source.decode()
    assert source.startswith((ROOT / "problem_8.py").read_text("utf-8"))
    places = [source.index(f"def {name}(") for name in ("flash_attention_gqa", "_copied", "_naive",
                                                        "_made")]
    assert places == sorted(places)
    compile(source, "problem_8.py", "exec")


def test_every_piece_is_shared():
    heads = [re.search(r"^# with: (.+)$", path.read_text("utf-8"), re.MULTILINE)
             for path in HERE.glob("d*/*.py")]
    named = [name for head in heads if head for name in head[1].split(", ")]
    pieces = {path.stem for path in (HERE / "pieces").glob("*.py")}
    assert set(named) == pieces and all(named.count(name) > 1 for name in pieces)


def test_an_entry_without_an_outcome_is_an_error():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write('"""Tries something."""\n# stage: 3\n')
        with pytest.raises(ValueError, match="want a docstring, stage and outcome"):
            from_file(HERE / path)


@pytest.mark.parametrize("text", ["3/2", "0/2", "2", "1/x"])
def test_a_share_that_is_none_is_refused(text, capsys, monkeypatch):
    from attacks import __main__ as catalogue

    monkeypatch.setattr("sys.argv", ["attacks", "--share", text])
    with pytest.raises(SystemExit):
        catalogue.main()
    assert f"want I/N with 1 <= I <= N, e.g. 2/4; got {text}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_catalogue_that_was_cut_short_goes_on_and_its_margins_are_read(tmp_path, capsys,
                                                                         monkeypatch):
    from attacks import __main__ as catalogue
    from attacks import margin

    file = tmp_path / "results.jsonl"
    words = ["attacks", "--kind", "honest", "--kind", "mutants", "--stage", "1", "--only",
             "problem_1", "--jobs", "1", "--results", str(file)]
    monkeypatch.setattr("sys.argv", [*words, "--limit", "0"])
    assert catalogue.main() == 0 and not file.exists()
    assert "0 of 1 runs on cpu" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*words, "--share", "2/2"])
    assert catalogue.main() == 0
    assert "0 of 0 runs on cpu" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*words, "--share", "1/2"])
    assert catalogue.main() == 0
    assert "1 of 1 runs on cpu" in capsys.readouterr().out
    row = json.loads(file.read_text())
    assert row["got"] == "pass" and row["errors"] and max(row["errors"].values()) < 1
    assert catalogue.main() == 0
    assert "0 of 0 runs on cpu" in capsys.readouterr().out
    case = next(iter(row["errors"]))
    wrong = row | {"kind": "mutants", "name": "m", "want": ["wrong"], "errors": {case: 2.5}}
    with open(file, "a", encoding="utf-8") as more:
        print(json.dumps(wrong), file=more)
    monkeypatch.setattr("sys.argv", ["margin", str(file)])
    margin.main()
    told = capsys.readouterr().out
    assert "cpu: 2 runs" in told and "2.50" in told
    assert "stage 1: the subtlest mutant, m, is 2.50 times over a limit" in told
