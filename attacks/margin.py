"""python -m attacks.margin FILE ...: how far right and wrong answers are apart.

Reads what `python -m attacks --kind honest --kind mutants --results FILE` measured, with each error
as a multiple of its limit.  Prints, for each stage, dtype and family of inputs, the largest error
of an honest submission and the smallest error that failed a mutant; and for each stage the mutant
that was closest to passing.
"""

import argparse
import collections
import json
from pathlib import Path

from grader.course.case_table import listed
from grader.course.stages import STAGES


def margins(rows: list[dict], device: str) -> tuple[dict, dict, dict]:
    """-> the largest honest error and the smallest failing one, by (stage, dtype, family); the
    subtlest mutant's (ratio, name), by stage."""
    cases = {(n, case.name): case for n in STAGES
             for case in listed(n, device, device == "cuda")}
    honest, rejected, subtlest = {}, {}, {}
    for row in rows:
        right = row["want"] == ["pass"]
        for name, ratio in row["errors"].items():
            case = cases.get((row["stage"], name))
            if case is None or case.group == "beyond":  # renamed since, or it decides nothing
                continue
            key = row["stage"], str(case.dtype).removeprefix("torch."), case.family
            if right:
                honest[key] = max(honest.get(key, 0.0), ratio)
            elif ratio > 1:
                rejected[key] = min(rejected.get(key, float("inf")), ratio)
        over = [ratio for name, ratio in row["errors"].items()
                if ratio > 1 and not name.startswith("beyond/")]
        if over and not right:
            found = max(over), row["name"]
            subtlest[row["stage"]] = min(subtlest.get(row["stage"], found), found)
    return honest, rejected, subtlest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attacks.margin")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    rows = [json.loads(line) for file in parser.parse_args().files
            for line in file.read_text("utf-8").splitlines()]
    by_device = collections.defaultdict(list)
    for row in rows:
        if not row["problem"] and row["kind"] in ("honest", "mutants"):
            by_device[row["device"]].append(row)
    for device, chosen in by_device.items():
        honest, rejected, subtlest = margins(chosen, device)
        print(f"{device}: {len(chosen)} runs")
        print("stage  dtype     family   honest at most  rejected from")
        for key in sorted(honest):
            stage, dtype, family = key
            least = f"{rejected[key]:14.2f}" if key in rejected else f"{'-':>14}"
            print(f"{stage:<6} {dtype:<9} {family:<8} {honest[key]:14.2f} {least}")
        for stage, (ratio, name) in sorted(subtlest.items()):
            print(f"stage {stage}: the subtlest mutant, {name}, is {ratio:.2f} times over a limit")


if __name__ == "__main__":
    main()
