"""--doctor: what a machine can do, from its facts."""

import os
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

from grader import PYTHON
from grader.assignment.record import ROOT
from grader.course import stages
from grader.host import doctor
from grader.host.doctor import Machine, findings, look, ways

STAGES = [(1, False), *((n, True) for n in range(2, 8))]
LAPTOP = Machine(
    system="Linux", torch="2.13.0+cpu", triton="3.7.1", numpy="2.4.0", torch_wants="",
    driver=False, compiler="/usr/bin/gcc", headers=True, held=tuple(doctor.CLOSED),
    user="", is_root=False)
SERVER = replace(
    LAPTOP, torch="2.11.0+cu130", torch_cuda="13.0", torch_wants="3.6.0", triton="3.6.0",
    numpy="2.3.5", driver=True, gpu="NVIDIA H200", capability=[9, 0], free_gib=130.0)


def said(machine: Machine, *, grade: str) -> str:
    lines = [*findings(machine), *ways(machine, STAGES)]
    assert all("\n" not in line.text for line in lines)
    return "\n".join(line.text for line in lines if line.grade == grade)


def can_run(machine: Machine) -> bool:
    return all(line.grade == "ok" for line in ways(machine, STAGES))


@pytest.mark.parametrize("machine, way", [(LAPTOP, "in Triton's interpreter"),
                                          (SERVER, "on the GPU")])
def test_a_machine_with_everything_has_nothing_to_fix(machine, way):
    assert can_run(machine) and not said(machine, grade="problem")
    assert not said(machine, grade="warning") and way in said(machine, grade="ok")


def test_without_triton_stage_1_runs_alone_and_it_says_what_to_install():
    machine = replace(LAPTOP, triton=None, triton_fails="ModuleNotFoundError: No module")
    assert not can_run(machine)
    assert said(machine, grade="problem").splitlines() == [
        "Triton: none; pip install triton", "problems 2 to 7 cannot run here"]
    assert "problem 1 runs in PyTorch on the CPU" in said(machine, grade="ok")
    pinned = replace(SERVER, triton=None)
    assert "pip install triton==3.6.0" in said(pinned, grade="problem")
    mac = replace(machine, system="Darwin")
    assert "a container, Codespaces or Colab" in said(mac, grade="problem")


def test_a_broken_interpreter_is_a_problem_only_without_a_gpu():
    pair = replace(LAPTOP, torch_wants="3.6.0", triton="3.6.0", numpy="2.5.0")
    assert not can_run(pair)
    assert said(pair, grade="problem").startswith(
        "NumPy 2.5.0: the interpreter of Triton 3.6.0 does not run with it; pip install "
        "'numpy<2.4'")
    assert can_run(replace(pair, numpy="2.3.5"))
    assert can_run(replace(pair, triton="3.7.1", numpy="2.4.0", torch_wants=""))
    on_gpu = replace(SERVER, numpy="2.5.0")
    assert can_run(on_gpu) and "does not run with it" in said(on_gpu, grade="warning")


def test_a_turing_gpu_has_no_bfloat16_and_small_tiles():
    machine = replace(SERVER, gpu="Tesla T4", capability=[7, 5])
    assert can_run(machine)
    assert "compute capability 7.5: no bfloat16; tiles of 16 rows" in said(machine, grade="warning")
    assert "bfloat16" not in said(replace(machine, capability=[8, 0]), grade="warning")


@pytest.mark.parametrize("changes, words", [
    ({"torch": None}, "PyTorch: none; pip install torch"),
    ({"torch_fails": "ImportError: libcudart.so"}, "cannot be imported (ImportError: libcudart.so"),
    ({"system": "Windows"}, "use WSL"),
    ({"numpy": None}, "NumPy: none; pip install numpy"),
])
def test_without_what_every_stage_needs_none_runs(changes, words):
    machine = replace(LAPTOP, **changes)
    assert not can_run(machine)
    assert words in said(machine, grade="problem")
    assert "problems 1 to 7 cannot run here" in said(machine, grade="problem")


@pytest.mark.parametrize("changes, words", [
    ({"compiler": None}, "install gcc"), ({"headers": False}, "python3-dev"),
    ({"triton_fails": "ImportError: no such file"}, "pip install --force-reinstall triton==3.6.0"),
    ({"triton": "3.5.1"}, "want 3.6 or later; pip install --upgrade triton==3.6.0"),
    ({"triton": "3.3.1", "torch": "2.7.1", "torch_wants": "3.3.1"},
     "Triton 3.3.1: want 3.6 or later; pip install --upgrade torch"),
    ({"triton": None, "torch": "2.7.1", "torch_wants": "3.3.1"},
     "Triton: none; pip install --upgrade torch"),
])
def test_what_kernels_need_on_a_gpu_keeps_only_kernels_from_running(changes, words):
    machine = replace(SERVER, **changes)
    assert not can_run(machine) and words in said(machine, grade="problem")
    assert "problem 1 runs on the GPU" in said(machine, grade="ok")


@pytest.mark.parametrize("row, wanted", [
    ("triton==3.7.1; platform_system == 'Linux'", "3.7.1"), ("triton (==3.6.0)", "3.6.0"),
    ("triton~=3.8.0; platform_system == 'Linux'", "3.8"), ("sympy>=1.13.3", "")])
def test_the_triton_that_pytorch_was_built_with_is_read_from_its_metadata(row, wanted, monkeypatch):
    monkeypatch.setattr(stages.metadata, "requires", lambda name: ["filelock", row])
    assert stages.pinned_triton() == wanted


def test_any_patch_of_the_triton_that_pytorch_asks_for_will_do():
    for version in ("3.8.0", "3.8.2"):
        machine = replace(SERVER, torch_wants="3.8", triton=version)
        assert f"Triton {version}" in said(machine, grade="ok").splitlines()
    machine = replace(machine, triton="3.7.1")
    assert "was built with 3.8; pip install triton==3.8" in said(machine, grade="warning")


@pytest.mark.parametrize("changes, words", [
    ({"triton": "3.7.1"}, "this PyTorch was built with 3.6.0; pip install triton==3.6.0"),
    ({"gpu": None, "torch_cuda": None}, "built without CUDA"),
    ({"gpu": None, "why_no_gpu": "The NVIDIA driver is too old"}, "The NVIDIA driver is too old"),
    ({"free_gib": 1.0}, "GPU memory: 1.0 GiB free: want 4 GiB"),
    ({"torch": "2.9.1"}, "want 2.10 or later; pip install --upgrade torch"),
    ({"held": ("files", "privileges")},
     "not kept from reading other files and the list of processes, the network, signals"),
    ({"held": tuple(name for name in doctor.CLOSED if name != "ipc")},
     "what you grade is not kept from System V shared memory"),
    ({"is_root": True}, "files run as root"),
])
def test_what_keeps_no_stage_from_running_is_a_warning(changes, words):
    machine = replace(SERVER, **changes)
    assert can_run(machine) and words in said(machine, grade="warning")


def test_the_least_versions_are_those_of_the_project():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert wanted["requires-python"] == ">={}.{}".format(*PYTHON)
    for name, least in (("torch", doctor.TORCH), ("triton", stages.TRITON)):
        row = next(row for row in wanted["dependencies"] if row.startswith(name))
        assert "{}>={}.{}".format(name, *least) in row


def test_this_machine_is_looked_at():
    machine = look()
    assert machine.torch and machine.triton and machine.numpy and not machine.torch_fails


def test_an_import_that_crashes_is_a_finding():
    assert doctor.ask("import os; os.abort()") == {"torch_fails": "exit code -6"}
    failed = doctor.ask("raise ImportError('libcudart')")
    assert failed == {"torch_fails": "ImportError: libcudart"}


@pytest.mark.parametrize("text, said", [
    ("\\nFailed to load PyTorch C extensions:\\n    It appears that\\n        $ python setup.py",
     "ImportError: Failed to load PyTorch C extensions"),
    ("libcudart.so.12: cannot open shared object file",
     "ImportError: libcudart.so.12: cannot open shared object file"),
    ("", "ImportError")])
def test_of_an_error_in_importing_torch_the_first_line_is_shown(
        text, said, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(f'raise ImportError("{text}")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.ask() == {"torch_fails": said}


def test_the_command_line_asks_no_torch_of_its_own_process(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('no torch here')\n")
    done = subprocess.run([sys.executable, str(ROOT / "autograder.py"), "--doctor"], cwd=ROOT,
                          capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1 and done.stderr == ""
    assert "cannot be imported (no torch here)" in done.stdout
    assert done.stdout.splitlines()[-1] == "Next: fix the first problem above."
