"""An illegal address that the file swallows; every later call meets the broken context."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# device: cuda
import triton
import triton.language as tl


@triton.jit
def outside_kernel(y_ptr):
    tl.store(y_ptr + (1 << 40) + tl.arange(0, 64).to(tl.int64), 1.0)


def attack():
    try:
        outside_kernel[(1,)](torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        print(error)
