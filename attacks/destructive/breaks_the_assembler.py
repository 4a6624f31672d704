"""Assembly inside a kernel that no assembler takes."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# device: cuda
# outcome: crashed
import triton
import triton.language as tl


@triton.jit
def broken_kernel(y_ptr):
    value = tl.inline_asm_elementwise("no such instruction $0, $1;", "=r,r", [tl.program_id(0)],
                                      dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y_ptr, value)


def attack():
    broken_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
