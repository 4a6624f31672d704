"""The stages' attention at full speed: kernels.py in plain Triton, attention_hopper* in Gluon."""

from fast.entry import attention as attention
from fast.entry import attention_varlen as attention_varlen
