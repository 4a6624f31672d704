"""Change a module in one place at a time, and say which changes its tests let pass.

    make mutants MODULE=grader/judge/points.py TESTS="tests/judge/test_grade.py" MOST=40

The mutants are cosmic-ray's, made in a copy of the working tree.  A mutant that survives is printed
as a diff: either a test is missing, or the change makes no difference.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).parents[1]
SECONDS = 120  # for the tests of one mutant; a mutant that takes longer counts as noticed


def copy(into: Path) -> None:
    """What git keeps or would keep, as it is in the working tree."""
    kept = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                          cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, kept.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, into / name)


def mutants(module: str, tests: Sequence[str], most: int, seed: int = 0) -> list[tuple[bool, str]]:
    """Run the tests on mutants of a module.

    Args:
        module: Its path from the root of the repository.
        tests: What pytest is given.
        most: So many mutants, chosen by the seed, if there are more; 0: all.

    Returns:
        For each mutant whether a test failed, and the mutant as a diff.

    Raises:
        subprocess.CalledProcessError: The tests fail without a mutant, or cosmic-ray fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy(root)
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        subprocess.run(pytest, cwd=root, check=True, stdout=sys.stderr)
        (root / "config.toml").write_text(
            f"[cosmic-ray]\nmodule-path = {json.dumps(module)}\ntimeout = {SECONDS}.0\n"
            f"excluded-modules = []\ntest-command = {json.dumps(' '.join(pytest))}\n"
            '[cosmic-ray.distributor]\nname = "local"\n', "utf-8")
        run = [sys.executable, "-m", "cosmic_ray.cli"]
        subprocess.run([*run, "init", "config.toml", "session"], cwd=root, check=True)
        with use_db(root / "session", WorkDB.Mode.open) as session:
            ids = sorted(session.work_items, key=lambda item: (
                item.mutations[0].start_pos, item.mutations[0].operator_name, str(
                    item.mutations[0].operator_args)))
            chosen = random.Random(seed).sample(ids, min(most or len(ids), len(ids)))
            rest = {item.job_id for item in ids} - {item.job_id for item in chosen}
            session.set_multiple_results(rest, WorkResult(WorkerOutcome.SKIPPED))
        subprocess.run([*run, "exec", "config.toml", "session"], cwd=root, check=True)
        with use_db(root / "session", WorkDB.Mode.open) as session:
            return [(result.test_outcome != TestOutcome.SURVIVED, result.diff or "")
                    for _, result in session.results
                    if result.worker_outcome != WorkerOutcome.SKIPPED]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="its path, as in grader/judge/points.py")
    parser.add_argument("tests", nargs="+", help="what pytest is given")
    parser.add_argument("--most", type=int, default=0, help="so many mutants, by chance")
    options = parser.parse_args(argv)
    if not (ROOT / options.module).is_file():
        parser.error(f"want the path of a module from {ROOT}; got {options.module}")
    found = mutants(options.module, options.tests, options.most)
    for noticed, diff in found:
        if not noticed:
            print(diff, end="\n\n")
    count = Counter(noticed for noticed, _ in found)
    print(f"{options.module}: {count[True]} of {len(found)} mutants noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
