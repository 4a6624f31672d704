"""Interprets, compiles and lists Triton kernels without a GPU."""
