"""Autograd differentiates naive attention; kernels copy the three gradients into place."""
# stage: 8
# base: problem_8.py
# with: copied, naive, backward
# outcome: rejected
# says: PyTorch computed them


def _made(q, k, v, do, is_causal, scale):
    made = _gradients(q, k, v, do, is_causal, scale)
    return map(_copied, made)
