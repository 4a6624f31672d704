"""GPT-OSS in Hugging Face Transformers with the course's kernels: docs/gpt_oss.md.

Without a GPU the kernels run in Triton's interpreter, which must be chosen before triton is
imported.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
