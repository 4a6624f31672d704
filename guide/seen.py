"""python -m guide.seen: what our own stages do in the interpreter, and what they are compiled to.

Written to seen.json, with date and versions, so that the guide is built without Triton; a test
makes it anew.  No GPU is needed: stage 3 is compiled for sm_90 (H100, H200) as tools/compiled.py
does it.
"""

import datetime
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("seen.json")
DTYPES = ("float32", "float16", "bfloat16")
DOT = re.compile(r"ttng\.warp_group_dot .*? : (.*?) \* (.*?) -> (.*?)(?: loc|$)", re.MULTILINE)


def interpreted() -> dict[str, float]:
    """dtype -> relative error of stage 3's o in the interpreter, N = 64, D = 16."""
    import torch

    import problem_3
    import reference

    errors = {}
    for dtype in DTYPES:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 1, 64, 16).to(getattr(torch, dtype))
        got, want = problem_3.flash_attention_forward(q, k, v), reference.attention(q, k, v)["o"]
        errors[dtype] = float((got.double() - want).norm() / want.norm())
    return errors


def _place(type_: str) -> str:
    return "shared memory" if "memdesc" in type_ else "registers"


def compiled(D: int) -> dict:
    """What stage 3's forward is on sm_90 with bfloat16; in a process that pretends to have one."""
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


def look() -> dict:
    """All of seen.json."""
    from importlib.metadata import version

    from tools.compiled import map_pretending

    code = "import json; from guide import seen; print(json.dumps(seen.interpreted()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=FILE.parent.parent,
                         env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
    return {"date": str(datetime.date.today()), "triton": version("triton"),
            "interpreted": json.loads(ran.stdout), "compiled": map_pretending(
                90, compiled, [64, 128], 2)}


@cache
def seen() -> dict:
    return json.loads(FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    FILE.write_text(json.dumps(look(), indent=1) + "\n", encoding="utf-8")
