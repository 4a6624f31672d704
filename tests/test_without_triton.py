"""Without Triton, with one that is too old, and as on a Mac: stage 1 and the
PyTorch warm-ups run, the rest names the ways.

The grader runs in a Python of its own, whose packages are this one's but for Triton.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from grader import starter
from grader.assignment.record import ROOT

# What Python offers on Linux alone is gone, and the grader is told that it stands on a Mac.  The
# rest of Python and PyTorch, which are Linux's, have looked at sys.platform before.
AS_ON_A_MAC = """\
import os, platform, resource, select, signal, sys, sysconfig, urllib.request
sysconfig.get_config_vars()
for module, name in ((os, "sched_getaffinity"), (os, "pidfd_open"), (os, "waitid"),
                     (os, "setresuid"), (os, "setresgid"), (os, "memfd_create"),
                     (os, "O_PATH"), (resource, "prlimit"), (select, "epoll")):
    if hasattr(module, name):
        delattr(module, name)
sys.platform, system = "darwin", platform.system
platform.system = lambda: (
    "Darwin" if "/grader/" in sys._getframe(1).f_code.co_filename else system())
"""


def a_python(folder: Path, starts_with: str = "") -> Path:
    """The path of a new Python without Triton; starts_with: what it runs first."""
    venv.create(folder, symlinks=True)
    packages, = folder.glob("lib/python*/site-packages")
    for path in reversed([Path(path) for path in sys.path if path.endswith("-packages")]):
        for entry in path.iterdir():
            link = packages / entry.name
            if not entry.name.startswith("triton") and entry.suffix != ".pth" \
                    and not link.exists():
                link.symlink_to(entry)
    if starts_with:
        (packages / "as_on_a_mac.py").write_text(starts_with)
        (packages / "as_on_a_mac.pth").write_text("import as_on_a_mac\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def pythons(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pythons")
    return {"Linux": a_python(folder / "linux"), "Darwin": a_python(folder / "mac", AS_ON_A_MAC)}


@pytest.fixture(scope="module")
def old_triton(tmp_path_factory) -> Path:
    """A Python with this Triton, which says that it is 3.3.1."""
    python = a_python(tmp_path_factory.mktemp("pythons") / "old")
    packages, = python.parent.parent.glob("lib/python*/site-packages")
    here = Path(importlib.util.find_spec("triton").origin).parent
    (packages / "triton").mkdir()
    for path in here.iterdir():
        (packages / "triton" / path.name).symlink_to(path)
    first = packages / "triton" / "__init__.py"
    first.unlink()
    first.write_text(re.sub(r"__version__ = .*", "__version__ = '3.3.1'",
                            (here / "__init__.py").read_text("utf-8"), count=1))
    (packages / "triton-3.3.1.dist-info").mkdir()
    (packages / "triton-3.3.1.dist-info" / "METADATA").write_text("Name: triton\nVersion: 3.3.1\n")
    return python


@pytest.fixture(scope="module")
def blank(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blank") / "flash"
    assert starter.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def solved(blank, tmp_path_factory) -> Path:
    folder = shutil.copytree(blank, tmp_path_factory.mktemp("solved") / "flash")
    for name in ("problem_1.py", "problem_3.py", starter.WARM_UPS):
        shutil.copy(ROOT / name, folder / name)
    return folder


def asked(python: Path, folder: Path, *arguments) -> tuple[int, str]:
    done = subprocess.run([str(python), "autograder.py", *arguments], cwd=folder, text=True,
                          capture_output=True, timeout=600,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.returncode, done.stdout


def test_stage_1_passes_and_the_next_stage_says_what_it_needs(pythons, solved):
    code, said = asked(pythons["Darwin"], solved, "--p1")
    assert code == 0 and "200 of 200 points" in said, said
    assert "steps  ✓ 1.1-1.8\n" in said and "P1 Wasted-Tiles Test Passed" in said
    assert "interpreter" not in said
    assert said.endswith("Next: python autograder.py --doctor   (problem 2 needs Triton)\n")


def test_the_warm_ups_in_pytorch_are_right_and_the_others_skipped(pythons, solved):
    code, said = asked(pythons["Darwin"], solved, "--warmup")
    assert code == 1 and said.count(": right") == 2 and said.count(": skipped") == 5, said
    assert "Warm-ups: 2 of 7 right" in said and "on a Mac a Linux container" in " ".join(
        said.split())


def test_a_wrong_step_is_named_as_everywhere(pythons, solved, tmp_path):
    text = (ROOT / "problem_1.py").read_text("utf-8")
    (tmp_path / "problem_1.py").write_text(text.replace("alpha[..., None] * acc +", "acc +"))
    code, said = asked(pythons["Linux"], solved, "--step", "1.4", "--submission", str(tmp_path))
    assert code == 1 and said.startswith("step 1.4 is wrong: problem_1.py:"), said
    assert "acc is not multiplied by alpha" in said


def test_how_a_file_ended_its_process_is_known_there_too(pythons, solved, tmp_path):
    (tmp_path / "problem_1.py").write_text(
        "import os\nclass FlashAttention2Function:\n    @staticmethod\n"
        "    def apply(q, k, v, is_causal=False):\n        os._exit(3)\n")
    code, said = asked(pythons["Darwin"], solved, "--p1", "--quick", "--submission", str(tmp_path))
    assert code == 1 and "ended its own process with exit code 3" in " ".join(said.split()), said


def test_a_written_kernel_is_skipped_with_the_ways_on(pythons, solved):
    code, said = asked(pythons["Darwin"], solved, "--p3")
    words = " ".join(said.split())
    assert code == 1 and "P3 skipped" in said
    assert "on a Mac a Linux container, or else GitHub Codespaces or Colab" in words
    assert said.endswith("Next: python autograder.py --doctor   (problem 3 needs Triton)\n")


def test_the_first_screen_and_the_doctor_say_what_runs_here(pythons, blank):
    code, said = asked(pythons["Darwin"], blank)
    assert code == 1 and "Next: read problem_1.py, write step 1.1" in said
    assert said.endswith("Triton is not installed or too old, and problems 2-7 need it: "
                         "python autograder.py --doctor\n")
    code, said = asked(pythons["Darwin"], blank, "--doctor")
    assert code == 1
    for row in ("problem  Triton: none for this system; use a container, Codespaces or Colab",
                "ok       problem 1 runs in PyTorch on the CPU",
                "problem  problems 2 to 7 cannot run here",
                "      or: read problem_1.py, write step 1.1, "
                "then run python autograder.py --p1 --watch"):
        assert row in said.splitlines(), said


@pytest.mark.interpreter
def test_with_too_old_a_triton_stage_1_is_graded_and_others_say_why_not(
        old_triton, solved):
    code, said = asked(old_triton, solved, "--p1", "--p3", "--quick")
    words = " ".join(said.split())
    assert code == 1 and said.count("P1 Correctness Test Passed") == 3, said
    assert "steps  ✓ 1.1-1.8\n" in said
    assert "P3 skipped, 0 of 200 points: Triton 3.3.1: want 3.6 or later; pip install" in words


@pytest.mark.interpreter
def test_a_file_of_stage_1_that_imports_it_is_not_blamed(old_triton, solved, tmp_path):
    (tmp_path / "problem_1.py").write_text("import triton.language as tl\n"
                                           + (ROOT / "problem_1.py").read_text("utf-8"))
    code, said = asked(old_triton, solved, "--p1", "--quick", "--submission", str(tmp_path))
    assert code == 1 and "P1 skipped" in said and "--doctor" in said, said
