"""Find kernels in which ptxas gave a loop's constant factor and a loop's result one register.

Where a product's left factor is held in registers and never changes (q of q k^T), and another
product of the same shape has a left factor that does (p of p v), ptxas can give both the same
registers: q is lost after the first tile, without a warning.  The machine code shows it.

python -m tools.register_clash                   every kernel of fast/attention.py for Hopper
"""

import re
import sys
from dataclasses import dataclass

from tools.kernel_resources import compiled, cuobjdump, map_pretending

ARCH = 90  # the only one whose products (HGMMA) take their left factor from registers or not

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*)(\S*)\s*(.*?)\s*;")
_PRODUCT = re.compile(r"R(\d+), (?:R(\d+)|gdesc\S+), (?:gdesc\S+, )?(R\w+)")
_WRITES_NO_REGISTER = ("ST", "RED", "BAR", "SYNCS")


@dataclass(frozen=True)
class Instruction:
    address: int
    conditional: bool
    name: str  # HGMMA
    kind: str  # .64x64x16.F32.BF16
    operands: str

    def __str__(self) -> str:
        return f"{self.address:#x}: {self.name}{self.kind} {self.operands}"

    def target(self) -> int | None:
        """Where this jumps to."""
        found = re.search(r"0x[0-9a-f]+", self.operands) if self.name == "BRA" else None
        return int(found[0], 16) if found else None

    def writes(self) -> range:
        """The registers that get a new value."""
        found = re.match(r"(?:P\w+, )?R(\d+)", self.operands)
        if not found or self.name.startswith(_WRITES_NO_REGISTER):
            return range(0)
        count = 1
        if self.name == "HGMMA":  # 64 rows over 128 threads: half a register a column
            columns = int(self.kind.split("x")[1])
            count = columns // 2 if ".F32" in self.kind else columns // 4
        elif self.name == "LDSM":
            count = int(self.kind[-1])
        elif self.name.startswith("LD") or ".WIDE" in self.kind:
            count = 4 if ".128" in self.kind else 2 if re.search(r"\.64|\.WIDE", self.kind) else 1
        return range(int(found[1]), int(found[1]) + count)


def instructions(sass: str) -> list[Instruction]:
    """The instructions in what cuobjdump -sass prints."""
    return [
        Instruction(int(address, 16), bool(condition), name, kind, operands)
        for address, condition, name, kind, operands in _INSTRUCTION.findall(sass)
    ]


def loops(code: list[Instruction]) -> list[list[Instruction]]:
    """The parts of the code, each in order, in which every instruction can reach every other."""
    starts = {code[0].address} | {x.target() for x in code}
    starts |= {after.address for x, after in zip(code, code[1:], strict=False) if x.name == "BRA"}
    blocks, block_at = [], {}  # straight pieces of code, and their numbers by first address
    for x in code:
        if x.address in starts:
            block_at[x.address] = len(blocks)
            blocks.append([])
        blocks[-1].append(x)

    after = []  # the blocks that may follow each block
    for number, block in enumerate(blocks):
        last = block[-1]
        following = {block_at[last.target()]} if last.target() is not None else set()
        ends = last.name in ("BRA", "EXIT", "RET") and not last.conditional
        if not ends and number + 1 < len(blocks):
            following.add(number + 1)
        after.append(following)

    reach = []  # the blocks that each block can reach, itself only through a loop
    for following in after:
        found, waiting = set(), list(following)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += after[number]
        reach.append(found)

    parts = {frozenset(b for b in reach[a] if a in reach[b]) for a in range(len(blocks))}
    return [[x for b in sorted(part) for x in blocks[b]] for part in parts if part]


def kept_registers(loop: list[Instruction]) -> set[int]:
    """Registers of the left factors of all products that start from zero: q k^T and do v^T.

    Such a product is a chain of instructions into the same registers, the first of which adds to
    RZ.  Each takes its left factor from four registers, or from shared memory.
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


def clashes(sass: str) -> list[str]:
    """Instructions that overwrite, within a loop, what a product of every round reads."""
    found = []
    for loop in loops(instructions(sass)):
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
    """The different kernels that these calls launch, in a process that pretends."""
    found = {}
    for call in calls:
        for launch in compiled(call, only):
            if launch.kernel.hash not in found:
                sass = cuobjdump(launch.cubin, "-sass")
                kept = any(map(kept_registers, loops(instructions(sass))))
                found[launch.kernel.hash] = Checked(launch.name, repr(call), kept, clashes(sass))
    return list(found.values())


def main() -> int:
    from tools.fast_resources import whole_table

    checked = sum(map_pretending(ARCH, check, whole_table(ARCH)), [])
    bad = [kernel for kernel in checked if kernel.clashes]
    for kernel in bad:
        print(kernel.name, kernel.variant, *kernel.clashes[:3], sep="\n    ")
    kept = sum(kernel.q_in_registers for kernel in checked)
    print(f"{len(checked)} kernels, {kept} with q in registers, {len(bad)} clash")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
