"""GPT-OSS with the course's kernel in TRL's SFTTrainer: one step on packed rows and others.

Whichever way the trainer lays sequences into rows, loss and gradient of the step are those of eager
attention on each sequence alone.  Nothing is downloaded: model, tokenizer and data are made here.
"""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e .[gpt-oss]")
pytest.importorskip("trl", reason="needs TRL: pip install -e .[test]")

from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

import sink_attn  # noqa: E402

LENGTHS, WINDOW, ROW = (13, 18, 1, 24, 6, 2), 7, 32  # wrapped, they fill two rows
LIMIT = 2e-2 if torch.cuda.is_available() else 1e-4  # a GPU multiplies float32 in TF32
VOCABULARY = ["<pad>", "</s>", *map(str, range(62))]
LAYOUTS = {
    "packed": dict(packing=True, max_length=ROW),
    "padding_free": dict(padding_free=True, max_length=None),
    "padding_free_and_padded": dict(padding_free=True, max_length=None, pad_to_multiple_of=16),
    "wrapped": dict(packing=True, packing_strategy="wrapped", max_length=ROW),
    "unpacked": dict(max_length=ROW),
}

NAME = "sink_attn"
sink_attn.register()


def _model(name):
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_local_experts=2, num_experts_per_tok=2, head_dim=16, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=WINDOW, initializer_range=0.3, pad_token_id=0,
        eos_token_id=1,
    )
    return GptOssForCausalLM._from_config(config, attn_implementation=name)


def _tokenizer():
    tokens = {token: i for i, token in enumerate(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(tokens)), pad_token="<pad>", eos_token="</s>",
    )


def _trainer(name, layout, folder):
    """An SFTTrainer of one step on all sequences."""
    generator = torch.Generator().manual_seed(1)
    rows = [
        {"input_ids": torch.randint(2, 64, (n,), generator=generator).tolist(),
         # No label for the first token, which nothing predicts: Trainer counted it once.
         "completion_mask": [0] + [1] * (n - 1)}
        for n in LENGTHS
    ]
    arguments = SFTConfig(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=len(LENGTHS), bf16=False,
        use_cpu=not torch.cuda.is_available(), report_to="none", save_strategy="no",
        logging_steps=1, router_aux_loss_coef=0.0, completion_only_loss=True, **LAYOUTS[layout],
    )
    return SFTTrainer(
        model=_model(name), args=arguments, processing_class=_tokenizer(),
        train_dataset=Dataset.from_list(rows),
    )


def _sequences(batch, layout):
    """The sequences of a batch, each (1, n), and where in it their tokens are: (row, slice)."""
    positions = batch.get("position_ids")
    for row, ids in enumerate(batch["input_ids"]):
        borders = [0, len(ids)]
        if positions is not None:
            borders[:1] = (positions[row] == 0).nonzero()[:, 0].tolist()
        elif layout == "unpacked":
            borders[1] = int(batch["attention_mask"][row].sum())
        for first, end in zip(borders[:-1], borders[1:], strict=True):
            yield ids[None, first:end], (row, slice(first, end))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_is_that_of_eager_on_each_sequence_alone(layout, tmp_path):
    trainer = _trainer(NAME, layout, tmp_path)
    (batch,) = trainer.get_train_dataloader()
    sequences = list(_sequences(batch, layout))
    lengths = sorted(ids.shape[1] for ids, _ in sequences)
    if layout == "wrapped":  # TRL says nothing of what begins or ends in a row
        assert lengths == [ROW, ROW]
    else:  # one token alone may be padding, too
        assert [n for n in lengths if n > 1] == sorted(n for n in LENGTHS if n > 1)

    alone = _model("eager").to(trainer.args.device).train()
    logits = [alone(ids).logits[0] for ids, _ in sequences]
    losses = torch.cat([
        torch.nn.functional.cross_entropy(x[:-1], batch["labels"][place][1:], reduction="none")
        for x, (_, place) in zip(logits, sequences, strict=True)
    ])
    loss = losses.sum() / (batch["labels"] >= 0).sum()
    loss.backward()
    want = torch.stack([p.grad.norm() for p in alone.parameters()]).norm().item()

    inputs = {name: x for name, x in batch.items() if name != "labels"}
    got = trainer.model(**inputs).logits
    for x, (_, place) in zip(logits, sequences, strict=True):
        assert (got[place] - x).norm() < LIMIT * x.norm()
    trainer.train()
    (step,) = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert step["loss"] == pytest.approx(loss.item(), rel=LIMIT)
    assert step["grad_norm"] == pytest.approx(want, rel=LIMIT)


def test_the_lines_of_the_readme_train(tmp_path, monkeypatch):
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (lines,) = re.findall(r"^```python\n(.*?)^```$", readme, re.S | re.M)
    published = ",\n    quantization_config=Mxfp4Config(dequantize=True))"
    assert lines.count(published) == 1
    lines = lines.replace(published, ")")  # the model made here is not in MXFP4
    if not torch.cuda.is_available():  # Triton's interpreter has no bfloat16
        options = "bf16=False, use_cpu=True"
        assert lines.count("torch.bfloat16") == lines.count("packing=True") == 1
        lines = lines.replace("torch.bfloat16", "torch.float32").replace(
            "packing=True", f"packing=True, {options}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    _model("eager").save_pretrained("path/to/gpt-oss")
    _tokenizer().save_pretrained("path/to/gpt-oss")
    names = {"dataset": Dataset.from_list([{"input_ids": [2, 3, 4, 5, 6, 7]}] * 3)}
    before = _model("eager").state_dict()
    exec(compile(lines, "README.md", "exec"), names)
    model = names["model"]
    assert model.config._attn_implementation == NAME
    assert any(not torch.equal(x.cpu(), before[key]) for key, x in model.state_dict().items())
