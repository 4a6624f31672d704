"""sink_attn, models that use it, and the benchmarks: what the course itself does not need."""
