"""What the tests of the platforms share: a place to unpack a kit, packages without a network, and
what students hand in there."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from grader.assignment.record import ROOT
from grader.starter import blank

SOLVED = {name: (ROOT / name).read_text("utf-8") for name in ("problem_1.py", "problem_2.py")}
ADDED = "acc += tl.sum(x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1)"
HANGS = "import time\ndef weighted_row_sum_forward(x, w):\n    time.sleep(900)\n"
RIGHT = SOLVED
WRONG = {"problem_2.py": SOLVED["problem_2.py"].replace(
    ADDED, ADDED.replace(" * w.to(tl.float32)[None, :]", ""))}
HANGING = {"problem_1.py": blank(SOLVED["problem_1.py"]), "problem_2.py": HANGS}
assert ADDED in SOLVED["problem_2.py"]


@contextmanager
def place() -> Iterator[Path]:
    """A folder that every account may enter, as on the platforms."""
    folder = Path(tempfile.mkdtemp(prefix="platform-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def packages(folder: Path) -> dict[str, str]:
    """Wheels of what a kit needs, each of which points to what is installed here.

    -> the environment in which pip looks nowhere else.
    """
    folder.mkdir()
    for name in ("torch", "triton", "numpy"):
        found = metadata.distribution(name)
        stem = f"{name}-{found.version}"
        inside = {f"{name}_of_the_tests.pth": f"{Path(str(found.locate_file('')))}\n",
                  f"{stem}.dist-info/METADATA":
                      f"Metadata-Version: 2.1\nName: {name}\nVersion: {found.version}\n",
                  f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
                                             "Root-Is-Purelib: true\nTag: py3-none-any\n",
                  f"{stem}.dist-info/entry_points.txt":  # by which Triton finds its compilers
                      found.read_text("entry_points.txt") or ""}
        lines = [f"{path},sha256={_digest(text)},{len(text.encode())}\n"
                 for path, text in inside.items()] + [f"{stem}.dist-info/RECORD,,\n"]
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            for path, text in (inside | {f"{stem}.dist-info/RECORD": "".join(lines)}).items():
                wheel.writestr(path, text)
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return outside() | {"PATH": here, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def outside() -> dict[str, str]:
    """The environment without what the tests have said about Triton."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def hand_in(folder: Path, files: dict[str, str]) -> None:
    """Have these files in the folder, and no other problem files."""
    for path in folder.glob("problem_*.py"):
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


def killed_once(command: list[str], folder: Path, reached: Callable[[], bool],
                **variables: str) -> None:
    """Run a command, and end it as a platform does, by SIGKILL and unannounced, once reached()."""
    process = subprocess.Popen(command, cwd=folder, env=outside() | variables,
                               start_new_session=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not reached():
            time.sleep(0.1)
        assert process.poll() is None, "it was under way"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
