"""--doctor: prints what this machine can run, one line per finding, and what to install.

PyTorch and Triton are imported in a separate process, so that a failed import or a crash is a
finding like any other.
"""

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from grader.course import stages

TORCH = (2, 10)  # the oldest that works, as in pyproject.toml
GPU_GIB = 4  # for a stage, and naive attention to compare it with
FACTS = """
import json

def told(error):
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")

try:
    import torch
except Exception as error:
    print(json.dumps({"torch_fails": told(error)}))
    raise SystemExit
facts = {"torch_cuda": torch.version.cuda}
try:
    torch.cuda.init()
except (AssertionError, RuntimeError) as error:
    facts["why_no_gpu"] = told(error)
if torch.cuda.is_available():
    facts |= {"gpu": torch.cuda.get_device_name(), "free_gib": torch.cuda.mem_get_info()[0] / 2**30,
              "capability": torch.cuda.get_device_capability()}
try:
    import triton.language
except Exception as error:
    facts["triton_fails"] = told(error)
print(json.dumps(facts))
"""
CONFINE = """
from grader.sandbox.supervisor import confine, seccomp
print(*confine.drop_privileges([]), *confine.confine([], [], []), *seccomp.confine(False))
"""
# What a file cannot do, by its name under `confined` in the JSON.
CLOSED = {
    "files": "writing elsewhere", "reads": "reading other files and the list of processes",
    "network": "the network", "signals": "signals to other processes",
    "processes": "their limits and priorities",
    "ipc": "System V shared memory", "privileges": "root's privileges",
}


@dataclass(frozen=True)
class Machine:
    """The facts about this machine.  Versions are texts; None: not installed."""

    system: str
    torch: str | None
    triton: str | None
    numpy: str | None
    torch_wants: str  # the version of Triton that PyTorch's metadata pins, or ""
    driver: bool  # whether there is a GPU, even if PyTorch cannot use it
    compiler: str | None  # the path of a C compiler
    headers: bool  # whether Python's C headers are installed
    held: tuple[str, ...]  # what is closed to a file: names of CLOSED
    user: str  # the account that files run as; "" for one's own
    is_root: bool
    torch_fails: str = ""  # why PyTorch cannot be imported
    triton_fails: str = ""
    torch_cuda: str | None = None
    why_no_gpu: str = ""  # in PyTorch's words
    gpu: str | None = None
    capability: list[int] = field(default_factory=list)
    free_gib: float = 0.0  # GPU memory


@dataclass(frozen=True)
class Remark:
    """A finding.  grade: "ok", "warning" or "problem"; a problem keeps a stage from running."""

    grade: str
    text: str

    def __str__(self) -> str:
        return f"{self.grade:<8} {self.text}"


ok, warning, problem = (functools.partial(Remark, grade) for grade in ("ok", "warning", "problem"))


def main(asked: list[tuple[int, bool]], command: str) -> int:
    """Print the findings, and what to type next.  asked: stages, and whether each needs Triton.

    -> 0 if every one of these stages can run here, else 1.
    """
    machine = look()
    lines = ways(machine, asked)
    print(*findings(machine), *lines, sep="\n")
    grades = {line.grade for line in lines}
    if "problem" in grades:
        print("Next: fix the first problem above.")
    if "ok" in grades:
        print("      or:" if "problem" in grades else "Next:", command)
    return int("problem" in grades)


def findings(machine: Machine) -> list[Remark]:
    """All findings, in the order in which things are needed."""
    python = f"Python {platform.python_version()} on {machine.system}"
    found = [ok(python) if machine.system != "Windows" else
             problem(f"{python}: the grader needs Linux or macOS; use WSL"), _torch(machine)]
    if machine.torch and not machine.torch_fails:
        found += [_triton(machine), _numpy(machine), *_gpu(machine)]
    return found + _confinement(machine)


def ways(machine: Machine, asked: list[tuple[int, bool]]) -> list[Remark]:
    """Whether the stages run on the GPU, in Triton's interpreter, or not at all."""
    plain = "on the GPU" if machine.gpu else "in PyTorch on the CPU"
    kernels = "on the GPU" if machine.gpu else "in Triton's interpreter, on small cases, not timed"
    found = findings(machine)
    if any(remark.grade == "problem" for remark in found):
        kernels = ""
    if not machine.numpy or any(remark.grade == "problem" for remark in found[:2]):
        plain = ""
    by_way: dict[str, list[int]] = {}
    for number, needs_triton in asked:
        by_way.setdefault(kernels if needs_triton else plain, []).append(number)
    lines = []
    for way, numbers in by_way.items():
        which, runs = f"problem {numbers[0]}", "runs"
        if len(numbers) > 1:
            which, runs = f"problems {numbers[0]} to {numbers[-1]}", "run"
        lines.append(ok(f"{which} {runs} {way}") if way else problem(f"{which} cannot run here"))
    return lines


def _torch(machine: Machine) -> Remark:
    if not machine.torch:
        return problem("PyTorch: none; pip install torch")
    text = f"PyTorch {machine.torch}"
    if machine.torch_fails:
        return problem(f"{text} cannot be imported ({machine.torch_fails}); reinstall it")
    if stages.version(machine.torch) < TORCH:
        return warning(f"{text}: want {TORCH[0]}.{TORCH[1]} or later; pip install --upgrade torch")
    return ok(f"{text}, CUDA {machine.torch_cuda or 'none'}")


def _triton(machine: Machine) -> Remark:
    right = stages.right_triton(machine.torch_wants)
    if not machine.triton:
        return problem(f"Triton: none; pip install {right}" if machine.system == "Linux" else
                       "Triton: none for this system; use a container, Codespaces or Colab")
    text = f"Triton {machine.triton}"
    if machine.triton_fails:
        return problem(f"{text} cannot be imported ({machine.triton_fails}); "
                       f"pip install --force-reinstall {right}")
    if old := stages.old_triton(machine.triton, machine.torch_wants):
        return problem(old)
    wanted = stages.version(machine.torch_wants, 3)
    if stages.version(machine.triton, len(wanted)) != wanted:
        return warning(f"{text}: this PyTorch was built with {machine.torch_wants}; "
                       f"pip install {right}")
    return ok(text)


def _numpy(machine: Machine) -> Remark:
    if not machine.numpy:
        return problem("NumPy: none; pip install numpy")
    if _triton(machine).grade == "problem" or stages.interprets(machine.triton, machine.numpy):
        return ok(f"NumPy {machine.numpy}")
    text = (f"NumPy {machine.numpy}: the interpreter of Triton {machine.triton} does not run with "
            "it; pip install 'numpy<2.4'")
    return warning(f"{text}, or steps are not checked") if machine.gpu else problem(text)


def _gpu(machine: Machine) -> list[Remark]:
    if not machine.gpu:
        if not machine.driver:
            return [ok("no GPU")]
        why = ("this PyTorch is built without CUDA; install one with it (pytorch.org says how)"
               if not machine.torch_cuda else machine.why_no_gpu or "PyTorch does not say why")
        return [warning(f"a GPU that PyTorch cannot use: {why}")]
    text = f"{machine.gpu}, compute capability {'.'.join(map(str, machine.capability))}"
    found = [ok(text) if machine.capability >= [8, 0] else warning(
        f"{text}: no bfloat16; tiles of 16 rows (BLOCK_M = BLOCK_N = 16) fit its registers")]
    if machine.free_gib < GPU_GIB:
        found.append(warning(f"GPU memory: {machine.free_gib:.1f} GiB free: want {GPU_GIB} GiB; "
                             "end what holds the rest, or use --no-benchmark"))
    if not machine.compiler:
        found.append(problem("C compiler for Triton's launchers: none; install gcc (apt install "
                             "gcc), or name one in CC"))
    elif not machine.headers:
        found.append(problem(f"C compiler {machine.compiler}, but no Python.h; install the headers "
                             "(apt install python3-dev)"))
    return found


def _confinement(machine: Machine) -> list[Remark]:
    """What a running file is kept from."""
    found = []
    still_open = [words for name, words in CLOSED.items() if name not in machine.held]
    if still_open:
        found.append(warning("what you grade is not kept from " + ", ".join(still_open)))
    else:
        found.append(ok("what you grade is kept from " + ", ".join(CLOSED.values())))
    if machine.user:
        found.append(ok(f"files run as {machine.user}"))
    elif machine.is_root:
        found.append(warning("files run as root: the account `nobody` cannot read this Python; "
                             "--worker-user names another"))
    else:
        found.append(ok("files run as yourself: a self-check, no proof"))
    return found


def look() -> Machine:
    """Collect the facts; takes as long as importing PyTorch."""
    torch, named = stages.installed("torch"), os.environ.get("CC")
    user, is_root = _account()
    return Machine(
        system=platform.system(), torch=torch, triton=stages.triton_version(),
        numpy=stages.installed("numpy"), torch_wants=stages.pinned_triton(),
        driver=any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg")),
        # as Triton looks for one
        compiler=shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang"),
        headers=Path(sysconfig.get_paths()["include"], "Python.h").exists(),
        held=held(), user=user, is_root=is_root, **(ask() if torch else {}))


def ask(code: str = FACTS) -> dict:
    """What PyTorch and Triton say about themselves and the GPU, as fields of Machine."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    try:
        return json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2]
        return {"torch_fails": said or f"exit code {done.returncode}"}


def held() -> tuple[str, ...]:
    """The names in CLOSED that hold for a process confined as a worker is, on this machine."""
    if platform.system() != "Linux":
        return ()
    done = subprocess.run([sys.executable, "-c", CONFINE], capture_output=True, text=True,
                          cwd=Path(__file__).parents[2])
    return tuple(done.stdout.split())


def _account() -> tuple[str, bool]:
    """-> the account that files run as, "" for one's own; whether that is root's."""
    try:
        import pwd

        from grader.host.accounts import find_user, ids_for_worker
    except ImportError:  # Windows
        return "", False
    user = find_user("auto")
    name = "" if user is None else f"the account {pwd.getpwuid(user[0]).pw_name}" \
        if user == ids_for_worker(user) else "ids that no account has, each worker under its own"
    return name, os.geteuid() == 0
