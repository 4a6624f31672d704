"""Measures how long a student waits for a grading: python -m tools.grading_times

Every run grades solved files with a number changed in a kernel, so that nothing was compiled
before; "again" is the run after it.  Prints seconds of wall time until the line of steps and until
the end: median (least to most) of the rounds.  With --watch the clock starts at the save.
--beside N also grades N different files at the same time, and prints the seconds per grading.  Run
it on an idle machine.  First it prints the time of `import torch`, which every grading starts with.
The results are in docs/measured/grading-times.md.
"""

import argparse
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
EDITED = 'float("-inf")'  # occurs once in a kernel of stages 3 to 9
RUNS = {  # name -> arguments
    "p4, no benchmark": ["--p4", "--no-benchmark"],
    "p4": ["--p4"],
    "p4, --quick": ["--p4", "--no-benchmark", "--quick"],
    "p3, no benchmark": ["--p3", "--no-benchmark"],
    "p7, no benchmark": ["--p7", "--no-benchmark"],
    "p8, no benchmark": ["--p8", "--no-benchmark"],
    "p9, no benchmark": ["--p9", "--no-benchmark"],
}
WATCH, WATCHED = "p4, --watch", "problem_4.py"
LIGHTS = re.compile(r"^steps  ")  # the first line for a right file


def edited(folder: Path, files: str = "problem_?.py") -> Path:
    """Copies of the solved files, each with a number that was never used before."""
    for path in ROOT.glob(files):
        text = path.read_text("utf-8")
        changed = text.replace(EDITED, f"({EDITED} - {secrets.randbelow(10**6)})", 1)
        (folder / path.name).write_text(changed, "utf-8")
    return folder


def started(folder: Path, arguments: list[str]) -> subprocess.Popen:
    program = "autograder_optional.py" if {"--p8", "--p9"} & set(arguments) else "autograder.py"
    command = [sys.executable, "-u", program, "--submission", str(folder), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)


def graded(folder: Path, arguments: list[str]) -> tuple[float, float]:
    """-> seconds until the line of steps; until the end."""
    start, first, said = time.monotonic(), None, []
    with started(folder, arguments) as run:
        for line in run.stdout:
            if first is None and LIGHTS.search(line):
                first = time.monotonic() - start
            said.append(line)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)}: want exit code 0; got {run.returncode}\n"
                         + "".join(said[-8:]))
    return first, time.monotonic() - start


def watched(folder: Path, rounds: int) -> list[tuple[float, float]]:
    """-> for each save, seconds until the line of steps; until the next save is noticed."""
    found = []  # with a single problem, because after a pass the next one is watched
    with started(folder, ["--p4", "--watch"]) as run:
        start = first = None
        for line in run.stdout:
            if first is None and LIGHTS.search(line):
                first = time.monotonic()
            if line.startswith("Watching"):
                if start is not None:
                    found.append((first - start, time.monotonic() - start))
                if len(found) == rounds:
                    break
                time.sleep(3.0)  # as a student thinks, while the next worker starts
                edited(folder, WATCHED)
                start, first = time.monotonic(), None
        run.send_signal(signal.SIGINT)
        run.stdout.read()
    return found


def importing() -> float:
    """Seconds for `import torch` alone, the second time."""
    for _ in range(2):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - start


def words(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f}-{max(seconds):.1f})"


def say(name: str, times: dict[str, list[tuple[float, float]]]) -> None:
    for which, both in times.items():
        first, whole = ([pair[i] for pair in both] for i in (0, 1))
        print(f"{name}, {which}: steps {words(first)}, end {words(whole)}", flush=True)


def side_by_side(name: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(count) as pool:
        folders = [Path(root, str(i)) for i in range(count)]
        for folder in folders:
            folder.mkdir()
            edited(folder)
        start = time.monotonic()
        gradings = [pool.submit(graded, folder, RUNS[name]) for folder in folders]
        failed = [grading.exception() for grading in gradings if grading.exception()]
        whole = time.monotonic() - start
    print(*failed, f"{name}, {count} side by side: {len(failed)} did not pass, {whole:.1f} s, "
          f"{whole / count:.2f} s per grading", sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[*RUNS, WATCH], metavar="NAME",
                        choices=[*RUNS, WATCH])
    parser.add_argument("--beside", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    print(f"import torch: {importing():.1f}", flush=True)
    for name in arguments.only:
        if name == WATCH:
            with tempfile.TemporaryDirectory() as folder:
                times = {"saved": watched(edited(Path(folder), WATCHED), arguments.rounds)}
            say(name, times)
            continue
        times = {"edited": [], "again": []}
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                edited(Path(folder))
                for which in times:
                    times[which].append(graded(Path(folder), RUNS[name]))
        say(name, times)
        if arguments.beside:
            side_by_side(name, arguments.beside)


if __name__ == "__main__":
    main()
