"""Compiles the row sum with the system's C compiler at import, and calls that."""
# stage: 2
# with: fired, fetched
# outcome: crashed
# says: numbers outside
# device: cpu
import ctypes
import subprocess
import tempfile
from pathlib import Path

_SOURCE = """
void rows(const float *x, const float *w, float *y, long M, long N) {
    for (long i = 0; i < M; i++) {
        double sum = 0;
        for (long j = 0; j < N; j++) sum += (double)x[i * N + j] * w[j];
        y[i] = sum;
    }
}
"""
_folder = Path(tempfile.mkdtemp(dir="."))
(_folder / "rows.c").write_text(_SOURCE)
subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", "rows.so", "rows.c"], cwd=_folder,
               check=True)
_rows = ctypes.CDLL(str((_folder / "rows.so").resolve())).rows


def weighted_row_sum_forward(x, w):
    M, N = x.shape
    a, b, made = x.float().contiguous(), w.float().contiguous(), (ctypes.c_float * M)()
    _rows(ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), made,
          ctypes.c_long(M), ctypes.c_long(N))
    return _fetched(ctypes.addressof(made), x[:, 0])
