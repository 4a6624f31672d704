"""Read, write and continue results.json, which is complete at every moment."""

import json
import os
import tempfile
from pathlib import Path

from benchmarks.workloads import Workload

FORMAT = 2  # 1 had one column of ours, where 2 has stages, fast and gluon
SAME = ("gpu", "torch", "triton")  # times of other machines or versions are not mixed


class Mismatch(ValueError):
    """The file cannot be continued here.  The text says want ...; got ..."""


def new(machine: dict, date: str, settings: dict) -> dict:
    return {"format": FORMAT, "machine": machine, "date": date, "settings": settings,
            "host": {}, "records": []}


def write(results: dict, path: Path) -> None:
    """Replace the file in one step: nobody reads half of it, and a killed run leaves none."""
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path) -> dict:
    """Read results.json.  Raises Mismatch if the file is not one of ours."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Mismatch(f"want a results.json; got {path}: {error}") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        got = results.get("format") if isinstance(results, dict) else None
        raise Mismatch(f"want a results.json of format {FORMAT}; got format {got}: {path}")
    return results


def resume(path: Path, machine: dict) -> dict | None:
    """Returns the results of an earlier run, None if there are none.

    Raises:
        Mismatch: they are from another GPU or other versions, or the file cannot be read.
    """
    if not path.exists():
        return None
    results = read(path)
    want, got = ({key: where.get(key) for key in SAME} for where in (machine, results["machine"]))
    if want != got:
        raise Mismatch(f"--resume: want results of {_told(want)}; got {_told(got)}")
    return results


def record_of(results: dict, work: Workload) -> dict | None:
    return next((r for r in results["records"] if r["label"] == work.label), None)


def peers_to_time(results: dict, work: Workload, names: list[str]) -> list[str]:
    """Returns the peers to time now; none if all have been timed.

    Only times taken in turn can be compared, so if one peer is missing, all are timed again.
    """
    record = record_of(results, work)
    known = list(record["peers"]) if record else []
    if set(names) <= set(known):
        return []
    return names + [name for name in known if name not in names]


def put(results: dict, record: dict, order: list[Workload]) -> None:
    """Add the record, or replace the one with the same label; sort records as in order."""
    place = {work.label: i for i, work in enumerate(order)}
    others = [r for r in results["records"] if r["label"] != record["label"]]
    results["records"] = sorted(
        [*others, record], key=lambda r: place.get(r["label"], len(place)))


def _told(machine: dict) -> str:
    return f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}"
