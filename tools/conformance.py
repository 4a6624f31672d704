"""python -m tools.conformance [FILE.json ...]: the table of docs/measured/conformance.md.

FILE.json: what `python -m grader.check ADAPTER --json FILE.json` wrote, on any machine.  Without
any, the adapters of examples/check/ that run without a GPU are checked first, for some minutes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from grader.check.features import FEATURES

HERE = ("sdpa.py", "flex.py", "eager.py", "sink.py", "transformers_attention.py:sdpa",
        "transformers_attention.py:eager", "transformers_attention.py:flex_attention")
CELLS = {"right": "right", "wrong": "**wrong**", "refused": "refused"}  # others: a dash
SEED = 20261129


def checked(adapter: str, folder: Path, seed: int = SEED) -> dict:
    """Check one adapter of examples/check/.  Raises RuntimeError: the check itself failed."""
    file = folder / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "grader.check", f"examples/check/{adapter}", "--json", str(file),
         "--seed", str(seed), "--device", "cpu"], capture_output=True, text=True)
    if done.returncode > 1:
        raise RuntimeError(f"want {adapter} checked; got exit code {done.returncode}: "
                           f"{done.stderr.strip()}")
    return json.loads(file.read_text("utf-8"))


def name(found: dict) -> str:
    """ "sdpa.py", or "transformers_attention.py:eager"."""
    function = found["function"]
    return Path(found["file"]).name + f":{function}" * (function != "attention")


def table(found: list[dict]) -> str:
    """A row for each feature and a column for each adapter; below it, what is wrong."""
    rows = [{row["feature"]: row for row in one["features"]} for one in found]
    lines = ["| | " + " | ".join(f"`{name(one)}`" for one in found) + " |",
             "|---|" + "---|" * len(found)]
    for feature, words in FEATURES.items():
        cells = [CELLS.get(one[feature]["verdict"], "-") if feature in one else "" for one in rows]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines.append("")
    for one in found:
        lines.append(f"`{name(one)}`: {one['device']}, torch {one['torch']}, triton "
                     f"{one['triton']}, seed {one['seed']}.")
        lines += [f"- {FEATURES[row['feature']]}, {row['case']}: {row['says']} {row['worst']}"
                  for row in one["features"] if row["verdict"] == "wrong"]
    return "\n".join(lines)


if __name__ == "__main__":
    files = [Path(argument) for argument in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        print(table([json.loads(file.read_text("utf-8")) for file in files] if files else
                    [checked(adapter, Path(folder)) for adapter in HERE]))
