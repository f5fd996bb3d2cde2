"""Whether machine code reads a uniform register that nothing has written.

The tensor cores' descriptors of tiles in shared memory lie in uniform registers. ptxas 12.8, which
Triton 3.6 assembles sm_90 with, may move the copy that gives one its value behind its use, to the
end of a loop: the first step then multiplies by what lies elsewhere, or faults. 12.9 and 13.3
assemble the same PTX right. Every way through the machine code is followed, so no GPU is needed.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from triton.compiler import CompiledKernel

from relation.kernels.resources import read_machine_code

_CODE = re.compile(r"\s+/\*([0-9a-f]{4,5})\*/\s+(?:(@!?U?P\w+)\s+)?(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA(?:\.\w+)*(?: ~?!?U?[PR]\w+,)? 0x([0-9a-f]+)")
_UNIFORM = re.compile(r"\bUR(\d+)")
# Operations whose first operand is a uniform register that they write.
_WRITERS = re.compile(r"(?:U[A-Z]\w*|R2UR|S2UR|CS2UR|LDCU|VOTEU|REDUX|CREDUX)(?:\.\w+)*$")
_ENDS = ("EXIT", "RET", "BRX", "JMX")


class Unset(NamedTuple):
    """An instruction and the uniform registers that it may read before they have a value."""

    address: int
    instruction: str
    registers: tuple[int, ...]


class _Step(NamedTuple):
    address: int
    text: str
    reads: frozenset[int]
    writes: frozenset[int]
    to: tuple[int, ...]


def unset_uniforms(compiled: CompiledKernel) -> list[Unset]:
    """Where a kernel's machine code reads uniform registers on a way that has not written them."""
    return unset_in(read_machine_code(compiled))


def unset_in(listing: str) -> list[Unset]:
    """The same of machine code as cuobjdump lists it.

    A write under a predicate counts as one. Of a 64-bit addend and of a TMA's operands the first
    register counts.
    """
    steps = list(_steps(listing))
    at = {step.address: n for n, step in enumerate(steps)}
    # Of each instruction the registers that have a value on every way to it; None: no way yet.
    before: list[frozenset[int] | None] = [None] * len(steps)
    before[0], todo = frozenset(), [0]
    while todo:
        n = todo.pop()
        behind = before[n] | steps[n].writes
        for address in steps[n].to:
            if (to := at.get(address)) is not None:
                met = behind if before[to] is None else before[to] & behind
                if met != before[to]:
                    before[to] = met
                    todo.append(to)
    return [
        Unset(step.address, step.text, tuple(sorted(step.reads - has)))
        for step, has in zip(steps, before, strict=True)
        if has is not None and not step.reads <= has
    ]


def _steps(listing: str) -> Iterator[_Step]:
    code = [found.groups() for line in listing.splitlines() if (found := _CODE.match(line))]
    following = [int(address, 16) for address, *_ in code[1:]] + [-1]
    for (address, predicate, text), after in zip(code, following, strict=True):
        operation, _, operands = text.partition(" ")
        to = [int(x, 16) for x in _BRANCH.findall(text)]
        always = operation.startswith(_ENDS) or (to and not _is_conditional(operands))
        if predicate or not always:
            to.append(after)
        yield _Step(int(address, 16), text, *_registers(operation, operands), tuple(to))


def _is_conditional(operands: str) -> bool:
    """Whether a branch names a condition among its operands: BRA.U UP0, 0x100."""
    return re.match(r"~?!?U?[PR]\w", operands) is not None


def _registers(operation: str, operands: str) -> tuple[frozenset[int], frozenset[int]]:
    """The uniform registers that an instruction reads and writes."""
    first, _, rest = operands.partition(",")
    writer = _WRITERS.match(operation)
    written: frozenset[int] = frozenset()
    if writer and (found := re.match(r"UR(\d+)$", first.strip())):
        written = _from(int(found[1]), _width(operation))
    else:
        rest = operands
    read: frozenset[int] = frozenset()
    for found in _UNIFORM.finditer(rest):
        inside = rest[: found.start()].endswith("[")
        start, count = int(found[1]), 2 if writer and ".64" in operation and not inside else 1
        if rest[: found.start()].endswith("gdesc["):
            # Two descriptors of two registers each; a left factor in registers leaves the second.
            left = re.search(r"\bR\d+, R\d+, gdesc", operands) is not None
            start, count = (start + 2, 2) if left else (start, 4)
        elif rest[: found.start()].endswith("desc["):
            count = 2
        read |= _from(start, count)
    return read, written


def _width(operation: str) -> int:
    """How many registers a uniform operation writes."""
    wide = re.search(r"\.(64|128|WIDE)", operation)
    return 1 if wide is None else 4 if wide[1] == "128" else 2


def _from(start: int, count: int) -> frozenset[int]:
    return frozenset(range(start, start + count))
