"""Reads a kernel's machine code, as cuobjdump -sass prints it: its instructions and loops."""

import re
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*)(\S*)\s*(.*?)\s*;")
_WRITES_NO_REGISTER = ("ST", "RED", "BAR", "SYNCS")


@dataclass(frozen=True)
class Instruction:
    address: int
    conditional: bool
    name: str  # such as HGMMA
    kind: str  # such as .64x64x16.F32.BF16
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
        if self.name == "HGMMA":  # 64 rows over 128 threads: half a register per column
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
    """The parts of the code in which every instruction can reach every other."""
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


def jumps_back(code: list[Instruction]) -> list[list[Instruction]]:
    """For each jump to an earlier instruction, the code from there to the jump."""
    return [
        [y for y in code if x.target() <= y.address <= x.address]
        for x in code if x.target() is not None and x.target() < x.address
    ]


def stack_uses(code: list[Instruction]) -> int:
    """How many instructions read or write the stack."""
    return sum(x.name in ("LDL", "STL") for x in code)
