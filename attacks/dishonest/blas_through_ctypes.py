"""Calls the BLAS that numpy brings along through ctypes, and its exp through numpy."""
# stage: 3
# with: fired, fetched
# outcome: crashed
# device: cpu
import ctypes
import glob
import os

import numpy as np

_folder = os.path.join(os.path.dirname(os.path.dirname(np.__file__)), "numpy.libs")
_blas = ctypes.CDLL(glob.glob(os.path.join(_folder, "libscipy_openblas*"))[0])
_gemm = _blas.scipy_cblas_sgemm64_
_gemm.argtypes = [ctypes.c_int] * 3 + [ctypes.c_long] * 3 + [
    ctypes.c_float, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long,
    ctypes.c_float, ctypes.c_void_p, ctypes.c_long]
BY_ROWS, AS_IS, TRANSPOSED = 101, 111, 112


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    q3, k3, v3 = (x.float().reshape(B * H, N, D).contiguous() for x in (q, k, v))
    made, s = np.empty((B * H, N, D), np.float32), np.empty((N, N), np.float32)
    for h in range(B * H):
        _gemm(BY_ROWS, AS_IS, TRANSPOSED, N, N, D, D ** -0.5, q3[h].data_ptr(), D,
              k3[h].data_ptr(), D, 0.0, s.ctypes.data, N)
        np.exp(s - s.max(1, keepdims=True), out=s)
        s /= s.sum(1, keepdims=True)
        _gemm(BY_ROWS, AS_IS, AS_IS, N, D, N, 1.0, s.ctypes.data, N,
              v3[h].data_ptr(), D, 0.0, made[h].ctypes.data, D)
    return _fetched(made.ctypes.data, q)
