"""What compiled kernels take of a multiprocessor, and the faults that compilers have made in them.

No GPU is needed: `fake_gpu` has the launchers compile for one. Three faults, on Hopper:

*A product reads a tile before it has arrived* (`unfenced_products`). wgmma reads shared memory
through the asynchronous proxy. What threads wrote there, by st.shared or by cp.async once it is
waited for, it may only read past a `fence.proxy.async`; what TMA wrote has arrived with its
mbarrier. Triton before 3.7.1 leaves the fence out behind the waits of pipelined loops.

*A loop loses a left factor* (`overwritten_factors`). A left factor that a loop reads and never
changes must keep its registers to the loop's end. ptxas 12.8 and 12.9 reuse them behind the
product; 13.3 does not. What PTX promises is compared with what the machine code does.

*An address is read before it is there* (`unset_uniforms`). Tiles' descriptors lie in uniform
registers. ptxas 12.8 may move the copy that gives one its value behind its use, to a loop's end.
"""

import itertools
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple


class Resources(NamedTuple):
    """Of one program: registers and bytes of stack (spills) of a thread, bytes of shared memory."""

    registers: int
    stack: int
    shared: int


def resources_of(compiled) -> Resources:
    listed = _read_cubin(compiled, "--dump-resource-usage")
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", listed).groups()
    return Resources(int(registers), int(stack), compiled.metadata.shared)


def machine_code(compiled) -> str:
    return _read_cubin(compiled, "-sass")


def _read_cubin(compiled, what: str) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        return subprocess.run([tool, what, file], capture_output=True, text=True, check=True).stdout


def serialises_products(compiled) -> bool:
    """Whether ptxas waits for each of Hopper's products before it begins the next (C7515).

    It does where it runs out of registers for products under way; Triton swallows the message.
    """
    code = machine_code(compiled)
    return code.count("WARPGROUP.DEPBAR") > code.count("HGMMA") // 2


def count_products(ptx: str) -> int:
    """How many wgmma instructions there are."""
    return ptx.count("wgmma.mma_async")


# Tiles that have not arrived

_EVENTS = {
    "fence": r"fence\.proxy\.async",
    # Only the copies of threads: the bulk ones of TMA have groups of their own.
    "copied": r"cp\.async\.wait_(?:group|all)",
    "stored": r"(?:st\.shared|stmatrix)",
    "product": r"wgmma\.mma_async",
}


def unfenced_products(ptx: str) -> list[tuple[int, str]]:
    """(line, "copied" or "stored") of products that some way reaches from a write without a fence.

    A wait for copies counts as their write. Which bytes are written is not looked at, so that a
    store of something else is reported too.
    """
    blocks = list(_blocks(ptx))
    at = {label: n for n, (label, *_) in enumerate(blocks)}
    reached: dict[int, frozenset[str]] = {0: frozenset()}
    found, waiting = set(), [0]
    while waiting:
        n = waiting.pop()
        pending = set(reached[n])
        _, events, targets, falls_through = blocks[n]
        for event, line in events:
            if event == "fence":
                pending.clear()
            elif event == "product":
                found |= {(line, written) for written in pending}
            else:
                pending.add(event)
        after = [at[target] for target in targets] + [n + 1] * falls_through
        for to in after:
            if to < len(blocks) and (to not in reached or not pending <= reached[to]):
                reached[to] = frozenset(pending | reached.get(to, frozenset()))
                waiting.append(to)
    return sorted(found)


def _blocks(ptx: str) -> Iterator[tuple[str, list[tuple[str, int]], list[str], bool]]:
    """Label, events with their lines, jumps' targets and whether it falls through, of each block.

    A block has no jump into or out of its middle.
    """
    label, events, targets = "entry", [], []
    for line, text in enumerate(ptx.splitlines(), start=1):
        text = text.partition("//")[0].strip()
        if found := re.fullmatch(r"(\$?[\w$]+):", text):
            yield label, events, targets, True
            label, events, targets = found[1], [], []
        elif found := re.fullmatch(
            r"(@!?%\w+\s+)?(?:bra(?:\.uni)?\s+(\$?[\w$]+)|ret|exit|trap);", text
        ):
            yield label, events, targets + [found[2]] * bool(found[2]), bool(found[1])
            label, events, targets = f"line {line}", [], []
        else:
            events += [(kind, line) for kind, what in _EVENTS.items() if re.search(what, text)]
    yield label, events, targets, False


# Left factors that are lost

_PTX_WRITE = re.compile(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|[^\s,;]+)(.*)")
_CODE = re.compile(r"\s+/\*([0-9a-f]{4,5})\*/\s+(?:(@!?U?P\w+)\s+)?(.*?)\s*;")


def overwritten_factors(compiled) -> int:
    """How many products' left factors, left alone by a loop in PTX, the machine code overwrites."""
    kept = kept_factors(compiled.asm["ptx"])
    return min(kept, lost_factors(machine_code(compiled))) if kept else 0


def kept_factors(ptx: str) -> int:
    """How many products of PTX take a left factor from registers that their loop leaves alone."""
    lines = ptx.splitlines()
    labels = {x[1]: n for n, line in enumerate(lines) if (x := re.match(r"\s*(\$?[\w$]+):", line))}
    jump = re.compile(r"\bbra(?:\.uni)?\s+(\$?[\w$]+)\s*;")
    loops = [
        (labels[to], n)
        for n, line in enumerate(lines)
        for to in jump.findall(line)
        if labels.get(to, n) < n
    ]
    kept = 0
    for n, line in enumerate(lines):
        found = re.search(r"wgmma\.mma_async.*?\},\s*\{([^}]*)\}", line)
        if found and (loop := _innermost(loops, n)):
            writes = dict(_ptx_writes(lines[loop[0] : loop[1] + 1]))
            kept += all(_left_alone(x, writes) for x in re.findall(r"%\w+", found[1]))
    return kept


def _ptx_writes(lines: list[str]) -> Iterator[tuple[str, str | None]]:
    """Of each register that lines of PTX write: of which other it is a plain copy, or None."""
    for line in lines:
        if found := _PTX_WRITE.match(line):
            sources = re.findall(r"%\w+", found[3])
            copy = found[1].startswith("mov.") and len(sources) == 1 and found[2].startswith("%")
            for register in re.findall(r"%\w+", found[2]):
                yield register, sources[0] if copy else None


def _left_alone(register: str, writes: dict[str, str | None]) -> bool:
    """Whether a loop with these writes gives a register one value throughout."""
    while register in writes:
        if writes[register] is None:
            return False
        register = writes[register]
    return True


def lost_factors(listing: str) -> int:
    """How many products of machine code find a left factor changed when their loop comes again.

    Their loop writes its registers behind the product and not before it. A loop that prepares the
    factor of its next step does so rightly, so this says something only of factors kept in PTX.
    """
    code = [(int(x[1], 16), x[3]) for line in listing.splitlines() if (x := _CODE.match(line))]
    jumps = [
        (int(to, 16), n) for n, text in code for to in re.findall(r"\bBRA 0x([0-9a-f]+)", text)
    ]
    loops = [(first, last) for first, last in jumps if first < last]
    lost = 0
    for n, text in code:
        found = re.match(r"HGMMA\.\S+ R\d+, R(\d+), gdesc", text)
        if found and (loop := _innermost(loops, n)):
            factor = {int(found[1]) + k for k in range(4)}
            inside = [(at, _written(x)) for at, x in code if loop[0] <= at <= loop[1]]
            before = set().union(*(x for at, x in inside if at < n))
            behind = set().union(*(x for at, x in inside if at >= n))
            lost += bool(factor & behind - before)
    return lost


def _written(instruction: str) -> Iterable[int]:
    """The registers that an instruction writes."""
    if sums := re.match(r"HGMMA\.64x(\d+)x\S+ R(\d+),", instruction):
        return range(int(sums[2]), int(sums[2]) + int(sums[1]) // 2)
    found = re.match(r"([A-Z][\w.]*)\s+R(\d+)\b", instruction)
    if not found or found[1].startswith(("ST", "RED", "BAR", "BRA")):
        return ()
    count = 4 if ".128" in found[1] else 2 if re.search(r"\.(64|WIDE)\b", found[1]) else 1
    if found[1].startswith("LDSM"):
        count = int(found[1][-1]) if found[1][-1] in "24" else 1
    return range(int(found[2]), int(found[2]) + count)


def _innermost(loops: list[tuple[int, int]], at: int) -> tuple[int, int] | None:
    around = [(first, last) for first, last in loops if first <= at <= last]
    return min(around, key=lambda loop: loop[1] - loop[0], default=None)


# Uniform registers without a value

_BRANCH = re.compile(r"\bBRA(?:\.\w+)*(?: ~?!?U?[PR]\w+,)? 0x([0-9a-f]+)")
# Operations whose first operand is a uniform register that they write.
_WRITERS = re.compile(r"(?:U[A-Z]\w*|R2UR|S2UR|CS2UR|LDCU|VOTEU|REDUX|CREDUX)(?:\.\w+)*$")


class _Step(NamedTuple):
    text: str
    reads: set[int]
    writes: set[int]
    to: list[int]


def unset_uniforms(compiled) -> list[tuple[str, list[int]]]:
    """Where a kernel's machine code reads uniform registers on a way that has not written them."""
    return unset_in(machine_code(compiled))


def unset_in(listing: str) -> list[tuple[str, list[int]]]:
    """Instructions, and which registers they may read unset, of code as cuobjdump lists it.

    A write under a predicate counts as one. Of a 64-bit addend and of a TMA's operands the first
    register counts.
    """
    code = [found.groups() for line in listing.splitlines() if (found := _CODE.match(line))]
    steps = dict(_steps(code))
    # Of each instruction the registers that have a value on every way to it.
    first = next(iter(steps))
    before, todo = {first: frozenset()}, [first]
    while todo:
        at = todo.pop()
        behind = before[at] | steps[at].writes
        for to in steps[at].to:
            met = before.get(to, behind) & behind
            if to in steps and met != before.get(to):
                before[to] = met
                todo.append(to)
    return [
        (step.text, sorted(step.reads - before[at]))
        for at, step in steps.items()
        if at in before and not step.reads <= before[at]
    ]


def _steps(code: list[tuple]) -> Iterator[tuple[int, _Step]]:
    addresses = [int(address, 16) for address, *_ in code]
    for (_, predicate, text), (at, after) in zip(
        code, itertools.pairwise([*addresses, -1]), strict=True
    ):
        operation, _, operands = text.partition(" ")
        to = [int(x, 16) for x in _BRANCH.findall(text)]
        # BRA.U UP0, 0x100 names a condition among its operands.
        always = to and not re.match(r"~?!?U?[PR]\w", operands)
        if predicate or not (always or operation.startswith(("EXIT", "RET", "BRX", "JMX"))):
            to.append(after)
        yield at, _Step(text, *_uniforms(operation, operands), to)


def _uniforms(operation: str, operands: str) -> tuple[set[int], set[int]]:
    """The uniform registers that an instruction reads and writes."""
    first, _, rest = operands.partition(",")
    writer, written = _WRITERS.match(operation), set()
    if writer and (found := re.match(r"UR(\d+)$", first.strip())):
        wide = re.search(r"\.(64|128|WIDE)", operation)
        width = 1 if wide is None else 4 if wide[1] == "128" else 2
        written = set(range(int(found[1]), int(found[1]) + width))
    else:
        rest = operands
    read = set()
    for found in re.finditer(r"\bUR(\d+)", rest):
        ahead, start = rest[: found.start()], int(found[1])
        count = 2 if writer and ".64" in operation and not ahead.endswith("[") else 1
        if ahead.endswith("gdesc["):
            # Two descriptors of two registers each; a left factor in registers leaves the second.
            left = re.search(r"\bR\d+, R\d+, gdesc", operands) is not None
            start, count = (start + 2, 2) if left else (start, 4)
        elif ahead.endswith("desc["):
            count = 2
        read |= set(range(start, start + count))
    return read, written
