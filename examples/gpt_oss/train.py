"""Train GPT-OSS on real text: python -m examples.gpt_oss.train --help.

--out receives settings.json, log.jsonl (one line per step), checkpoint.pt and loss.png (--plot).
"""

import argparse
import json
import math
import os
import sys
import time
from datetime import date
from pathlib import Path

import torch
import transformers
import triton
from tqdm import tqdm

from examples.gpt_oss import plots
from examples.gpt_oss.model import (
    DTYPES,
    OURS,
    SIZES,
    build,
    default_device,
    default_dtype,
    load,
)
from examples.gpt_oss.text import Text, read_text

MIB = 2**20
WARMUP_STEPS, CLIP = 20, 1.0  # steps until the full learning rate; largest norm of a gradient
MAY_CHANGE = ("steps", "save_every", "date", "out")  # between a run and its continuation


class Refused(Exception):
    """A sentence for the user: want ...; got ..."""


def optimizer_of(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=model.device.type == "cuda"
    )


def train_step(model, optimizer, ids: torch.Tensor, lr: float, **packing) -> torch.Tensor:
    """One forward, backward and update.

    Args:
        ids: int64 (B, N), on the model's device.
        lr: learning rate of all parameters in this step.
        packing: what else the model must know about packed rows, such as position_ids.

    Returns:
        The loss before the update, nats per token, a scalar on the device.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    loss = model(ids, labels=ids, use_cache=False, **packing).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss.detach()


def train(options, show: bool = True) -> list[dict]:
    """Run one training, or continue it.

    Args:
        options: what parser() reads.
        show: draw a progress bar on stderr.

    Returns:
        The records of log.jsonl, one dict per step: step, loss (nats per token), ms.

    Raises:
        Refused: the options do not fit the run in --out, or the loss is no longer finite.
    """
    out = Path(options.out)
    model, text = _model_and_text(options)
    settings = _settings(options, text)
    first, records, optimizer = 0, [], optimizer_of(model)
    if options.resume:
        first, records = _resume(out, settings, model, optimizer)
    elif (out / "checkpoint.pt").exists():
        raise Refused(f"want a new --out, or --resume; got {out}, which holds a checkpoint")
    out.mkdir(parents=True, exist_ok=True)
    write(out / "settings.json", json.dumps(settings, indent=1) + "\n")
    write(out / "log.jsonl", "".join(json.dumps(record) + "\n" for record in records))

    model.train()
    bar = tqdm(range(first, options.steps), initial=first, total=options.steps, disable=not show)
    with open(out / "log.jsonl", "a") as log:
        for step in bar:
            ids = text.batch(
                step, options.batch_size, options.seq_len, seed=options.data_seed,
                device=options.device,
            )
            start = time.perf_counter()
            lr = options.lr * min(1.0, (step + 1) / WARMUP_STEPS)
            loss = train_step(model, optimizer, ids, lr).item()  # waits for the GPU
            record = {"step": step + 1, "loss": loss, "ms": 1e3 * (time.perf_counter() - start)}
            if not math.isfinite(loss):
                raise Refused(f"want a finite loss; got {loss} at step {step + 1}: lower --lr")
            records.append(record)
            print(json.dumps(record), file=log, flush=True)
            bar.set_postfix_str(f"loss {loss:.3f}")
            last = step + 1 == options.steps
            if options.save_every and (last or (step + 1) % options.save_every == 0):
                _save(out, settings, model, optimizer, step + 1)
    return records


def _model_and_text(options):
    make = dict(dtype=DTYPES[options.dtype], device=options.device)
    if options.model is None:
        model = build(options.size, options.attn, seed=options.seed, **make)
        return model, Text(read_text(options.text))
    from transformers import AutoTokenizer

    model = load(options.model, options.attn, **make)
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    return model, Text(read_text(options.text), tokenizer)


def _settings(options, text: Text) -> dict:
    """What a run depends on, and when and where it was made."""
    asked = {key: value for key, value in vars(options).items() if key not in ("resume", "plot")}
    return asked | where_and_when(options.device) | {"text_sha256": text.sha256}


def where_and_when(device: str) -> dict[str, str]:
    """What every result says about where and when it was made; device is "cuda" or "cpu"."""
    return {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": str(torch.__version__), "triton": triton.__version__,
        "transformers": transformers.__version__, "date": date.today().isoformat(),
    }


def _save(out: Path, settings: dict, model, optimizer, step: int) -> None:
    """Write checkpoint.pt, whole or not at all."""
    state = {"step": step, "settings": settings, "model": model.state_dict(),
             "optimizer": optimizer.state_dict()}
    torch.save(state, out / "checkpoint.tmp")
    os.replace(out / "checkpoint.tmp", out / "checkpoint.pt")


def _resume(out: Path, settings: dict, model, optimizer) -> tuple[int, list[dict]]:
    """Load checkpoint.pt into model and optimizer.  -> steps done, and their records."""
    if not (out / "checkpoint.pt").exists():
        raise Refused(f"want {out}/checkpoint.pt to resume from; got none: leave out --resume")
    state = torch.load(out / "checkpoint.pt", map_location=model.device, weights_only=True)
    differ = [key for key, value in settings.items()
              if key not in MAY_CHANGE and state["settings"].get(key) != value]
    if differ:
        told = ", ".join(f"{key}={settings[key]!r} after {state['settings'].get(key)!r}"
                         for key in differ)
        raise Refused(f"want the settings of the run to resume; got {told}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return state["step"], [record for record in records if record["step"] <= state["step"]]


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def parser() -> argparse.ArgumentParser:
    device = default_device()
    gpu = device == "cuda"
    parser = argparse.ArgumentParser(
        prog="python -m examples.gpt_oss.train", description="Train GPT-OSS on real text.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--attn", default=OURS, help=f"{OURS}, eager, flex_attention, or any that Transformers has")
    add("--size", choices=SIZES, default="20b-attention" if gpu else "tiny",
        help="the random model's config")
    add("--model", metavar="PATH", help="a folder with pretrained weights and tokenizer instead")
    add("--text", metavar="PATH", help="what to train on (default: Python's standard library)")
    add("--seq-len", type=at_least(2), default=1024 if gpu else 64, help="tokens per row")
    add("--batch-size", type=at_least(1), default=4 if gpu else 1, help="rows per step")
    add("--steps", type=at_least(1), default=200, help="the last step; raise it with --resume")
    add("--lr", type=float, default=3e-4 if gpu else 3e-3, help="AdamW's learning rate")
    add("--seed", type=int, default=0, help="of the weights")
    add("--data-seed", type=int, default=0, help="of the batches")
    add("--dtype", choices=DTYPES, default=default_dtype(device), help="of weights and computation")
    add("--device", default=device, help="cuda or cpu")
    add("--out", default="runs/gpt_oss", help="folder for log, checkpoint and figure")
    add("--save-every", type=at_least(0), default=50, help="steps between checkpoints; 0: none")
    add("--resume", action="store_true", help="continue from the checkpoint in --out")
    add("--plot", action="store_true", help="draw loss.png in --out at the end")
    return parser


def at_least(low: int):
    """Returns a type for argparse: a whole number, low or more."""
    def number(word: str) -> int:
        if int(word) < low:
            raise argparse.ArgumentTypeError(f"want at least {low}; got {word}")
        return int(word)

    return number


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 refused."""
    options = parser().parse_args(argv)
    try:
        records = train(options)
        print(f"{options.attn}: loss {records[0]['loss']:.3f} at step 1, "
              f"{records[-1]['loss']:.3f} at step {records[-1]['step']}; {options.out}/log.jsonl")
        if options.plot:
            print(_plot(options, [record["loss"] for record in records]))
    except (Refused, FileNotFoundError, plots.NoMatplotlib) as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


def _plot(options, losses: list[float]) -> Path:
    """Draw loss.png.  -> its path."""
    path = Path(options.out) / "loss.png"
    settings = json.loads((Path(options.out) / "settings.json").read_text())
    weights, text = options.model or "random weights", options.text or "Python's standard library"
    plots.loss({options.attn: [losses]}, f"GPT-OSS from {weights}, on {text}", settings, path)
    return path


if __name__ == "__main__":
    sys.exit(main())
