"""Programs for maintainers, run as python -m tools.NAME: kernel_resources,
sink_attn_resources, register_clash, stage_table, mask_picture, notebooks, grading_times,
make_minilm_qkv, transcript, operators, contract_cases, hub_kernel, mutants, conformance.  The other
modules are shared by these."""
