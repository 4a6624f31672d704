"""Our kernels compared with others: python -m benchmarks."""
