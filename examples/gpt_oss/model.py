"""The models that are trained and measured: GPT-OSS with random weights, or those of a folder."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig

from sink_attn.transformers_attention import NAME, register

# Every second layer has the window; a vocabulary of bytes.  Options are those of GptOssConfig.
SIZES = {
    # For a laptop: seconds per step in Triton's interpreter.
    "tiny": dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_local_experts=4,
        num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        sliding_window=16, initializer_range=0.1,
    ),
    # Width and attention of GPT-OSS-20B; 4 of its 24 layers, small experts: 0.25 billion weights.
    "20b-attention": dict(
        hidden_size=2880, intermediate_size=1024, num_hidden_layers=4, num_local_experts=4,
        num_experts_per_tok=2, num_attention_heads=64, num_key_value_heads=8, head_dim=64,
        sliding_window=128,
    ),
}
OURS = "flash_course"  # what the command lines call NAME
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}


def attention_name(attn: str) -> str:
    """Returns the name in Transformers of an attention implementation on our command line."""
    return NAME if attn == OURS else attn


def build(size: str, attn: str, *, dtype, device, seed: int, **changes):
    """Make a GptOssForCausalLM with random weights.

    Args:
        size: a key of SIZES.
        attn: OURS, or any attn_implementation of Transformers.
        dtype: of weights and activations.  The tables of rotary embeddings stay float32, which a
            model.to(dtype) afterwards would round.
        device: where the model is made.
        seed: of the weights; they also depend on the kind of device, but not on attn.
        changes: options of GptOssConfig that differ from size's.
    """
    register()
    config = GptOssConfig(vocab_size=256, **(SIZES[size] | changes))
    torch.manual_seed(seed)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=attention_name(attn), dtype=dtype
        )


def load(path: str, attn: str, *, dtype, device):
    """Load the model in a folder, as save_pretrained wrote it.  Nothing is downloaded.

    The published weights of GPT-OSS are in MXFP4, which cannot be trained: they become dtype.

    Raises:
        FileNotFoundError: the folder holds no model.
    """
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError(f"want a folder with config.json and weights; got {path}")
    register()
    options = dict(attn_implementation=attention_name(attn), dtype=dtype, local_files_only=True)
    quantized = getattr(AutoConfig.from_pretrained(path), "quantization_config", None)
    if quantized is not None:
        from transformers import Mxfp4Config

        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(path, **options).to(device)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_dtype(device: str) -> str:
    """Returns a key of DTYPES: float32 on a CPU, because Triton's interpreter has no bfloat16."""
    return "float32" if device == "cpu" else "bfloat16"
