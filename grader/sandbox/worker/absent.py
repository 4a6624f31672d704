"""Explains an error about something that is missing: a module, a folder, a GPU, a notebook."""

import importlib.util
import re
import sys
import textwrap
from pathlib import Path
from traceback import walk_tb

from ..kernels import gpu_only, pretend_gpu

NEEDS_GPU = re.compile(
    r"CUDA|NVTX|nvidia|accelerator|_cuda|dummy base class|'_Driver'|'_Properties'")
OF_A_GPU = re.compile(
    r"/torch/(cuda|accelerator|autograd/profiler)|/triton/(testing|backends/\w+/driver)")
ALONE = "a file is graded on its own"
NOTEBOOK = ("get_ipython", "display")


def absent_gpu(error: BaseException, text: str, path: str, where: str, source: str) -> str:
    """As absent(), for a missing GPU: a file that needs one may be right."""
    if not pretend_gpu.installed:
        return ""
    filename, first = Path(path).name, text.strip().partition("\n")[0][:300]
    if lacked := gpu_only.lacked(error):
        shown = textwrap.shorten(source.strip(), 70, placeholder=" ...")
        return f"`{shown}` needs a GPU, and there is none here: {lacked}"
    if _needs_gpu(error, text, path, source):
        return (f"{filename} asks for a GPU {where}, and there is none here: put timing and "
                f"anything else that needs one under if __name__ == \"__main__\": "
                f"({type(error).__name__}: {first or source.strip()[:100]})")
    return ""


def absent(error: BaseException, text: str, path: str, where: str) -> str:
    """A sentence, or "".  text: the error's message; where: as in crashes.explain()."""
    filename, kind = Path(path).name, type(error).__name__
    first = text.strip().partition("\n")[0][:300]
    if isinstance(error, ImportError):
        return _module(error, filename, first)
    if isinstance(error, NameError) and error.name in NOTEBOOK:
        return f"{filename} calls {error.name}, which only exists in a notebook: remove that call"
    name = str(getattr(error, "filename", None) or "")[:200]
    if isinstance(error, PermissionError) and name:
        return (f"{kind} {where}: a file that is graded may not open {name}. It may write to its "
                "working directory, ~, tempfile.gettempdir() and the TRITON_CACHE_DIR it is given")
    if isinstance(error, FileNotFoundError) and name and "/triton/" not in str(_files(error)):
        return (f"{kind} {where}: there is no {name}. {ALONE.capitalize()}, in an empty folder: "
                f"put what it needs into {filename}")
    return ""


def _module(error: ImportError, filename: str, first: str) -> str:
    """The same for an import."""
    if first.startswith("attempted relative import"):
        return f"{filename} uses a relative import, but {ALONE}: put what it needs into {filename}"
    name = str(error.name)
    top = name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or top in sys.stdlib_module_names:
        return ""
    if importlib.util.find_spec(top):
        version = getattr(sys.modules.get(top), "__version__", "as it is installed")
        return f"{filename} imports {name}, which {top} {version} does not have"
    return (f"{filename} imports {top}, which is not installed: the course needs only PyTorch, "
            f"Triton and NumPy. If {top} is a file of yours, put what it needs into {filename}: "
            f"{ALONE}")


def _needs_gpu(error: BaseException, text: str, path: str, source: str) -> bool:
    """Whether PyTorch or Triton, and not the file, raised it because there is no GPU."""
    deepest = _files(error)[-1]
    if deepest == path and re.match(r"\s*(raise|assert)\b", source):
        return False
    return bool(OF_A_GPU.search(deepest) or NEEDS_GPU.search(text))


def _files(error: BaseException) -> list[str]:
    """The files on the error's stack, the innermost last."""
    return ["", *(frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__))]
