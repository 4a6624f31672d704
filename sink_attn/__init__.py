"""The stages' attention at full speed: kernels.py in plain Triton, attention_hopper* in Gluon."""

from sink_attn.entry import attention as attention
from sink_attn.entry import attention_varlen as attention_varlen
