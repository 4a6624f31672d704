"""A right kernel with a loop unrolled so often that compiling takes most of a minute."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: timeout
# cases: all
# says: compile
# options: --timeout 5
import triton
import triton.language as tl


@triton.jit
def unrolled_kernel(y_ptr):
    total = tl.load(y_ptr)
    for i in tl.static_range(24_000):
        total = total * total + i
    tl.store(y_ptr, total)


once = []


def attack():
    if not once:
        once.append(1)
        unrolled_kernel[(1,)](torch.zeros(1, device="cuda"))
