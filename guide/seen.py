"""python -m guide.seen: records what our stages do in the interpreter, and what they compile to.

The result is seen.json, with date and versions, so that the guide can be built without Triton; a
test checks it.  No GPU is needed: tools/compiled.py compiles stage 3 for sm_90 (H100, H200).
"""

import datetime
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("seen.json")
DTYPES = ("float32", "float16", "bfloat16")
COMPARED = ("sum_not_rescaled", "no_log2e")
# num_warps, num_stages and rows of both tiles, as one might try them at D = 128.
CHOICES = ((4, 1, 64), (4, 2, 64), (4, 3, 64), (8, 3, 64), (4, 3, 128), (8, 2, 128))
IN_THE_LOOP = ("ttg.async_wait", "ttng.warp_group_dot", "tt.reduce", "math.exp2", "arith.truncf",
               "ttg.convert_layout", "ttg.async_copy_global_to_local")
DOT = re.compile(r"ttng\.warp_group_dot .*? : (.*?) \* (.*?) -> (.*?)(?: loc|$)", re.MULTILINE)


def interpreted() -> dict[str, float]:
    """dtype -> the relative error of stage 3's o in the interpreter, for N = 64, D = 16."""
    import torch

    import problem_3
    import reference

    errors = {}
    for dtype in DTYPES:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 1, 64, 16).to(getattr(torch, dtype))
        got = problem_3.FlashAttentionFunction.apply(q, k, v)  # skips the check of the dtype
        want = reference.attention(q, k, v)["o"]
        errors[dtype] = float((got.double() - want).norm() / want.norm())
    return errors


def load(stage: int, name: str | None = None):
    """A problem file as a module; with a name, that mutant of it."""
    from attacks.catalogue import ROOT, mutants

    text = (ROOT / f"problem_{stage}.py").read_bytes()
    if name:
        text, = (one.source for one in mutants(stage) if one.id == name)
    folder = tempfile.mkdtemp()  # not removed: Triton reads a kernel's text from its file
    path = Path(folder, f"problem_{stage}_{name}.py")
    path.write_bytes(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -------------------------------------------------- what the chapter on tools shows
def watch(module, call) -> list:
    """Returns l_i and m_i after each tile:
    NumPy arrays, in the interpreter."""
    after, attend = [], module._attend

    def watching(*arguments, **more):
        made = attend(*arguments, **more)
        after.append([
            x.handle.data.copy()
            for x in made[1:]
        ])
        return made

    # The kernel looks this name up.
    module._attend = watching
    call()
    return after


def compare(name: str | None = None) -> list[str]:
    """Lines: per key tile, the largest error of the lse that l_i and m_i give."""
    import torch

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 64, 16)
    module, scores = load(3, name), (q @ k.mT / 4)[0, 0].double()
    found = []
    module._tiles = lambda q: dict(D=16, BLOCK_D=16, BLOCK_M=16, BLOCK_N=16)
    after = watch(module, lambda: module.flash_attention_forward(q, k, v))
    for tile, (l_i, m_i) in enumerate(after[:4]):  # the first program: rows 0 ... 15
        seen = scores[:16, : 16 * (tile + 1)]
        lse = (torch.tensor(m_i) + torch.log2(torch.tensor(l_i))) * 0.6931471805599453
        found.append(f"{(lse - torch.logsumexp(seen, 1)).abs().max():.0e}")
    return found


def hunt() -> list[str]:
    """Lines: where stage 6 without its pivot has its first NaN, in the interpreter."""
    import numpy
    import torch

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 64, 16)
    module, said = load(6, "no_pivot"), []
    module._tiles = lambda q: dict(D=16, BLOCK_D=16, BLOCK_M=16, BLOCK_N=16)
    with numpy.errstate(all="ignore"):
        after = watch(module, lambda: module.flash_attention_forward(q, k, v, window_size=12))
    for call, (l_i, m_i) in enumerate(after):
        bad = numpy.isnan(l_i).nonzero()[0]
        said.append(f"call {call}: l_i is NaN in {len(bad)} of 16 rows, m_i is -inf in "
                    f"{int(numpy.isneginf(m_i).sum())}")
        if len(bad):
            return said
    return said


def told() -> dict:
    """All observations in the interpreter."""
    return {"interpreted": interpreted(), "hunt": hunt(),
            "compared": {str(name): compare(name) for name in (None, *COMPARED)}}


def _place(type_: str) -> str:
    return "shared memory" if "memdesc" in type_ else "registers"


def compiled(D: int) -> dict:
    """What stage 3's forward compiles to for sm_90 in bfloat16; in a process that pretends."""
    import torch

    import problem_3
    from tools.compiled import attention_inputs, launches

    q, k, v = (x.detach() for x in attention_inputs((16, 16), 4096, D, torch.bfloat16))
    launch, = launches(lambda: problem_3.flash_attention_forward(q, k, v))
    registers, stack = launch.usage()
    dots = DOT.findall(launch.kernel.asm["ttgir"])
    return {"D": D, "registers": registers, "stack": stack, "shared": launch.kernel.metadata.shared,
            "warps": launch.kernel.metadata.num_warps, "stages": launch.kernel.metadata.num_stages,
            "scores": [_place(x) for x in dots[0]], "output": [_place(x) for x in dots[1]]}


def chosen(choice: tuple[int, int, int]) -> dict:
    """The needs of stage 3's forward at D = 128 with other warps, stages and rows."""
    import torch

    import problem_3
    from tools.compiled import attention_inputs, launches

    warps, stages, rows = choice
    q, k, v = (x.detach() for x in attention_inputs((16, 16), 4096, 128, torch.bfloat16))
    problem_3._tiles = lambda q: dict(D=128, BLOCK_D=128, BLOCK_M=rows, BLOCK_N=rows,
                                      num_warps=warps, num_stages=stages)
    launch, = launches(lambda: problem_3.flash_attention_forward(q, k, v))
    registers, stack = launch.usage()
    return {"warps": warps, "stages": stages, "rows": rows, "registers": registers, "stack": stack,
            "shared": launch.kernel.metadata.shared}


def looked(D: int) -> list[str]:
    """Lines of the TTGIR of stage 3's loop for sm_90, without types and locations of operands."""
    import torch

    import problem_3
    from tools.compiled import attention_inputs, launches

    q, k, v = (x.detach() for x in attention_inputs((16, 16), 4096, D, torch.bfloat16))
    launch, = launches(lambda: problem_3.flash_attention_forward(q, k, v))
    loop = launch.kernel.asm["ttgir"].split("scf.for", 1)
    lines = ["%m_i = scf.for" + loop[1].split(" iter_args")[0]]
    for line in loop[1].split("scf.yield")[0].splitlines()[1:]:
        head = re.match(r' *(%\w+)(?::\d+)? = "?([\w.]+)', line)
        if head and head[2] in IN_THE_LOOP:
            types = re.findall(r"(?:tensor|memdesc)?<[^<>]*(?:<[^<>]*>)?[^<>]*>", re.sub(
                r" loc\(.*$|<\{.*?\}>|\{.*?\}", "", line.split(" : ", 1)[-1]))
            lines.append(f"  {head[1]} = {head[2]}" + (f"  -> {types[-1]}" if types else ""))
    return [re.sub(r", #smem|, mutable|!ttg\.", "", line) for line in lines]


def look() -> dict:
    """The contents of seen.json."""
    from importlib.metadata import version

    from tools.compiled import map_pretending

    code = "import json; from guide import seen; print(json.dumps(seen.told()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=FILE.parent.parent,
                         env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
    return {"date": str(datetime.date.today()), "triton": version("triton"),
            **json.loads(ran.stdout),
            **{name: map_pretending(90, function, items, 2) for name, function, items in (
                ("compiled", compiled, [64, 128]), ("chosen", chosen, CHOICES),
                ("looked", looked, [64]))}}


@cache
def seen() -> dict:
    return json.loads(FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    FILE.write_text(json.dumps(look(), indent=1) + "\n", encoding="utf-8")
