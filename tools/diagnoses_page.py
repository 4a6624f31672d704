"""python -m tools.diagnoses_page > docs/diagnoses.md: every diagnosis, its id and what it says."""

from grader.inside.wire import OBSERVED
from grader.naming.mistakes import TABLE
from grader.naming.words import TRY
from grader.text import ranges

INTRO = """\
# What the grader can say about a wrong answer

`"diagnosis"` in the JSON of the first failing check of a stage has an `"id"` of this page, a
`"kind"` and a `"text"`; those of later checks, and crashes, have one where it needs no search.
Ids are stable. Written by `python -m tools.diagnoses_page`, and held to it by a test.

* **named**: the submission's numbers are those that this one mistake gives, within rounding, on
  the failing case and on further small cases asked of the same worker; neither the truth nor any
  other mistake of the table comes within five times that distance. The JSON adds `line` (the
  mathematics), `distance`, `runner_up`, `runner_up_distance` and `truth_distance`, in multiples of
  what a right kernel may be off; `only` where the mistake shows in some cases alone; `also` for a
  second mistake; `or` for another one that gives the same numbers in every case asked.
* **seen**: no mistake of the table fits; the id says what the effective attention matrix shows.
* **pattern**: neither; the id says where the wrong numbers are.
* **observed**: the outcome needs no search: a crash, a shape, a race.

A mask's mistake found only in the gradients has `dq-`, `dkdv-` or `backward-` before its id.
"""

SEEN = {
    "effect-nan": "rows of weights are NaN",
    "effect-extra-keys": "queries see keys that they should not",
    "effect-missing-keys": "queries do not see keys that they should",
    "effect-row-sums": "the right keys are seen, but the weights do not add up",
    "effect-weights": "the right keys, the right sums, wrong single weights",
}


def page() -> str:
    """The whole of docs/diagnoses.md."""
    rows = [INTRO, "## Named", "", "| id | stages | what | mathematics |", "|---|---|---|---|"]
    for mistake in TABLE:
        stages = ranges(mistake.stages)
        rows.append(f"| `{mistake.id}` | {stages} | {_cell(mistake.words)} | "
                    f"{_cell(mistake.line)} |")
    rows += ["", "`{...}` stands for what was found: which tensor, which part, which number.", "",
             "## Seen in the effective attention matrix", "", "| id | what |", "|---|---|"]
    rows += [f"| `{id}` | {text} |" for id, text in SEEN.items()]
    rows += ["", "## Patterns", "", "| id | what to try |", "|---|---|"]
    rows += [f"| `pattern-{symptom.replace('_', '-')}` | {_cell(text)} |"
             for symptom, text in TRY.items()]
    rows += ["", "## Observed", "", "| id |", "|---|"]
    rows += [f"| `{id}` |" for id in OBSERVED]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
