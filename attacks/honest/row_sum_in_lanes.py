"""Stage 2 with a whole tile of running sums, added up once at the end, and an autotuned tile."""
# stage: 2
# outcome: pass
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"ROWS": 4, "COLS": 256}, num_warps=4),
    triton.Config({"ROWS": 16, "COLS": 64}, num_warps=2),
]


@triton.autotune(configs=CONFIGS, key=["n_rows", "n_cols"])
@triton.jit
def row_sum(
    X, W, Y, n_rows, n_cols, x_row_stride, x_col_stride, w_stride,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    first = tl.program_id(axis=0).to(tl.int64) * ROWS
    rows = first + tl.arange(0, ROWS)[:, None]
    lanes = tl.arange(0, COLS)[None, :].to(tl.int64)
    x_at = X + rows * x_row_stride + lanes * x_col_stride
    w_at = W + lanes * w_stride
    sums = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for start in range(0, n_cols, COLS):
        left = n_cols - start
        x = tl.load(x_at, mask=(rows < n_rows) & (lanes < left), other=0.0)
        w = tl.load(w_at, mask=lanes < left, other=0.0)
        sums += x.to(tl.float32) * w.to(tl.float32)
        # The pointers walk along the row; 64 bits, since one step of a column may be long.
        x_at += tl.cast(COLS, tl.int64) * x_col_stride
        w_at += tl.cast(COLS, tl.int64) * w_stride
    y = tl.sum(sums, axis=1, keep_dims=True)
    tl.store(Y + rows, y.to(Y.type.element_ty), mask=rows < n_rows)


def weighted_row_sum_forward(x, w):
    if x.shape[1:] != w.shape:
        raise ValueError(f"want x (M, N), w (N,); got {tuple(x.shape)}, {tuple(w.shape)}")
    y = x.new_empty(x.shape[0])

    def grid(meta):
        return (triton.cdiv(x.shape[0], meta["ROWS"]),)

    row_sum[grid](x, w, y, *x.shape, *x.stride(), *w.stride())
    return y
