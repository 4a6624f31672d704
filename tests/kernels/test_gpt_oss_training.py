"""Training and measuring GPT-OSS: what is logged, resumed, compared and drawn.  A tiny model."""

import json
import sys
from argparse import Namespace

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e .[gpt-oss]")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from examples.gpt_oss import gradients, measure, steps, train  # noqa: E402
from examples.gpt_oss.model import OURS, build, load  # noqa: E402
from examples.gpt_oss.text import Text, packing, read_text  # noqa: E402


def _options(out, *words):
    defaults = ["--size", "tiny", "--dtype", "float32", "--seq-len", "24", "--batch-size", "2"]
    return train.parser().parse_args([*defaults, "--out", str(out), *map(str, words)])


def _losses(out, *words):
    records = train.train(_options(out, *words), show=False)
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert records == logged
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


# ------------------------------------------------------------------- text
def test_the_text_is_real_and_a_batch_depends_on_seed_and_step_alone():
    text = Text(read_text())
    assert len(text.tokens) > 1_000_000 and b"def " in read_text()
    batch = text.batch(7, 3, 50, seed=1, device="cpu")
    assert batch.shape == (3, 50) and batch.dtype == torch.int64 and batch.max() < 256
    assert torch.equal(batch, Text(read_text()).batch(7, 3, 50, seed=1, device="cpu"))
    assert not torch.equal(batch, text.batch(8, 3, 50, seed=1, device="cpu"))
    assert not torch.equal(batch, text.batch(7, 3, 50, seed=2, device="cpu"))
    assert bytes(batch[0].tolist()) in read_text()


def test_a_text_shorter_than_a_row_is_refused():
    with pytest.raises(ValueError, match="want a text of at least 10 tokens; got 3"):
        Text(b"abc").batch(0, 1, 10, seed=0, device="cpu")


# --------------------------------------------------------------- training
def test_losses_fall_and_are_those_of_eager(tmp_path):
    ours = _losses(tmp_path / "ours", "--steps", 5, "--save-every", 0, "--lr", 0.02)
    eager = _losses(tmp_path / "eager", "--steps", 5, "--save-every", 0, "--lr", 0.02,
                    "--attn", "eager")
    limit = 1e-4 if not torch.cuda.is_available() else 1e-2  # a GPU multiplies float32 in TF32
    assert max(abs(x - y) for x, y in zip(ours, eager, strict=True)) < limit
    assert ours[-1] < ours[0]
    assert not (tmp_path / "ours" / "checkpoint.pt").exists()


def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path):
    words = ("--attn", "eager", "--save-every", 2)
    whole = _losses(tmp_path / "whole", "--steps", 5, *words)
    stopped = tmp_path / "stopped"
    _losses(stopped, "--steps", 2, *words)
    with open(stopped / "log.jsonl", "a") as log:  # a step after the last checkpoint
        print(json.dumps({"step": 3, "loss": 9.9, "ms": 1.0}), file=log)
    assert _losses(stopped, "--steps", 5, "--resume", *words) == pytest.approx(whole, abs=1e-6)


def test_a_run_is_neither_overwritten_nor_continued_with_other_settings(tmp_path, capsys):
    words = ["--attn", "eager", "--steps", "1", "--size", "tiny", "--dtype", "float32",
             "--seq-len", "16", "--out", str(tmp_path)]
    assert train.main([*words, "--resume"]) == 1
    assert "checkpoint.pt to resume from; got none" in capsys.readouterr().err
    assert train.main([*words, "--plot"]) == 0
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert "eager: loss" in capsys.readouterr().out
    assert train.main(words) == 1
    assert "want a new --out, or --resume" in capsys.readouterr().err
    assert train.main([*words, "--resume", "--seed", "1", "--steps", "2"]) == 1
    assert "got seed=1 after 0" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    with pytest.raises(train.Refused, match="want a finite loss; got (nan|inf) at step"):
        _losses(tmp_path, "--attn", "eager", "--lr", 1e30, "--steps", 9)


def test_a_pretrained_model_is_read_from_its_folder(tmp_path, device):
    model = build("tiny", "eager", dtype=torch.float32, device="cpu", seed=3)
    model.save_pretrained(tmp_path / "model")
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("To be, or not to be, that is the question. " * 9)

    options = _options(tmp_path / "out", "--model", tmp_path / "model", "--steps", 1,
                       "--text", tmp_path / "text")
    (record,) = train.train(options, show=False)
    loaded, text = train._model_and_text(options)
    assert all(torch.equal(x.cpu(), y) for x, y in
               zip(loaded.state_dict().values(), model.state_dict().values(), strict=True))
    assert text.tokens[:2].tolist() == [letters["T"], letters["o"]]
    ids = text.batch(0, 2, 24, seed=0, device="cpu")
    assert record["loss"] == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-3)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="want a folder with config.json and weights; got"):
        load(str(tmp_path), OURS, dtype=torch.float32, device="cpu")


# -------------------------------------------------------------- gradients
def test_gradients_are_as_close_to_float64_as_those_of_eager(device):
    options = Namespace(size="tiny", dtype="float32", device=device, gradient_length=40)
    result = gradients.measure(options)
    assert len(result["layers"]) == 2 * 5  # o, and the gradients of q, k, v and the sinks
    assert sum("sinks" in entry["where"] for entry in result["parameters"]) == 2
    whole = [entry["where"] for entry in result["parameters"]]
    assert "model.layers.0.mlp.router" in whole  # its weight and its bias of few numbers
    assert "model.layers.0.mlp.router.bias" not in whole
    for entry in result["layers"] + result["parameters"]:
        assert entry["accepted"], entry


@pytest.mark.gpu
def test_gradients_are_as_close_to_float64_as_those_of_eager_in_bfloat16():
    options = Namespace(size="20b-attention", dtype="bfloat16", device="cuda", gradient_length=300)
    result = gradients.measure(options)
    for entry in result["layers"] + result["parameters"]:
        assert entry["accepted"], entry


def test_wrong_gradients_are_not_accepted(device, monkeypatch):
    right = gradients.course_attention

    def wrong(module, *tensors, **options):
        o, weights = right(module, *tensors, **options)
        return o * 1.001, weights

    monkeypatch.setattr(gradients, "course_attention", wrong)
    options = Namespace(size="tiny", dtype="float32", device=device, gradient_length=20)
    assert not any(entry["accepted"] for entry in gradients.layers(options))


# ------------------------------------------------------------------ curves
def test_curves_agree_if_they_differ_by_less_than_seeds_do():
    eager = [[5.0] * 20, [5.2] * 20, [5.4] * 20]
    near = [[x + 0.1 for x in run] for run in eager]
    result = measure.compare(eager, near)
    assert result["difference"] == pytest.approx(0.1) == result["largest_difference"]
    assert result["spread"] == pytest.approx(0.2) and result["agree"]
    assert not measure.compare(eager, [[x + 0.3 for x in run] for run in eager])["agree"]


# ------------------------------------------------------------------- sweep
def _fits(limit):
    return lambda N: {"ms": 1.0 * N} if N <= limit else {"out_of_memory": True}


def test_the_sweep_stops_at_the_first_length_that_does_not_fit():
    points = list(steps.sweep(_fits(100), None, [32, 64, 128, 256], longest=0))
    assert [N for N, _ in points] == [32, 64, 128]
    assert points[-1][1] == {"out_of_memory": True}
    broken = list(steps.sweep(lambda N: {"failed": "why"}, None, [32, 64], longest=2**20))
    assert broken == [(32, {"failed": "why"})]


def test_the_search_closes_in_on_the_longest_row_that_fits():
    points = list(steps.sweep(_fits(8192), _fits(100_000), [4096, 8192], longest=2**20))
    searched = [(N, "ms" in result) for N, result in points if result.get("search")]
    assert searched == [(16384, True), (32768, True), (65536, True), (131072, False),
                        (98304, True), (114688, False), (106496, False)]
    points = list(steps.sweep(_fits(2**30), _fits(2**30), [4096], longest=16384))
    assert [N for N, _ in points] == [4096, 8192, 16384]


def test_a_length_out_of_memory_is_a_result(monkeypatch, device):
    model = build("tiny", "eager", dtype=torch.float32, device=device, seed=0)
    optimizer = train.optimizer_of(model)

    def too_much(*_, **__):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(steps, "train_step", too_much)
    text = Text(read_text())
    assert steps.try_length(model, optimizer, text, 16, 1) == {"out_of_memory": True}
    monkeypatch.setattr(steps, "train_step", lambda *_: 1 / 0)
    failed = steps.try_length(model, optimizer, text, 16, 1)
    assert failed == {"failed": "ZeroDivisionError: division by zero"}


# ----------------------------------------------------------------- results
@pytest.mark.slow
def test_one_command_measures_and_draws(tmp_path, capsys):
    words = ["--out", str(tmp_path), "--size", "tiny", "--dtype", "float32",
             "--gradient-length", "12", "--seeds", "2", "--steps", "1", "--curve-length", "12",
             "--curve-batch", "1", "--lengths", "12", "--repeats", "1", "--longest", "0",
             "--packed", "4"]
    assert measure.main([*words, "--attns", OURS]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == set(measure.PARTS)
    assert results["curves"]["agree"] and len(results["curves"]["losses"][OURS]) == 2
    for part in ("sweep", "packed"):
        (point,) = results[part]["points"]
        assert point["attn"] == OURS and point["N"] == 12 and point["ms"] > 0
    figures = ("loss.png", "steps.png", "packed.png")
    assert all((tmp_path / name).stat().st_size > 1000 for name in figures)
    table = (tmp_path / "results.md").read_text()
    assert "layers: 10 of 10 tensors accepted." in table and "| 12 |" in table
    told = capsys.readouterr().out
    assert "gradients: as expected" in told and "curves: as expected" in told


def test_a_wrong_gradient_or_curve_is_told():
    entry = {"accepted": True}
    right = {"gradients": {"layers": [entry], "parameters": [entry]}, "curves": {"agree": True}}
    assert measure._verdicts(right) == {"gradients": True, "curves": True}
    right["gradients"]["parameters"] = [entry, {"accepted": False}]
    assert measure._verdicts(right) == {"gradients": False, "curves": True}
    assert measure._verdicts({"sweep": {}}) == {}


def test_points_of_another_machine_are_not_kept():
    options = measure.parser().parse_args(["--attns", "eager"])
    old = {"settings": measure._settings(options), "points": [{"attn": "eager"}, {"attn": OURS}]}
    assert measure._others(old, "sweep", options) == [{"attn": OURS}]
    assert measure._others(None, "sweep", options) == []
    options.packed += 1  # rows of other sequences do not compare
    assert measure._others(old, "sweep", options) == [{"attn": OURS}]
    assert measure._others(old, "packed", options) == []
    old["settings"]["gpu"] = "another"
    assert measure._others(old, "sweep", options) == []


def test_what_did_not_fit_is_told_and_drawn(tmp_path):
    settings = measure._settings(measure.parser().parse_args([]))
    points = [
        {"attn": "eager", "N": 4096, "ms": 90.0, "spread_ms": 1.0, "peak_gib": 40.0},
        {"attn": "eager", "N": 8192, "out_of_memory": True},
        {"attn": "eager", "N": 6144, "ms": 200.0, "peak_gib": 90.0, "search": True},
        {"attn": "flex_attention", "N": 4096, "failed": "ValueError: no"},
        {"attn": OURS, "N": 4096, "ms": 20.0, "spread_ms": 0.1, "peak_gib": 5.0},
        {"attn": OURS, "N": 8192, "ms": 45.0, "spread_ms": 0.1, "peak_gib": 9.0},
    ]
    written = measure.draw({"sweep": {"settings": settings, "points": points}}, tmp_path)
    assert [path.name for path in written] == ["results.md", "steps.png"]
    table = written[0].read_text()
    assert "| 4096 | 90.0 ms, 40.0 GiB | failed | 20.0 ms, 5.0 GiB |" in table
    assert "| 8192 | out of memory | - | 45.0 ms, 9.0 GiB |" in table
    assert "eager: longest row that fitted 6144, shortest that did not 8192." in table


def test_results_are_kept_where_matplotlib_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    settings = measure._settings(measure.parser().parse_args([]))
    points = [{"attn": OURS, "N": 4096, "ms": 20.0, "spread_ms": 0.1, "peak_gib": None}]
    results = {"sweep": {"settings": settings, "points": points}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert measure.main(["--plot", "--out", str(tmp_path)]) == 0
    assert "pip install matplotlib, then --plot" in capsys.readouterr().out
    assert "| 4096 | 20.0 ms |" in (tmp_path / "results.md").read_text()


def test_an_attention_that_is_not_installed_is_a_point(monkeypatch, capsys):
    def missing(*_, **__):
        raise ImportError("want flash-attn-4; got none")

    monkeypatch.setattr(steps, "build", missing)
    words = "--attn x --size tiny --dtype float32 --device cpu --lengths 16 32 --repeats 1"
    assert steps.main([*words.split(), "--longest", "0"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "attn": "x", "N": 16, "failed": "want flash-attn-4; got none"}


def test_only_what_keeps_packed_sequences_apart_is_timed_packed(monkeypatch):
    monkeypatch.setattr(measure, "_child", lambda options, attn, part: [{"attn": attn}])
    options, kept = measure.parser().parse_args([]), []
    measure.sweep(options, "packed", [], kept.append)
    assert kept[-1] == {"points": [{"attn": measure.FA4}, {"attn": OURS}]}


def test_a_packed_row_is_cut_into_sequences_that_fill_it():
    packed = packing(4096, 512, "cpu")
    borders, positions = packed["cu_seq_lens_q"], packed["position_ids"][0]
    assert len(borders) == 9 and borders[-1] == len(positions) == 4096
    assert (positions == 0).nonzero().flatten().tolist() == borders[:-1].tolist()
    assert packed["max_length_q"] == borders.diff().max() == positions.max() + 1


def test_a_process_that_dies_is_a_point(monkeypatch):
    options = measure.parser().parse_args(["--attns", "eager", "--lengths", "16", "32"])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    kept = []
    measure.sweep(options, "sweep", [{"attn": OURS}], kept.append)
    died = {"attn": "eager", "failed": "exit code 1", "N": 16}
    assert kept == [{"points": [{"attn": OURS}, died]}]


def test_nothing_is_drawn_of_a_sweep_that_failed(tmp_path):
    settings = measure._settings(measure.parser().parse_args([]))
    results = {"sweep": {"settings": settings, "points": [{"attn": "x", "N": 16, "failed": "no"}]}}
    assert measure.draw(results, tmp_path) == [tmp_path / "results.md"]
    assert "| 16 | failed |" in (tmp_path / "results.md").read_text()
