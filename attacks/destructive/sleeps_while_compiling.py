"""A function of the file that the compiler calls, and that sleeps."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: timeout, rejected
# cases: all
# options: --timeout 5
import triton
import triton.language as tl


@triton.constexpr_function
def sleepy():
    # Imported here, for the compiler lets such a function refer to nothing outside.
    frame = __import__("sys")._getframe()
    while frame:
        if frame.f_code.co_filename.endswith("code_generator.py"):
            __import__("time").sleep(60)
        frame = frame.f_back
    return 1.0


@triton.jit
def sleepy_kernel(y_ptr):
    tl.store(y_ptr, sleepy())


def attack():
    sleepy_kernel[(1,)](torch.zeros(1, device="cuda"))
