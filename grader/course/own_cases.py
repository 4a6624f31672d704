"""Reads --cases FILE: an instructor's own cases, which students do not have.

The file is TOML with one [[case]] per case.  Its fields are those of Case, within the assignment:

    [[case]]
    stage = 4
    N = 333
    HQ = 2
    family = "needles"

They count as robust cases and run after those of case_table.py.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import torch

from grader.course import case_table
from grader.course.cases import Case
from grader.course.stages import STAGES, Stage

DTYPES = {"float16": torch.float16, "float32": torch.float32}
FAMILIES = ("randn", "rising", "hot", "needles", "shift-", "deep", "heavy", "cancel")


def read(path: Path) -> tuple[Case, ...]:
    """Read the cases of a file.

    Raises:
        ValueError: it is not such a file, or asks more than its stage promises.
    """
    if not path.is_file():
        raise ValueError(f"--cases: want a file of cases, TOML; got {path}")
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"--cases: want TOML; got {error} in {path}") from None
    rows = given.get("case")
    if set(given) != {"case"} or not isinstance(rows, list) or not rows or not all(
            isinstance(row, dict) for row in rows):
        raise ValueError(f"--cases: want [[case]] and nothing else; got "
                         f"{', '.join(given) or 'nothing'} in {path}")
    found: list[Case] = []
    for number, row in enumerate(rows, start=1):
        try:
            new = _case(row)
            if new.name in {other.name for other in found if other.stage == new.stage}:
                raise ValueError(f"want each case once; got {new.name} twice")
        except ValueError as error:
            raise ValueError(f"--cases: {error}, in case {number} of {path}") from None
        found.append(new)
    return tuple(found)


def _case(row: dict) -> Case:
    found = case(row)
    if found.name in {listed.name for device in ("cpu", "cuda")
                      for listed in case_table.listed(found.stage, device, False)}:
        raise ValueError(f"want a case that is not asked anyway; got {found.name}")
    return found


def case(row: dict) -> Case:
    """The case with these fields of a [[case]].

    Raises:
        ValueError: it asks more than its stage promises.
    """
    number = row.get("stage")
    if type(number) is not int or number not in STAGES:
        raise ValueError(f"want a stage of 1-{max(STAGES)}; got {number!r}")
    stage, fields = STAGES[number], {name: said for name, said in row.items() if name != "stage"}
    fields.setdefault("is_causal", stage.is_causal)
    dtype = fields.setdefault("dtype", "float16")
    allowed, wanted = _allowed(stage, dtype)
    if unknown := sorted(fields.keys() - allowed):
        raise ValueError(f"want for stage {number} {', '.join(sorted(allowed))}; got {unknown[0]}")
    if missing := [name for name in wanted if name not in fields]:
        raise ValueError(f"want {missing[0]} for stage {number}; got none")
    if "scale" in fields and (type(fields["scale"]) is not float or not 0 < fields["scale"] <= 4):
        raise ValueError(f"want a scale of 0.01 to 4.0; got {fields['scale']!r}")
    for name, said in fields.items():
        values = allowed[name] or (said,)
        if said not in values or type(said) is not type(values[0]):
            words = f"{values[0]} to {values[-1]}" if isinstance(values, range) else (
                ", ".join(map(str, values)))
            raise ValueError(f"want {name} of {words}; got {said!r}")
    if "NK" in fields and fields["is_causal"]:
        raise ValueError("want NK without a causal mask; got both")
    if not stage.sums_rows:
        HQ = fields.setdefault("HQ", 1)
        HKV = fields.setdefault("HKV", 1 if stage.shares_keys else HQ)
        if HQ % HKV or HQ != HKV and not stage.shares_keys:
            raise ValueError(f"want {'a multiple of HKV' if stage.shares_keys else 'as many'} "
                             f"query heads; got HQ = {HQ}, HKV = {HKV}")
    if stage.has_sinks:
        fields.setdefault("sinks", 0)
    if stage.differentiates:
        fields["grads"] = ("q", "k", "v")
    return Case(number, "robust", **fields | {"dtype": DTYPES[dtype]})


def _allowed(stage: Stage, dtype: str) -> tuple[dict[str, Sequence], tuple[str, ...]]:
    """-> the fields a case of a stage may have, with their values; the fields it must have."""
    lengths = range(1, 8193)
    allowed = {"N": lengths, "dtype": tuple(DTYPES), "is_causal": (stage.is_causal,)}
    if stage.sums_rows:
        return allowed | {"M": lengths, "family": ("randn", "hot", "needles"),
                          "layout": ("dense", "guarded")}, ("M", "N")
    allowed |= {"D": (16, 32, 64) if dtype == "float32" else (16, 32, 64, 128),
                "B": range(1, 17), "HQ": range(1, 65), "HKV": range(1, 65), "family": FAMILIES,
                "layout": ("dense", "guarded", "transposed", "views")}
    if stage.chooses_mask and not stage.windowed:
        allowed["is_causal"] = (False, True)
    if not stage.needs_triton:
        allowed["NK"] = lengths
    if stage.windowed:
        allowed["window"] = range(1, 2**31)
    if stage.has_sinks:
        allowed["sinks"] = range(2**31)
    if stage.takes_scale:
        allowed["scale"] = ()  # any value within limits
    return allowed, ("N", "window") if stage.windowed else ("N",)
