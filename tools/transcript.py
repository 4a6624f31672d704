"""python -m tools.transcript: run docs/debugging-stage-4.md anew, and write what the grader says.

The page's own words stay; every block that begins with "$ python" is run in a fresh assignment, in
the order of the page, with the mistakes below in the student's file.  A minute on two cores.
"""

import datetime
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from grader import starter
from grader.assignment.submission import steps

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "debugging-stage-4.md"
BLOCK = re.compile(r"^```\n\$ python (?P<command>.*)\n(?:.*\n)*?```$", re.MULTILINE)
WHEN = re.compile(r"on \d{4}-\d\d-\d\d, without\na GPU \(torch \S+, Triton \S+\)")

RIGHT = {"4.4": "s = tl.dot(q, tl.trans(k))", "4.5": "acc * alpha[:, None])",
         "4.6": "keep = key <= query"}
WRONG = {"4.4": "s = tl.dot(q, k)", "4.5": "acc)", "4.6": "keep = key <= query + 1"}
# Which of these are in the file, under each heading; under the first, new steps are still blank.
MISTAKES = {"First try: it does not run": ["4.4"],
            "Second try: numbers, but wrong ones": ["4.6"],
            "Third try: right on one tile, wrong from the second on": ["4.5"],
            "Green": []}


def _filled(blank: str, mistakes: list[str]) -> str:
    """problem_4.py of the assignment with every step filled in, and these of them wrong."""
    rows, solved = blank.splitlines(), (ROOT / "problem_4.py").read_text("utf-8")
    texts = {step.id: solved.splitlines()[step.first_line : step.last_line - 1]
             for step in steps(solved)}
    for step in reversed(steps(blank)):
        text = "\n".join(texts[step.id])
        if step.id in mistakes:
            right = RIGHT[step.id]
            if text.count(right) != 1:
                raise ValueError(f"want one {right!r} in step {step.id}; got {text.strip()}")
            text = text.replace(right, WRONG[step.id])
        rows[step.first_line : step.last_line - 1] = text.splitlines()
    return "\n".join(rows) + "\n"


def page(old: str, folder: Path) -> str:
    """The page with every command run anew.  folder: empty; the assignment comes there."""
    starter.main([str(folder)])
    (folder / "problem_3.py").write_bytes((ROOT / "problem_3.py").read_bytes())
    student = folder / "problem_4.py"
    blank = student.read_text("utf-8")
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"}

    def ran(block):
        under = re.findall(r"^## (.+)$", old[: block.start()], re.MULTILINE)[-1]
        if under in MISTAKES:
            student.write_text(_filled(blank, MISTAKES[under]), "utf-8")
        command = block["command"].split()
        done = subprocess.run([sys.executable, *command], cwd=folder, env=hidden,
                              capture_output=True, text=True)
        if done.stderr:
            raise RuntimeError(f"want nothing on stderr of {block['command']}; got {done.stderr}")
        return f"```\n$ python {block['command']}\n{done.stdout.strip()}\n```"

    made = BLOCK.sub(ran, old)
    return WHEN.sub(f"on {datetime.date.today()}, without\na GPU (torch "
                    f"{version('torch').split('+')[0]}, Triton {version('triton')})", made)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(PAGE.read_text("utf-8"), Path(folder, "flash")), "utf-8")


if __name__ == "__main__":
    main()
