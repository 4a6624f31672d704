"""python -m tools.diagnoses_page > docs/diagnoses.md: every diagnosis, its id and what it says."""

from grader.inside.wire import OBSERVED
from grader.naming.isolating import NUMBERS, SURROUNDINGS, THINGS
from grader.naming.words import PATTERNS
from grader.steps.known import known
from grader.steps.named import SAID
from grader.steps.repair import WORDS

INTRO = """\
# What the grader can say about a wrong answer

`"diagnosis"` in the JSON of the first failing check of a stage has an `"id"` of this page, a
`"kind"`, a `"text"` and a `"step"`, which is null where nothing fixes it, and several where it may
be any of them; those of later checks, and crashes, have one where it needs no search. Ids are
stable. Written by `python -m tools.diagnoses_page`, and held to it by a test.

* **step**: a step of a file with this course's markers is wrong when it is asked alone. The id is
  that of the variant of the step's formula that leaves the same, or of the one change of its text
  that makes it right, or of what was raised; `step-wrong` where there is none of these.
* **named**: no step was found so. The submission's numbers are those that this one mistake gives,
  within rounding, in small cases asked of the same worker; neither the truth nor any other mistake
  of the table comes within five times that distance. The JSON adds `line` (the rule), `distance`,
  `runner_up`, `runner_up_distance` and `truth_distance`, in multiples of what a right kernel may be
  off.
* **isolated**: no mistake of the table fits, and plain cases are right; the id says without which
  one thing the failing case is right, too.
* **seen**: no mistake of the table fits; the id says what the effective attention matrix shows.
* **pattern**: none of these; the id says where the wrong numbers are, or what they have in common.
* **observed**: the outcome needs no search: a crash, a shape, a race.

A mistake of a mask or a walk found only in the gradients has `dq-`, `dkdv-` or `backward-` before
its id.
"""

SEEN = {
    "effect-nan": "rows of weights are NaN",
    "effect-extra-keys": "queries see keys that they should not",
    "effect-missing-keys": "queries do not see keys that they should",
    "effect-row-sums": "the right keys in the right proportions, but the weights do not add up",
    "effect-too-sharp": "the weights are those of scores that are too large",
    "effect-too-flat": "the weights are those of scores that are too small",
    "effect-hidden-weights": "hidden keys get weights that are not those of their scores",
    "effect-weights": "the weights of some pairs are not in the right proportion to the others",
}


def page() -> str:
    """The whole of docs/diagnoses.md."""
    rows = [INTRO, "## Named", "", "| id | what | the rule |", "|---|---|---|"]
    rows += [f"| `{id}` | {_cell(mistake.words)} | {_cell(mistake.rule)} |"
             for id, mistake in known().items()]
    rows += ["", "`{0}` stands for what was found: which part, which number.", "",
             "## Seen in the effective attention matrix", "", "| id | what |", "|---|---|"]
    rows += [f"| `{id}` | {text} |" for id, text in SEEN.items()]
    rows += ["", "## In a step asked alone", "",
             "| id | what is wrong, or what makes the step right |", "|---|---|",
             "| `truth-of-a-tile` | `and`, `or`, `not` or a < b < c among tiles |"]
    rows += [f"| `{id}` | one change in the line that is told: {text.format('...')} |"
             for id, text in WORDS.items()]
    rows += [f"| `{id}` | {_cell(text.format('...'))} |" for id, text in SAID.items()]
    rows += ["| `handed-wrongly` | a walk hands on what it was not to |",
             "| `nothing-stored` | what is to be stored is not |",
             "| `blind-row-max` | a row that has seen no key yet gets a maximum |",
             "| `load-without-other` | what a load's mask leaves out has no value |",
             "| `result-dropped` | a walk leaves another result than its last call gave back |",
             "| `step-wrong` | none of these: what was left and wanted is told |"]
    rows += ["", "## Isolated", "", "| id | the same case is right | hint |", "|---|---|---|"]
    rows += [f"| `only-{thing.id}` | {_cell(thing.right)} | {_cell(thing.hint)} |"
             for thing in (*THINGS, SURROUNDINGS, NUMBERS)]
    rows += ["", "## Patterns", "", "| id | hint |", "|---|---|"]
    rows += [f"| `pattern-{id}` | {_cell(text)} |" for id, text in PATTERNS.items()]
    rows += ["", "## Observed", "", "| id |", "|---|"]
    rows += [f"| `{id}` |" for id in OBSERVED]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
