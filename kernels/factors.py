"""Whether the assembler overwrites a left factor that a loop's products read again.

A product's left factor may lie in registers. Where a loop reads it and does not change it, it must
keep these registers to the loop's end. ptxas 12.8 and 12.9, which Triton 3.6 to 3.8 assemble sm_90
with, reuse them behind the product: every later step then multiplies by something else. 13.3
assembles the same PTX right. What PTX promises is compared with what the machine code does, so no
GPU is needed.
"""

import re
from collections.abc import Iterable, Iterator

from triton.compiler import CompiledKernel

from relation.kernels.resources import read_machine_code

_LABEL = re.compile(r"\s*(\$?[\w$]+):")
_PTX_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$?[\w$]+)\s*;")
_PTX_PRODUCT = re.compile(r"wgmma\.mma_async.*?\},\s*\{([^}]*)\}")
_PTX_WRITE = re.compile(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|[^\s,;]+)(.*)")
_CODE = re.compile(r"\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);")
_CODE_BRANCH = re.compile(r"\bBRA 0x([0-9a-f]+)")
_CODE_PRODUCT = re.compile(r"HGMMA\.\S+ R\d+, R(\d+), gdesc")
_CODE_SUMS = re.compile(r"HGMMA\.64x(\d+)x\S+ R(\d+),")
_CODE_WRITE = re.compile(r"(?:@!?U?P\d+\s+)?([A-Z][\w.]*)\s+R(\d+)\b")
# Instructions whose first register is no result.
_READERS = ("ST", "RED", "BAR", "BRA")
Loop = tuple[int, int]


def overwritten_factors(compiled: CompiledKernel) -> int:
    """How many products' left factors, left alone by a loop in PTX, the machine code overwrites."""
    kept = kept_factors(compiled.asm["ptx"])
    return min(kept, lost_factors(read_machine_code(compiled))) if kept else 0


def kept_factors(ptx: str) -> int:
    """How many products of PTX take a left factor from registers that their loop leaves alone."""
    lines = ptx.splitlines()
    labels = {found[1]: n for n, line in enumerate(lines) if (found := _LABEL.match(line))}
    jumps = [
        (labels.get(to), n) for n, line in enumerate(lines) for to in _PTX_BRANCH.findall(line)
    ]
    loops = [(first, last) for first, last in jumps if first is not None and first < last]
    kept = 0
    for n, line in enumerate(lines):
        if (found := _PTX_PRODUCT.search(line)) and (loop := _innermost(loops, n)):
            writes = dict(_writes(lines[loop[0] : loop[1] + 1]))
            kept += all(_left_alone(register, writes) for register in _registers(found[1]))
    return kept


def lost_factors(listing: str) -> int:
    """How many products of machine code find a left factor changed when their loop comes again.

    Their loop writes its registers behind the product and not before it. A loop that prepares the
    factor of its next step does so rightly, so this says something only of factors kept in PTX.
    """
    code = [
        (int(found[1], 16), found[2]) for x in listing.splitlines() if (found := _CODE.match(x))
    ]
    jumps = [(int(to, 16), n) for n, text in code for to in _CODE_BRANCH.findall(text)]
    loops = [(first, last) for first, last in jumps if first < last]
    lost = 0
    for n, text in code:
        if (found := _CODE_PRODUCT.match(text)) and (loop := _innermost(loops, n)):
            factor = {int(found[1]) + k for k in range(4)}
            before, behind = set(), set()
            for at, x in code:
                if loop[0] <= at <= loop[1]:
                    (before if at < n else behind).update(_written(x))
            lost += bool(factor & behind - before)
    return lost


def _written(instruction: str) -> Iterable[int]:
    if sums := _CODE_SUMS.match(instruction):
        return range(int(sums[2]), int(sums[2]) + int(sums[1]) // 2)
    found = _CODE_WRITE.match(instruction)
    if not found or found[1].startswith(_READERS):
        return ()
    return range(int(found[2]), int(found[2]) + _results(found[1]))


def _results(operation: str) -> int:
    """How many registers an operation writes: loads of matrices and of 8 or 16 bytes, several."""
    if operation.startswith("LDSM"):
        return int(operation[-1]) if operation[-1] in "24" else 1
    return 4 if ".128" in operation else 2 if re.search(r"\.(64|WIDE)\b", operation) else 1


def _innermost(loops: list[Loop], at: int) -> Loop | None:
    around = [(first, last) for first, last in loops if first <= at <= last]
    return min(around, key=lambda loop: loop[1] - loop[0], default=None)


def _registers(text: str) -> list[str]:
    return re.findall(r"%\w+", text)


def _writes(lines: list[str]) -> Iterator[tuple[str, str | None]]:
    """Of each register that lines of PTX write: of which other it is a plain copy, or None."""
    for line in lines:
        if found := _PTX_WRITE.match(line):
            sources = _registers(found[3])
            copy = found[1].startswith("mov.") and len(sources) == 1 and found[2].startswith("%")
            yield from (
                (register, sources[0] if copy else None) for register in _registers(found[2])
            )


def _left_alone(register: str, writes: dict[str, str | None]) -> bool:
    """Whether a loop with these writes gives a register one value throughout."""
    while register in writes:
        if writes[register] is None:
            return False
        register = writes[register]
    return True
