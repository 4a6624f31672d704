"""The stages' attention at full speed: attention.py in plain Triton, attention_hopper* in Gluon."""
