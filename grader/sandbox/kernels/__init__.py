"""Triton's kernels where there is no GPU: interpreted, compiled only, listed."""
