"""python -m attacks.alone FILE ...: what each case catches that no other does.

Reads what `python -m attacks --kind mutants --every-case --results FILE` measured.  Prints one line
per case: how many mutants it catches, and which only it catches.  A case without any of the latter
must be there for something else (kept answers, runs that differ, memory, a dtype), or it can go.
"""

import collections
import json
import sys
from pathlib import Path

from grader.course.case_table import listed


def alone(rows: list[dict]) -> dict[tuple[int, str], tuple[int, list[str]]]:
    """-> (stage, case) -> how many mutants fail it, and which fail only it."""
    caught, only = collections.Counter(), collections.defaultdict(list)
    for row in rows:
        decisive = [name for name in row["failed"] if not name.startswith("beyond/")]
        for name in decisive:
            caught[row["stage"], name] += 1
        if len(decisive) == 1:
            only[row["stage"], decisive[0]].append(row["name"].partition("/")[2])
    stages = sorted({row["stage"] for row in rows})
    asked = [(n, case.name) for n in stages for case in listed(n, rows[0]["device"], False)]
    return {key: (caught[key], only[key]) for key in dict.fromkeys([*asked, *caught])}


def main() -> None:
    rows = [json.loads(line) for file in sys.argv[1:]
            for line in Path(file).read_text("utf-8").splitlines()]
    for (stage, name), (count, names) in alone([r for r in rows if r["kind"] == "mutants"]).items():
        print(f"{stage}  {name:<58} {count:4d}  {', '.join(names)}")


if __name__ == "__main__":
    main()
