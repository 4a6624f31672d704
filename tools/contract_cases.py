"""python -m tools.contract_cases > grader/course/contract.tsv

Makes the rows that cover the contract: every pair of classes that may occur together
(grader/course/contract.py has the classes), and the triples of COARSE, in which windows and sinks
cross borders of tiles.  Needs covertable, from the extra "test".
"""

import csv
import functools
import itertools
import sys

import covertable

from grader.course import contract
from grader.course.stages import STAGES

COARSE = {"length": ("3T+1",), "window": ("T-1", "2T-1"), "sinks": ("0", "T+1")}
SALTS = 36  # arrays to make; the shortest is used


def made(stage) -> list[dict[str, str]]:
    """The rows of a stage: dimension -> class."""
    factors = {name: list(of) for name, of in contract.classes(stage).items()}
    rules = [{"operator": "fn", "requires": names.split(),
              "evaluate": functools.partial(_holds, names.split(), rule)}
             for names, rule in contract.RULES if set(names.split()) <= factors.keys()]
    presets = [dict(zip(COARSE, triple, strict=True))
               for triple in itertools.product(*COARSE.values())] \
        if COARSE.keys() <= factors.keys() else []
    apart = [{"fields": list(names), "strength": 1} for names in contract.APART
             if set(names) <= factors.keys()]
    arrays = [covertable.make(factors, constraints=rules, presets=presets, sub_models=apart,
                              salt=str(salt)) for salt in range(SALTS)]
    return min(arrays, key=len)


def _holds(names: list[str], rule, row: dict[str, str]) -> bool:
    return rule(*(row[name] for name in names))


def main() -> None:
    table = csv.DictWriter(sys.stdout, ["stage", *contract.CLASSES], delimiter="\t",
                           lineterminator="\n")
    table.writeheader()
    for number, stage in STAGES.items():
        table.writerows({"stage": number, **row} for row in made(stage))


if __name__ == "__main__":
    main()
