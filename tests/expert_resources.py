"""Compile the expert kernels for Hopper without a GPU, and read what they need and what ptxas says.

python -m tests.expert_resources                 a row for every configuration that is shipped
python -m tests.expert_resources --serialised    the forward with one mistake, which ptxas notes

Run with another Triton in front of PYTHONPATH for another version.  Prints JSON with --json.
"""

import functools
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# pretend() before Triton and the kernels are imported.
from tests import kernel_resources, register_clash

HEADS, N, RAGGED_N = (4, 2), 2048, 2000
ALL = dict(window_size=500, sink_logits=True, deterministic=True)
CALLS = [
    dict(D=128, dtype="bfloat16", N=N, is_causal=True),
    dict(D=128, dtype="bfloat16", N=N, is_causal=False),
    dict(D=128, dtype="float16", N=RAGGED_N, is_causal=False),
    dict(D=128, dtype="bfloat16", N=RAGGED_N, is_causal=True, **ALL),
    dict(D=64, dtype="bfloat16", N=N, is_causal=True),
    dict(D=64, dtype="bfloat16", N=RAGGED_N, is_causal=False),
    dict(D=64, dtype="float16", N=N, is_causal=True, **ALL),
]
PRODUCTS = 12  # instructions for products in a round, at least
# Two lines of the forward's loop, and the same with a mistake: acc is listed beside the scores, and
# rescaled without the wait for its product.
RIGHT = "                s = warpgroup_mma_wait(1, (s,))"
WRONG = "                s, acc = warpgroup_mma_wait(1, (s, acc))"
LATER = "                acc, left = warpgroup_mma_wait(0, (acc, left))"
MISSING = "                alpha = alpha + 0.0"


def pretend() -> None:
    """Make this process one with a Hopper GPU, whose launches only compile."""
    import torch

    kernel_resources.pretend(90, tempfile.mkdtemp())
    torch.cuda.is_current_stream_capturing = lambda: False


def call(attend, D, dtype, N, sink_logits=False, **options) -> None:
    """One forward and backward."""
    import torch

    from expert import hopper

    hopper._kernels.clear()  # what only compiles must not be launched a second time
    q, k, v = (
        torch.empty(1, heads, N, D, dtype=getattr(torch, dtype), requires_grad=True)
        for heads in (HEADS[0], HEADS[1], HEADS[1])
    )
    inputs = [q, k, v] + [torch.empty(HEADS[0], requires_grad=True)] * sink_logits
    o = attend(q, k, v, sink_logits=inputs[3] if sink_logits else None, **options)
    torch.autograd.grad(o, inputs, torch.empty_like(o))


def assembled(ptx: str) -> tuple[str, str]:
    """What ptxas says, and the machine code."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        done = subprocess.run(
            [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", source, "-o", cubin],
            capture_output=True, text=True, check=True,
        )
        sass = kernel_resources.cuobjdump(cubin.read_bytes(), "-sass")
    return done.stdout + done.stderr, sass


def rounds(sass: str) -> list:
    """Instructions of the shortest loop that has a round's products in it."""
    code = register_clash.instructions(sass)
    bodies = []
    for x in code:
        target = x.target()
        if target is not None and target < x.address:
            body = [y for y in code if target <= y.address <= x.address]
            if sum(y.name == "HGMMA" for y in body) >= PRODUCTS:
                bodies.append(body)
    return min(bodies, key=len, default=[])


def row(name: str, kernel) -> dict:
    """What a compiled kernel needs.  roles: registers a thread of each; notes: C75.. of ptxas."""
    said, sass = assembled(kernel.asm["ptx"])
    number = lambda words: int(re.search(words, said)[1])  # noqa: E731
    return {
        "kernel": name,
        "registers": number(r"Used (\d+) registers"),
        "roles": sorted({int(n, 16) for n in re.findall(r"USETMAXREG\S* (0x\w+)", sass)}),
        "stack": number(r"(\d+) bytes stack frame"),
        "shared": kernel.metadata.shared,
        "notes": sorted(set(re.findall(r"C75\d\d", said))),
        "spills_in_loop": sum(x.name in ("LDL", "STL") for x in rounds(sass)),
        "products": sass.count("HGMMA"),
    }


def rows() -> list[dict]:
    from expert.attention_hopper_autograd import flash_attention_hopper

    found = {}
    for options in CALLS:
        run = functools.partial(call, flash_attention_hopper, **options)
        for launch in kernel_resources.compiled(run):
            if launch.kernel.hash not in found:
                found[launch.kernel.hash] = options | row(launch.name, launch.kernel)
    return list(found.values())


def serialised() -> list[dict]:
    """The forward in which a sum is touched before the wait for its product."""
    import torch

    file = Path(__file__).parents[1] / "expert/attention_hopper.py"
    text = file.read_text()
    assert text.count(RIGHT) == text.count(LATER) == 1
    wrong = Path(tempfile.mkdtemp(), "serialised.py")
    wrong.write_text(text.replace(RIGHT, WRONG).replace(LATER, MISSING))
    spec = importlib.util.spec_from_file_location("serialised", wrong)
    module = importlib.util.module_from_spec(spec)
    sys.modules["serialised"] = module
    spec.loader.exec_module(module)
    q = torch.empty(1, 2, 512, 128, dtype=torch.bfloat16)
    launches = kernel_resources.compiled(lambda: module.attention_forward(q, q, q))
    return [row(launch.name, launch.kernel) for launch in launches]


def main() -> int:
    pretend()
    import triton

    found = serialised() if "--serialised" in sys.argv else rows()
    if "--json" in sys.argv:
        print(json.dumps({"triton": triton.__version__, "rows": found}))
        return 0
    for entry in found:
        print(*(f"{key}={value}" for key, value in entry.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
