"""The course's attention at full speed: kernels.py in plain Triton, attention_hopper* in Gluon."""

from .entry import attention, attention_varlen
from .flash_attn import flash_attn_func, flash_attn_varlen_func

__all__ = [
    "attention", "attention_varlen", "flash_attn_func", "flash_attn_varlen_func", "register",
]


def register() -> None:
    """Make "sink_attn" an attn_implementation of Transformers, for any model.

    Calling it twice is harmless.

    Raises:
        ImportError: Transformers is not installed.
    """
    from .transformers_attention import register

    register()
