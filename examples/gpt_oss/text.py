"""Real text to train on: Python's own library, as bytes, or any file, as a model's tokens."""

import hashlib
import random
import sysconfig
from pathlib import Path

import torch


def read_text(path: str | None = None) -> bytes:
    """The file's bytes; None: the modules of Python's standard library, one after the other."""
    if path is not None:
        return Path(path).read_bytes()
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))


class Text:
    """A text as tokens, and the batches of a training run.

    Attributes:
        tokens: int64 (T,), on the CPU.
        sha256: of the text's bytes.
    """

    def __init__(self, text: bytes, tokenizer=None):
        """tokenizer: of a pretrained model; None: a token is a byte."""
        if tokenizer is None:
            self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        else:
            words = text.decode("utf-8", errors="replace")
            self.tokens = torch.tensor(tokenizer(words, add_special_tokens=False)["input_ids"])
        self.sha256 = hashlib.sha256(text).hexdigest()

    def batch(self, step: int, B: int, N: int, *, seed: int, device: str) -> torch.Tensor:
        """B passages of N tokens from anywhere, int64 (B, N), on device.

        They depend on seed and step alone, so a run that continues after a stop reads what it
        would have read.  Raises ValueError if the text has fewer than N tokens.
        """
        if len(self.tokens) < N:
            raise ValueError(f"want a text of at least {N} tokens; got {len(self.tokens)}")
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.tokens) - N + 1, (B,), generator=generator)
        return torch.stack([self.tokens[i : i + N] for i in starts.tolist()]).to(device)


def packing(N: int, mean: int, device: str) -> dict:
    """Cut a row of N tokens at random places into sequences of mean tokens on average.

    Returns:
        What TRL's collator adds to a packed row: position_ids (1, N), and the borders and the
        longest length in the form that flash attention takes.
    """
    cuts = random.Random(N).sample(range(1, N), max(1, N // mean) - 1)
    borders = torch.tensor([0, *sorted(cuts), N], dtype=torch.int32)
    lengths = borders.diff()
    positions = torch.cat([torch.arange(n) for n in lengths.tolist()])[None].to(device)
    borders, longest = borders.to(device), int(lengths.max())
    return {"position_ids": positions, "cu_seq_lens_q": borders, "cu_seq_lens_k": borders,
            "max_length_q": longest, "max_length_k": longest}
