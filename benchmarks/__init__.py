"""Our kernels beside their peers: python -m benchmarks."""
