"""Tiles that no GPU has the shared memory for."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# cases: all
# says: tiles or a smaller num_stages
import triton
import triton.language as tl


@triton.jit
def big_kernel(x_ptr, n, SIZE: tl.constexpr):
    tile = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for start in range(0, n, SIZE):
        total = tl.dot(tl.load(x_ptr + start + tile), tl.load(x_ptr + tile), total)
    tl.store(x_ptr + tile, total)


def attack():
    big_kernel[(1,)](torch.zeros(1 << 16, device="cuda"), 256, SIZE=256, num_warps=8)
