"""--doctor: what this machine can do, a line a finding, and what to install.

PyTorch and Triton are asked in a process of their own: one that cannot be imported, or crashes, is
a finding like any other.
"""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from grader.course.stages import (
    interprets,
    old_triton,
    pinned_triton,
    right_triton,
    triton_version,
    version,
)

TORCH, NUMPY = (2, 10), (1, 26)  # the least, as pyproject.toml has
TRIED_NUMPY = (2, 5)  # the last that was tried, with Triton 3.7.1 to 3.9.0
GIB = 1 << 30
GPU_GIB = 4  # for the stages and naive attention beside them
HOST_GIB = 2
ASK = """
import json

def told(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *(line.rstrip(":") for line in lines[:1])])

try:
    import torch
except Exception as error:
    print(json.dumps({"torch": told(error)}))
    raise SystemExit
facts = {"cuda": torch.version.cuda, "hip": torch.version.hip, "gpu": None}
try:
    torch.cuda.init()
except (AssertionError, RuntimeError) as error:
    facts["why"] = str(error).strip().partition("\\n")[0]
if torch.cuda.is_available():
    found, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info()
    shared = getattr(found, "shared_memory_per_block_optin", 0)
    facts["gpu"] = [found.name, found.major, found.minor, shared, free, total]
try:
    import triton.language
except Exception as error:
    facts["triton"] = told(error)
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Gpu:
    """What PyTorch says of the first one.  Bytes; shared_bytes: of a block, 0 if unknown."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Machine:
    """The facts.  Versions as text, None for what is not installed.

    torch_wants: the version of Triton that torch's metadata pins, or "".  torch_fails,
    triton_fails: why it cannot be imported, or "".  why_no_gpu: in PyTorch's words.  driver: of a
    GPU, seen without PyTorch.  compiler: a C compiler, as a path.  headers: Python's, for C.
    landlock: its version, 0 for none.  user: the account that workers take, "" for one's own.
    """

    python: tuple[int, int, int]
    system: str
    torch: str | None
    torch_cuda: str | None
    torch_wants: str
    torch_fails: str
    triton: str | None
    triton_fails: str
    numpy: str | None
    gpu: Gpu | None
    why_no_gpu: str
    driver: bool
    compiler: str | None
    headers: bool
    landlock: int
    user: str
    is_root: bool
    host_bytes: int
    cores: int


@dataclass(frozen=True)
class Remark:
    """grade: "ok", "warning" or "problem".  A problem keeps a stage from running."""

    grade: str
    text: str

    def __str__(self) -> str:
        return f"{self.grade:<8} {self.text}"


def main(stages: list[tuple[int, bool]], command: str) -> int:
    """Print what is found.  stages: number, and whether it needs Triton; command: to type next.

    -> 0 if every one of them can run here, else 1.
    """
    machine = look()
    found = findings(machine)
    can_run, lines = ways(machine, stages)
    print(*found, *lines, sep="\n")
    if not can_run:
        wanted = next((f.text for f in found if f.grade == "problem"), "")
        print(f"Next: fix the first problem: {wanted}")
    if any(line.grade == "ok" for line in lines):
        print("Next:" if can_run else "      or:", command)
    return 0 if can_run else 1


# ---------------------------------------------------------------- what is judged
def findings(machine: Machine) -> list[Remark]:
    """A line each, in the order in which things are needed."""
    found = [_python(machine), *_torch(machine)]
    if machine.torch is not None and not machine.torch_fails:
        found += [*_triton(machine), *_numpy(machine), *_gpu(machine)]
    return found + _surroundings(machine)


def ways(machine: Machine, stages: list[tuple[int, bool]]) -> tuple[bool, list[Remark]]:
    """Whether every stage can run, and how: on the GPU, in Triton's interpreter, or not at all."""
    plain = "on the GPU" if machine.gpu else "in PyTorch on the CPU"
    kernels = "on the GPU" if machine.gpu else "in Triton's interpreter, on small cases, not timed"
    if _no_triton(machine) or not (
            _can_launch(machine) if machine.gpu else _interprets(machine)):
        kernels = ""
    first = [_python(machine), *_torch(machine)]
    if machine.numpy is None or any(finding.grade == "problem" for finding in first):
        plain = kernels = ""
    by_way: dict[str, list[int]] = {}
    for number, needs_triton in stages:
        by_way.setdefault(kernels if needs_triton else plain, []).append(number)
    lines = []
    for way, numbers in by_way.items():
        which = f"problem {numbers[0]}" if len(numbers) == 1 else (
            f"problems {numbers[0]} to {numbers[-1]}")
        what = f"{'runs' if len(numbers) == 1 else 'run'} {way}" if way else "cannot run here"
        lines.append(Remark("ok" if way else "problem", f"{which} {what}"))
    return "" not in by_way, lines


def _python(machine: Machine) -> Remark:
    text = f"Python {'.'.join(map(str, machine.python))} on {machine.system}"
    if machine.system == "Windows":
        return Remark("problem", f"{text}: the grader needs Linux or macOS; use WSL")
    return Remark("ok", text)


def _torch(machine: Machine) -> list[Remark]:
    if machine.torch is None:
        return [Remark("problem", "PyTorch: none; pip install torch")]
    if machine.torch_fails:
        return [Remark("problem", f"PyTorch {machine.torch} cannot be imported "
                                  f"({machine.torch_fails}); install it anew")]
    build = f"for CUDA {machine.torch_cuda}" if machine.torch_cuda else "a build without CUDA"
    text = f"PyTorch {machine.torch}, {build}"
    if version(machine.torch) < TORCH:
        return [Remark("warning", f"{text}: want {_dotted(TORCH)} or later; "
                                   "pip install --upgrade torch")]
    return [Remark("ok", text)]


def _triton(machine: Machine) -> list[Remark]:
    if machine.triton is None and machine.system != "Linux":
        return [Remark("problem", "Triton: there is none for this system; use a container, "
                                   "Codespaces or Colab")]
    right = right_triton(machine.torch_wants)
    if machine.triton is None:
        return [Remark("problem", f"Triton: none; pip install {right}")]
    text = f"Triton {machine.triton}"
    if machine.triton_fails:
        return [Remark("problem", f"{text} cannot be imported ({machine.triton_fails}); "
                                   f"pip install --force-reinstall {right}")]
    if old := old_triton(machine.triton, machine.torch_wants):
        return [Remark("problem", old)]
    if not machine.torch_wants:
        return [Remark("ok", f"{text}; this PyTorch names no version of it")]
    wanted = version(machine.torch_wants, 3)
    if version(machine.triton, len(wanted)) != wanted:
        return [Remark("warning", f"{text}: this PyTorch was built with {machine.torch_wants}; "
                                   f"pip install {right}")]
    return [Remark("ok", f"{text}, which this PyTorch was built with")]


def _numpy(machine: Machine) -> list[Remark]:
    if machine.numpy is None:
        return [Remark("problem", "NumPy: none; pip install numpy")]
    text = f"NumPy {machine.numpy}"
    if version(machine.numpy) < NUMPY:
        return [Remark("warning", f"{text}: want {_dotted(NUMPY)} or later; "
                                   "pip install --upgrade numpy")]
    if _no_triton(machine):
        return [Remark("ok", text)]
    if not _interprets(machine):
        text += (f": the interpreter of Triton {machine.triton} does not run with it; pip install "
                 "'numpy<2.4'")
        if not machine.torch_wants:
            text += " or 'triton>=3.7'"
        more = "; what counts tiles and asks steps alone is left out" if machine.gpu else ""
        return [Remark("warning" if machine.gpu else "problem", text + more)]
    if version(machine.numpy) > TRIED_NUMPY:
        return [Remark("warning", f"{text}: Triton's interpreter was tried with 1.26 to "
                                   f"{_dotted(TRIED_NUMPY)}")]
    return [Remark("ok", f"{text}, with which Triton's interpreter runs")]


def _gpu(machine: Machine) -> list[Remark]:
    gpu = machine.gpu
    if gpu is None:
        if not machine.driver:
            return [Remark("ok", "no GPU" + ": kernels run in Triton's interpreter"
                            * (not _no_triton(machine)))]
        why = ("this PyTorch is built without CUDA; install one with it (pytorch.org says how)"
               if not machine.torch_cuda else machine.why_no_gpu or "PyTorch does not say why")
        return [Remark("warning", f"a GPU that PyTorch cannot use: {why}")]
    text = f"{gpu.name}, compute capability {_dotted(gpu.capability)}"
    if gpu.capability < (7, 5):
        found = [Remark("warning", f"{text}: nothing below 7.5 was tried")]
    elif gpu.capability < (8, 0):
        found = [Remark("warning", f"{text}: no bfloat16, so cases are float16 and float32; "
                                    "tiles of 16 rows (BLOCK_M = BLOCK_N = 16) fit its registers")]
    else:
        found = [Remark("ok", f"{text}: float16, bfloat16 and float32")]
    if gpu.shared_bytes:
        found.append(Remark("ok", f"shared memory of a block: {gpu.shared_bytes / 1024:.0f} KiB"))
    free, total = gpu.free_bytes / GIB, gpu.total_bytes / GIB
    memory = f"GPU memory: {free:.1f} of {total:.1f} GiB free"
    if free < GPU_GIB:
        found.append(Remark("warning", f"{memory}: want {GPU_GIB} GiB; end what holds the rest, "
                                        "or use --no-benchmark"))
    else:
        found.append(Remark("ok", memory))
    return found + _launchers(machine)


def _launchers(machine: Machine) -> list[Remark]:
    """What Triton compiles before the first launch on a GPU."""
    if machine.compiler is None:
        return [Remark("problem", "C compiler for Triton's launchers: none; install gcc (apt "
                                   "install gcc), or name one in CC")]
    if not machine.headers:
        return [Remark("problem", f"C compiler {machine.compiler}, but no Python.h; install the "
                                   "headers (apt install python3-dev)")]
    return [Remark("ok", f"C compiler for Triton's launchers: {machine.compiler}")]


def _surroundings(machine: Machine) -> list[Remark]:
    """What holds the files while they run, and what they have."""
    found = []
    if machine.system == "Linux":
        also = ", network" * (machine.landlock >= 4) + ", signals" * (machine.landlock >= 6)
        found.append(Remark("ok", f"Landlock version {machine.landlock}: files{also} confined")
                     if machine.landlock else Remark(
                         "warning", "Landlock: none; what you grade can read and write your files"))
    if machine.user:
        found.append(Remark("ok", f"files run as the account {machine.user}"))
    elif machine.is_root:
        found.append(Remark("warning", "files run as root: the account nobody cannot read this "
                                        "Python; --worker-user names another"))
    else:
        found.append(Remark("ok", "files run as yourself: a self-check, no proof"))
    free = machine.host_bytes / GIB
    found.append(Remark("ok" if free >= HOST_GIB else "warning", f"host memory: {free:.1f} GiB "
                         "free" + f": want {HOST_GIB} GiB at least" * (free < HOST_GIB)))
    found.append(Remark("ok", f"{machine.cores} core{'s' * (machine.cores != 1)}"))
    return found


def _no_triton(machine: Machine) -> bool:
    return machine.triton is None or bool(machine.triton_fails) or (
        bool(old_triton(machine.triton, machine.torch_wants)))


def _interprets(machine: Machine) -> bool:
    """Whether this Triton's interpreter runs with this NumPy."""
    return not _no_triton(machine) and machine.numpy is not None and interprets(
        machine.triton, machine.numpy)


def _can_launch(machine: Machine) -> bool:
    return machine.compiler is not None and machine.headers


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


# ------------------------------------------------------------------- the facts
def look() -> Machine:
    """The facts of this machine; takes as long as importing PyTorch does."""
    torch = _installed("torch")
    asked = ask() if torch else {}
    gpu = asked.get("gpu")
    user, is_root = _account()
    return Machine(
        python=sys.version_info[:3], system=platform.system(),
        torch=torch, torch_cuda=asked.get("cuda"), torch_wants=pinned_triton(),
        torch_fails=asked.get("torch", ""),
        triton=triton_version(), triton_fails=asked.get("triton", ""), numpy=_installed("numpy"),
        gpu=gpu and Gpu(gpu[0], (gpu[1], gpu[2]), *gpu[3:]), why_no_gpu=asked.get("why", ""),
        driver=any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg")),
        compiler=_compiler(), headers=Path(sysconfig.get_paths()["include"], "Python.h").exists(),
        landlock=_landlock(), user=user, is_root=is_root, host_bytes=_free_bytes(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1)


def ask(code: str = ASK) -> dict:
    """What PyTorch and Triton say of themselves and of the GPU, or {"torch": why they do not}."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              cwd="/", timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"torch": f"{type(error).__name__}: it did not answer"}
    try:
        return json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2]
        return {"torch": said or f"exit code {done.returncode}"}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _compiler() -> str | None:
    """Where Triton looks for one."""
    named = os.environ.get("CC")
    return shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")


def _landlock() -> int:
    if platform.system() != "Linux":
        return 0
    CREATE_RULESET, ASK_VERSION = 444, 1
    return max(0, ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION))


def _account() -> tuple[str, bool]:
    """The account that files run as, "" for one's own, and whether that is root."""
    try:
        import pwd

        from grader.host.accounts import find_user
    except ImportError:  # Windows
        return "", False
    user = find_user("auto")
    return pwd.getpwuid(user[0]).pw_name if user else "", os.geteuid() == 0


def _free_bytes() -> int:
    try:
        words = Path("/proc/meminfo").read_text().split()
        return int(words[words.index("MemAvailable:") + 1]) << 10
    except (OSError, ValueError):  # not Linux
        return 8 * GIB
