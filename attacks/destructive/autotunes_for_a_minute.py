"""Autotunes over sixty configurations, each compiled anew."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: timeout
# device: cuda
# options: --timeout 5
import triton
import triton.language as tl


@triton.autotune([triton.Config({"N": n}) for n in range(60)], key=[])
@triton.jit
def tuned_kernel(y_ptr, N: tl.constexpr):
    total = tl.load(y_ptr)
    for i in tl.static_range(500):
        total = total * total + i * N
    tl.store(y_ptr, total)


def attack():
    tuned_kernel[(1,)](torch.zeros(1, device="cuda"))
