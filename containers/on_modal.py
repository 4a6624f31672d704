"""Grades a stage on a GPU that Modal rents out, and brings the report back.

    pip install modal && modal setup
    GPU=H100 modal run containers/on_modal.py --submission DIR --stage 3

Prints what the autograder says, and writes results_3.json here.  GPU: as Modal names it; L4 unless
given.  The problem file alone is sent; the grader is the one in this repository.

Tried: everything but Modal.  Its client, 1.6.4, takes the script; the function was called on a
machine without a GPU, in Modal's place.  Not tried: a run on Modal, whose containers may not have
Landlock; the report then says less of what held the file.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import modal

COURSE = Path("/course")  # where gpu.Dockerfile puts the repository
HERE = Path(__file__).resolve().parent

app = modal.App("flash-attention-course", image=modal.Image.from_dockerfile(
    HERE / "gpu.Dockerfile", context_dir=HERE.parent))


@app.function(gpu=os.environ.get("GPU", "L4"), timeout=1200)
def grade(name: str, source: bytes, command: list[str]) -> tuple[int, str, bytes]:
    """-> exit code, what was printed, the JSON; b"" where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(source)
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, *command, "--submission", folder, "--json", str(results)],
            cwd=COURSE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout, results.read_bytes() if results.is_file() else b""


@app.local_entrypoint()
def main(submission: str = ".", stage: int = 3):
    path = Path(submission) / f"problem_{stage}.py"
    if not path.is_file():
        raise SystemExit(f"want a folder with problem_{stage}.py; got {submission}")
    program = "autograder.py" if stage < 8 else "autograder_optional.py"
    code, printed, results = grade.remote(path.name, path.read_bytes(), [program, f"--p{stage}"])
    print(printed, end="")
    if results:
        Path(f"results_{stage}.json").write_bytes(results)
    sys.exit(code)
