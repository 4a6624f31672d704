"""The command:  python -m grader.check FILE.py[:function]

The adapter is imported by a worker in a sandbox, never here.
"""

import argparse
import collections
import json
import secrets
import shlex
import sys
import textwrap
import traceback
from dataclasses import asdict, replace
from pathlib import Path

from grader import process
from grader.check import adapter
from grader.check.adapter import Adapter, BadUsage
from grader.course.stages import triton_version
from grader.host import files
from grader.host.processes import ForkServer, confinement, seems_to_have_gpu
from grader.text import tensor_name

DONE, WRONG, USAGE, FAULT = 0, 1, 2, 3
FORMAT, WIDTH = 1, 100


def main(argv: list[str] | None = None) -> int:
    """-> 0 nothing claimed is wrong, 1 something is, 2 usage, 3 a fault of this command."""
    options = _options(argv)
    process.prepare()
    try:
        read = adapter.read(options.file)
        _refuse(options)
        ForkServer.running()  # it imports torch while this process does
        process.import_torch(False, None)
        return _check(options, read)
    except BadUsage as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("\nInterrupted; the rows above stand.", file=sys.stderr)
        return 130
    except Exception:
        traceback.print_exc()
        print("error: the check itself failed, and nothing is settled by it.", file=sys.stderr)
        return FAULT


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m grader.check", description="Check an attention function, feature by "
        "feature, against float64.", epilog="exit code: 0 nothing claimed is wrong, 1 something is "
        "(or the plain call fails), 2 usage, 3 a fault of this command")
    add = parser.add_argument
    add("file", metavar="FILE.py[:function]", help=f"holds attention{adapter.WANTED}, or less of "
        "it: docs/check.md")
    add("--json", metavar="FILE", type=Path, help="write the table there, too")
    add("--only", metavar="FEATURE", action="append", default=[],
        help="check this feature alone, or A,B alone; may be given several times")
    add("--seed", metavar="N", type=int, help="use the inputs of an earlier run again")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto",
        help="cpu: Triton's interpreter, even where there is a GPU")
    return parser.parse_args(argv)


def _refuse(options: argparse.Namespace) -> None:
    """Raise BadUsage for options that cannot be."""
    if options.json and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        raise BadUsage(f"--json: want a file in a directory that exists; got {options.json}")
    if options.seed is not None and options.seed < 0:
        raise BadUsage(f"--seed: want a number of 0 or more; got {options.seed}")
    if options.device == "cuda" and not seems_to_have_gpu():
        raise BadUsage("--device: want cpu or auto where there is no GPU; got cuda")


def _check(options: argparse.Namespace, read: Adapter) -> int:
    import torch

    from grader.check import table
    from grader.check.asking import RIGHT, Asking
    from grader.check.features import FEATURES, Asked

    only = [one for given in options.only for one in given.split(",")]
    if unknown := [one for one in only if one not in FEATURES]:
        raise BadUsage(f"--only: want one of {', '.join(FEATURES)}; got {unknown[0]}")
    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise BadUsage("--device: want a GPU that PyTorch finds; got none")
    device = "cuda" if has_gpu and options.device != "cpu" else "cpu"
    seed = secrets.randbits(32) if options.seed is None else options.seed
    confined = replace(confinement((), "none"), readable=adapter.editable_folders())
    print(f"{read.path}:{read.entry}, which takes {', '.join(read.claims) or 'no option'}\n"
          f"on {device}, torch {torch.__version__}, triton {triton_version()}, seed {seed}\n")
    rows = []
    with Asking(read, device, seed, confined) as asking:
        for feature in only or FEATURES:
            rows.append(table.row(asking, feature))
            print(*_lines(FEATURES[feature], rows[-1]), sep="\n", flush=True)
            if rows[-1].verdict == "wrong":  # what repeats it, on one line, to be pasted
                print(f"    python -m grader.check {shlex.quote(options.file)} --only {feature} "
                      f"--seed {seed}" + f" --device {options.device}" * (options.device != "auto"))
        answers = asking.found(Asked(asking.plain)).verdict == RIGHT
    counts = collections.Counter(row.verdict for row in rows)
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + ".")
    if options.json:
        said = {"format": FORMAT, "file": str(read.path), "function": read.entry, "device": device,
                "torch": torch.__version__, "triton": triton_version(), "seed": seed,
                "takes": read.claims, "align": read.align or None,
                "features": [asdict(row) for row in rows]}
        files.write(options.json, json.dumps(said, indent=1).encode())
    return WRONG if counts["wrong"] or not answers else DONE


def _lines(title: str, row) -> list[str]:
    """A row as it is printed: its verdict, then what shows it."""
    told = [row.says or f"{row.right} calls"]
    if row.verdict == "wrong":
        told[0] = f"{tensor_name(row.tensor)}: {told[0]}" if row.tensor else told[0]
        told += [row.case + f"; {row.worst}" * bool(row.worst)]
    elif row.verdict == "right":
        told += [f"refused: {case}: {said}" for said, case in row.refused.items()]
    told += [f"remark: beyond the limits, as right 16-bit arithmetic may be: {one}"
             for one in row.remarks]
    head = f"{title:17}{row.verdict:13}"
    wrapped = [part for one in told for part in textwrap.wrap(one, WIDTH - len(head))]
    return [(head if i == 0 else " " * len(head)) + part for i, part in enumerate(wrapped)]


if __name__ == "__main__":
    sys.exit(main())
