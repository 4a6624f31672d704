"""Replaces libdevice's functions by NumPy's, and gives a reason for what only a GPU can do.

A kernel that needs more than NumPy has may be right, so its cases are skipped.
"""

import math

import numpy as np

ALIKE = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
         "cosh", "tanh", "sqrt", "cbrt", "floor", "ceil", "trunc", "rint", "fabs", "fmin", "fmax",
         "fmod", "copysign", "hypot", "nextafter", "ldexp")  # same name in both libraries
LIBDEVICE = {name: getattr(np, name) for name in ALIKE} | {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power,
    "powi": np.power, "nearbyint": np.rint, "abs": np.abs, "llabs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x), "exp10": lambda x: np.power(10, x),
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)), "fma": lambda x, y, z: x * y + z,
    "fdim": lambda x, y: np.maximum(x - y, 0), "saturate": lambda x: np.clip(x, 0, 1),
    "fdivide": np.divide, "erf": np.vectorize(math.erf), "erfc": np.vectorize(math.erfc),
    "isnan": np.isnan, "isinf": np.isinf, "finite": np.isfinite, "isfinite": np.isfinite,
    "signbit": np.signbit, "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply,
    "div_rn": np.divide, "sqrt_rn": np.sqrt, "rcp_rn": np.reciprocal,
}


class NeedsGPU(RuntimeError):
    """The file uses something that exists only on a GPU."""


class CompiledKernel:
    """What a launch or a warm-up of an interpreted kernel returns.  Nothing is compiled."""

    def __getattr__(self, name: str):
        raise NeedsGPU(f"only a compiled kernel has .{name}")

    def __getitem__(self, grid):
        raise NeedsGPU("only a compiled kernel is launched by its handle")


def libdevice(symbol: str, arguments: list[np.ndarray]) -> np.ndarray:
    """Call a function of libdevice; symbol: "__nv_exp2f", say."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    # "exp2f" and "exp2", "isnand" and "isnanf", "fadd_rn" and "dadd_rn"
    operation = next((LIBDEVICE[one] for one in (
        name, name.removesuffix("f"), name.removesuffix("d"), name[1:]) if one in LIBDEVICE), None)
    if operation is None:
        raise NeedsGPU(f"NumPy has no function like libdevice's {symbol}")
    with np.errstate(all="ignore"):
        return operation(*arguments)


def lacked(error: BaseException) -> str:
    """What the file needed that only a GPU has; "" if the error is about something else."""
    if isinstance(error, NeedsGPU):
        return str(error)
    if isinstance(error, NotImplementedError) and "in interpreter mode" in str(error):
        return f"Triton's interpreter has no {str(error).partition(' ')[0]}"
    if isinstance(error, AttributeError):
        kind, name = type(error.obj).__name__, error.name
        if kind == "InterpreterBuilder":
            return f"Triton's interpreter has no {str(name).removeprefix('create_')}"
        if kind == "InterpretedFunction" and _compiled_has(error.obj, name):
            return f"only a compiled kernel has .{name}"
    return ""


def _compiled_has(kernel, name: str) -> bool:
    from triton.runtime.jit import JITFunction

    return hasattr(JITFunction(kernel.fn), name)
