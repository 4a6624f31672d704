"""--cases FILE: an instructor's own cases, which students do not have.

The file is TOML, a [[case]] each; its fields are those of Case, within what the assignment asks:

    [[case]]
    stage = 4
    N = 333
    HQ = 2
    family = "needles"

They are robust cases, asked after those of the table.
"""

import tomllib
from pathlib import Path

import torch

from grader.course import case_table
from grader.course.cases import Case
from grader.course.stages import STAGES, Stage

MOST = {"N": 8192, "M": 8192, "NK": 8192, "B": 16, "HQ": 64, "HKV": 64}
DTYPES = {"float16": torch.float16, "float32": torch.float32}
D = {"float16": (16, 32, 64, 128), "float32": (16, 32, 64)}
FAMILIES = {True: ("randn", "hot", "needles"),  # of a stage that sums rows, and of attention
            False: ("randn", "rising", "hot", "needles", "shift-", "deep", "heavy", "cancel")}
LAYOUTS = {True: ("dense", "guarded"), False: ("dense", "guarded", "transposed", "views")}


def read(path: Path) -> tuple[Case, ...]:
    """The cases of a file.

    Raises:
        ValueError: it is no such file, or asks what its stage does not promise.
    """
    if not path.is_file():
        raise ValueError(f"--cases: want a file of cases, TOML; got {path}")
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # no TOML, or not UTF-8
        raise ValueError(f"--cases: want TOML; got {error} in {path}") from None
    rows = given.get("case")
    if set(given) != {"case"} or not isinstance(rows, list) or not rows or not all(
            isinstance(row, dict) for row in rows):
        raise ValueError(f"--cases: want [[case]] and nothing else; got "
                         f"{', '.join(given) or 'nothing'} in {path}")
    found: list[Case] = []
    for number, row in enumerate(rows, start=1):
        try:
            case = _case(row)
            if case.name in {other.name for other in found if other.stage == case.stage}:
                raise ValueError(f"want each case once; got {case.name} twice")
        except ValueError as error:
            raise ValueError(f"--cases: {error}, in case {number} of {path}") from None
        found.append(case)
    return tuple(found)


def _case(row: dict) -> Case:
    row = dict(row)
    number = row.pop("stage", None)
    if type(number) is not int or number not in STAGES:
        raise ValueError(f"want a stage of 1-{max(STAGES)}; got {number!r}")
    stage = STAGES[number]
    allowed, wanted = _fields(stage)
    if unknown := set(row) - allowed:
        raise ValueError(f"want for stage {number} {', '.join(sorted(allowed))}; got "
                         f"{sorted(unknown)[0]}")
    if missing := [name for name in wanted if name not in row]:
        raise ValueError(f"want {missing[0]} for stage {number}; got none")
    for name in row.keys() & MOST.keys():
        _whole(name, row[name], 1, MOST[name])
    for name, least in (("window", 1), ("sinks", 0)):
        if name in row:
            _whole(name, row[name], least, 2**31 - 1)
    if type(row.setdefault("is_causal", stage.is_causal)) is not bool:
        raise ValueError(f"want is_causal of true or false; got {row['is_causal']!r}")
    if "NK" in row and row["is_causal"]:
        raise ValueError("want NK without a causal mask; got both")
    if "scale" in row and (type(row["scale"]) is not float or not 0 < row["scale"] <= 4):
        raise ValueError(f"want a scale of 0.01 to 4.0; got {row['scale']!r}")
    sums = stage.sums_rows
    dtype = _one_of("dtype", row.get("dtype", "float16"), tuple(DTYPES))
    _one_of("family", row.get("family", "randn"), FAMILIES[sums])
    _one_of("layout", row.get("layout", "dense"), LAYOUTS[sums])
    if not sums:
        _one_of(f"D in {dtype}", row.setdefault("D", 16), D[dtype])
        HQ = row.setdefault("HQ", 1)
        HKV = row.setdefault("HKV", 1 if _grouped(stage) else HQ)
        if HQ % HKV or HQ != HKV and not _grouped(stage):
            raise ValueError(f"want {'a multiple of HKV' if _grouped(stage) else 'as many'} query "
                             f"heads; got HQ = {HQ}, HKV = {HKV}")
    if stage.has_sinks:
        row.setdefault("sinks", 0)
    if stage.differentiates:
        row["grads"] = ("q", "k", "v")
    case = Case(number, "robust", **row | {"dtype": DTYPES[dtype]})
    if case.name in {listed.name for device in ("cpu", "cuda")
                     for listed in case_table.listed(number, device, False)}:
        raise ValueError(f"want a case that is not asked anyway; got {case.name}")
    return case


def _fields(stage: Stage) -> tuple[set[str], tuple[str, ...]]:
    """Which fields a case of a stage may have, and which it must."""
    both = {"N", "dtype", "family", "layout"}
    if stage.sums_rows:
        return both | {"M"}, ("M", "N")
    allowed = both | {"D", "B", "HQ", "HKV"}
    if not stage.needs_triton:
        allowed |= {"NK", "is_causal"}
    if stage.windowed:
        allowed |= {"window"}
    elif stage.differentiates:
        allowed |= {"is_causal"}
    if stage.has_sinks:
        allowed |= {"sinks"}
    if any("scale" in word for word in stage.keywords):
        allowed |= {"scale"}
    return allowed, ("N", "window") if stage.windowed else ("N",)


def _grouped(stage: Stage) -> bool:
    """Whether query heads share keys."""
    return any("kv head" in places for places in stage.steps.values())


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"want {name} of {least} to {most}; got {value!r}")


def _one_of(name: str, value: object, allowed: tuple) -> object:
    if type(value) is bool or value not in allowed:
        raise ValueError(f"want {name} of {', '.join(map(str, allowed))}; got {value!r}")
    return value
