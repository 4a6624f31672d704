"""python -m tools.register_clash: finds Hopper kernels of sink_attn/ that lose q by a bug of ptxas.

Prints each such kernel with the first instructions that overwrite q, and how many kernels were
checked.  Three minutes on two cores.

If a product's left factor is in registers and never changes (q of q k^T), and that of another
product of the same shape does (p of p v), ptxas may give both the same registers: q is lost after
the first tile, without a warning.  The machine code shows it.
"""

import re
import sys
from dataclasses import dataclass

from tools.compiled import different, map_pretending
from tools.machine_code import Instruction, loops
from tools.sink_attn_resources import whole_table

ARCH = 90  # only its products (HGMMA) may take their left factor from registers

_PRODUCT = re.compile(r"R(\d+), (?:R(\d+)|gdesc\S+), (?:gdesc\S+, )?(R\w+)")


def kept_registers(loop: list[Instruction]) -> set[int]:
    """The registers of the left factors of all products that start from zero: q k^T and do v^T.

    Such a product is a chain of instructions into the same registers, and the first adds to RZ.
    Each takes its left factor from four registers, or from shared memory.
    """
    kept, chain = set(), None
    for x in loop:
        if x.name == "HGMMA":
            result, left, start = _PRODUCT.match(x.operands).groups()
            if start == "RZ":
                chain = result
            elif result != chain:
                chain = None
            if result == chain and left:
                kept |= set(range(int(left), int(left) + 4))
    return kept


def clashes(code: list[Instruction]) -> list[str]:
    """Instructions in a loop that overwrite what a product reads in every iteration."""
    found = []
    for loop in loops(code):
        kept = kept_registers(loop)
        found += [str(x) for x in loop if kept.intersection(x.writes())]
    return found


@dataclass(frozen=True)
class Checked:
    name: str
    variant: str
    q_in_registers: bool  # is there a product from zero whose left factor is in registers?
    clashes: list[str]


def check(calls: list, only: str | None = None) -> list[Checked]:
    """Check the different kernels that these calls launch, in a process that pretends."""
    found = []
    for call, launch in different(calls, only):
        code = launch.code()
        kept = any(map(kept_registers, loops(code)))
        found.append(Checked(launch.name, repr(call), kept, clashes(code)))
    return found


def main() -> int:
    checked = sum(map_pretending(ARCH, check, whole_table(ARCH)), [])
    bad = [kernel for kernel in checked if kernel.clashes]
    for kernel in bad:
        print(kernel.name, kernel.variant, *kernel.clashes[:3], sep="\n    ")
    kept = sum(kernel.q_in_registers for kernel in checked)
    print(f"{len(checked)} kernels, {kept} with q in registers, {len(bad)} clash")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
