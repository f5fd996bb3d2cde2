"""The resources that compiled kernels use, and faults that compilers are known to make in them.

No GPU is needed: `fake_gpu` makes the launchers compile for one. Triton's front end makes the first
fault. The other three occur in kernels with matrix products on Hopper:

*A loop drops a variable* (`dropped_variables`). Triton visits a loop's body once with the values
from before the loop. It carries only variables that this visit changes. With `before = stage` both
before the loop and at the body's end, it finds no change, so every step reads the first stage.

*A product reads a tile too early* (`unfenced_products`). wgmma reads shared memory through the
asynchronous proxy. If threads wrote the tile, by st.shared or by a cp.async that they waited for, a
`fence.proxy.async` must come before the product. Tiles that TMA wrote need only their mbarrier.
Triton before 3.7.1 leaves the fence out after the waits of pipelined loops.

*A loop loses a left factor* (`overwritten_factors`). If a loop reads a left factor and never
changes it, its registers must keep it to the loop's end. ptxas 12.8 and 12.9 reuse them after the
product; 13.3 does not. The test compares the PTX with the machine code.

*An address is read before it is set* (`unset_uniforms`). Descriptors of tiles are in uniform
registers. ptxas 12.8 can move the copy that sets one after its use, to the end of a loop.
"""

import itertools
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

# Bytes of shared memory that a program can use, by architecture.
SHARED_MEMORY = {"sm_80": 166_912, "sm_89": 101_376, "sm_120": 101_376}
SHARED_MEMORY |= {"sm_90": 232_448, "sm_100": 232_448}


def assert_sound(
    name: str, compiled, architecture: str, stack: int | None, stores=False, programs: int = 1
) -> None:
    """Check a kernel's memory, and on Hopper that it has no faults.

    stack: the most bytes per thread, by spills (None: any number). programs: how many must fit a
    multiprocessor's shared memory. stores: see `faults_of`.
    """
    assert programs * compiled.metadata.shared <= SHARED_MEMORY[architecture], name
    if stack is not None:
        used = re.search(r"STACK:(\d+)", _read_cubin(compiled, "--dump-resource-usage"))
        assert int(used[1]) <= stack, name
    assert architecture != "sm_90" or faults_of(compiled, stores) == [], name


def has_products(compiled) -> bool:
    """Whether a kernel has wgmma instructions."""
    return "wgmma.mma_async" in compiled.asm["ptx"]


def serialises_products(compiled) -> bool:
    """Whether the code waits for each of Hopper's products before the next begins (C7515).

    ptxas does this if it lacks registers for concurrent products. Triton hides the message.
    """
    code = _machine_code(compiled)
    return code.count("WARPGROUP.DEPBAR") > code.count("HGMMA") // 2


@contextmanager
def dropped_variables() -> Iterator[set[str]]:
    """Yield a set that gathers the variables that loops drop in kernels that Triton compiles."""
    from triton.compiler import code_generator
    from triton.compiler.code_generator import CodeGenerator

    find, visit = CodeGenerator._find_carries, CodeGenerator.visit_compound_statement
    flat, uncarried, dropped = code_generator.flatten_values_to_ir, {}, set()

    def note(self, node, liveins, *given, **named):
        carried = find(self, node, liveins, *given, **named)
        uncarried[id(node.body)] = [
            (name, flat([value]))
            for name, value in liveins.items()
            if name not in carried[0] and code_generator._is_triton_value(value)
        ]
        return carried

    def compare(self, statements):
        visit(self, statements)
        for name, before in uncarried.pop(id(statements), ()):
            if flat([self.lscope[name]]) != before:
                dropped.add(name)

    with patch.multiple(CodeGenerator, _find_carries=note, visit_compound_statement=compare):
        yield dropped


def faults_of(compiled, stores: bool) -> list[str]:
    """Return a line per fault on Hopper that a kernel has. A kernel without products has none.

    Without `stores` only copies count as writes, because a change of a tile's layout also stores it
    in shared memory, where only threads read it.
    """
    if not has_products(compiled):
        return []
    ptx, code = compiled.asm["ptx"], _machine_code(compiled)
    unfenced = [(n, write) for n, write in unfenced_products(ptx) if stores or write == "copied"]
    return [
        *(f"line {n} of PTX multiplies what is {write} without a fence" for n, write in unfenced),
        *["a left factor is overwritten"] * overwritten_factors(ptx, code),
        *(f"{text} reads UR{registers} unset" for text, registers in unset_uniforms(code)),
    ]


@cache
def _machine_code(compiled) -> str:
    return _read_cubin(compiled, "-sass")


def _read_cubin(compiled, what: str) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        return subprocess.run([tool, what, file], capture_output=True, text=True, check=True).stdout


# Instructions of PTX or machine code by their place: the text, and the places that can follow.
Program = dict[int, tuple[str, list[int]]]


def _pending(
    program: Program, effect: Callable[[str], tuple[Iterable, Iterable]], first: Iterable = ()
) -> dict[int, frozenset]:
    """Return what can be pending before each instruction, over all paths.

    effect: from an instruction's text to what it ends and what it begins. first: what is pending
    before the first instruction.
    """
    start = next(iter(program))
    before, todo = {start: frozenset(first)}, [start]
    while todo:
        text, ways = program[at := todo.pop()]
        ends, begins = effect(text)
        after = before[at].difference(ends).union(begins)
        for to in ways:
            if to in program and not (to in before and after <= before[to]):
                before[to] = after | before.get(to, frozenset())
                todo.append(to)
    return before


def _loop_around(program: Program, place: int) -> dict[int, str]:
    """Return the texts of the innermost loop around a place; none outside of loops."""
    jumps = ((to, at) for at, (_, ways) in program.items() for to in ways if to < at)
    loops = [(first, last) for first, last in jumps if first <= place <= last]
    first, last = min(loops, key=lambda loop: loop[1] - loop[0], default=(place, place - 1))
    return {at: text for at, (text, _) in program.items() if first <= at <= last}


_PTX_JUMP = re.compile(r"(@!?%\w+\s+)?(?:bra(?:\.uni)?\s+(\$?[\w$]+)|ret|exit|trap);")


def _read_ptx(ptx: str) -> Program:
    """Return the lines of PTX without comments, by their numbers from 1."""
    lines = [line.partition("//")[0].strip() for line in ptx.splitlines()]
    labels = {x[1]: n for n, line in enumerate(lines, 1) if (x := re.fullmatch(r"([\w$]+):", line))}
    program = {}
    for n, line in enumerate(lines, 1):
        jump = _PTX_JUMP.fullmatch(line)
        to = [labels[jump[2]]] if jump and jump[2] else []
        program[n] = line, to if jump and not jump[1] else [*to, n + 1]
    return program


_CODE = re.compile(r"\s+/\*([0-9a-f]{4,5})\*/\s+(?:(@!?U?P\w+)\s+)?(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA(?:\.\w+)*(?: ~?!?U?[PR]\w+,)? 0x([0-9a-f]+)")


def _read_code(listing: str) -> Program:
    """Return the machine code that cuobjdump lists, by address, without predicates."""
    code, program = [x.groups() for x in filter(None, map(_CODE.match, listing.splitlines()))], {}
    for (at, predicate, text), (after, *_) in itertools.pairwise([*code, ("-1", None, "")]):
        operation, _, operands = text.partition(" ")
        to = [int(x, 16) for x in _BRANCH.findall(text)]
        # BRA.U UP0, 0x100 has its condition among the operands.
        always = to and not re.match(r"~?!?U?[PR]\w", operands)
        if predicate or not (always or operation.startswith(("EXIT", "RET", "BRX", "JMX"))):
            to.append(int(after, 16))
        program[int(at, 16)] = text, to
    return program


# Tiles that have not arrived

_WRITES = {
    # Only copies by threads. TMA's bulk copies have separate groups.
    "copied": r"cp\.async\.wait_(?:group|all)",
    "stored": r"(?:st\.shared|stmatrix)",
}


def unfenced_products(ptx: str) -> list[tuple[int, str]]:
    """Return (line, "copied" or "stored") per product that a path reaches unfenced from a write.

    A wait for copies counts as their write. The check ignores addresses, so it also reports a store
    of something else.
    """

    def effect(line: str) -> tuple[Iterable, Iterable]:
        written = [kind for kind, what in _WRITES.items() if re.search(what, line)]
        return _WRITES if "fence.proxy.async" in line else (), written

    program = _read_ptx(ptx)
    before = _pending(program, effect)
    products = (n for n, (line, _) in program.items() if "wgmma.mma_async" in line)
    return [(n, kind) for n in products for kind in sorted(before.get(n, ()))]


# Left factors that are lost

_PTX_WRITE = re.compile(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|[^\s,;]+)(.*)")


def overwritten_factors(ptx: str, listing: str) -> int:
    """Count left factors that a loop keeps in PTX but overwrites in machine code."""
    kept = _kept_factors(_read_ptx(ptx))
    return kept and min(kept, _lost_factors(_read_code(listing)))


def _kept_factors(ptx: Program) -> int:
    """Count products in PTX with a left factor in registers that their loop does not change."""
    kept = 0
    for n, (line, _) in ptx.items():
        match = re.search(r"wgmma\.mma_async.*?\},\s*\{([^}]*)\}", line)
        if match and (loop := _loop_around(ptx, n)):
            writes = dict(_ptx_writes(loop.values()))
            kept += all(_left_alone(x, writes) for x in re.findall(r"%\w+", match[1]))
    return kept


def _ptx_writes(lines: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each register that PTX writes, and the register that it copies, or None."""
    for line in lines:
        if match := _PTX_WRITE.match(line):
            sources = re.findall(r"%\w+", match[3])
            copy = match[1].startswith("mov.") and len(sources) == 1 and match[2].startswith("%")
            for register in re.findall(r"%\w+", match[2]):
                yield register, sources[0] if copy else None


def _left_alone(register: str | None, writes: dict[str, str | None]) -> bool:
    """Whether a register keeps one value in a loop with these writes."""
    while register in writes:
        register = writes[register]
    return register is not None


def _lost_factors(code: Program) -> int:
    """Count products in machine code whose left factor changes before the loop's next step.

    The loop writes the factor's registers after the product and not before it. This is right if the
    loop prepares the next step's factor, so it is a fault only for factors that PTX keeps.
    """
    lost = 0
    for n, (text, _) in code.items():
        match = re.match(r"HGMMA\.\S+ R\d+, R(\d+), gdesc", text)
        if match and (loop := _loop_around(code, n)):
            factor = set(range(int(match[1]), int(match[1]) + 4))
            before = set().union(*(_written(x) for at, x in loop.items() if at < n))
            behind = set().union(*(_written(x) for at, x in loop.items() if at >= n))
            lost += bool(factor & behind - before)
    return lost


def _written(instruction: str) -> Iterable[int]:
    """Return the registers that an instruction writes."""
    if sums := re.match(r"HGMMA\.64x(\d+)x\S+ R(\d+),", instruction):
        return range(int(sums[2]), int(sums[2]) + int(sums[1]) // 2)
    match = re.match(r"([A-Z][\w.]*)\s+R(\d+)\b", instruction)
    if not match or match[1].startswith(("ST", "RED", "BAR", "BRA")):
        return ()
    count = 4 if ".128" in match[1] else 2 if re.search(r"\.(64|WIDE)\b", match[1]) else 1
    if match[1].startswith("LDSM"):
        count = int(match[1][-1]) if match[1][-1] in "24" else 1
    return range(int(match[2]), int(match[2]) + count)


# Uniform registers without a value

# Operations whose first operand is a uniform register that they write.
_WRITERS = re.compile(r"(?:U[A-Z]\w*|R2UR|S2UR|CS2UR|LDCU|VOTEU|REDUX|CREDUX)(?:\.\w+)*$")


def unset_uniforms(listing: str) -> list[tuple[str, list[int]]]:
    """Return instructions of machine code that can read uniform registers that are not set.

    A write under a predicate counts as a write. For an addend of 64 bits and for operands of TMA,
    only the first register counts.
    """
    code = _read_code(listing)
    unset = _pending(code, lambda text: (_uniforms(text)[1], ()), range(256))
    reads = [(text, _uniforms(text)[0] & unset.get(at, set())) for at, (text, _) in code.items()]
    return [(text, sorted(registers)) for text, registers in reads if registers]


@cache
def _uniforms(text: str) -> tuple[set[int], set[int]]:
    """Return the uniform registers that an instruction reads, and those that it writes."""
    operation, _, operands = text.partition(" ")
    first, _, rest = operands.partition(",")
    writer, written = _WRITERS.match(operation), set()
    if writer and (match := re.match(r"UR(\d+)$", first.strip())):
        wide = re.search(r"\.(64|128|WIDE)", operation)
        width = 1 if wide is None else 4 if wide[1] == "128" else 2
        written = set(range(int(match[1]), int(match[1]) + width))
    else:
        rest = operands
    read = set()
    for match in re.finditer(r"\bUR(\d+)", rest):
        ahead, start = rest[: match.start()], int(match[1])
        count = 2 if writer and ".64" in operation and not ahead.endswith("[") else 1
        if ahead.endswith("gdesc["):
            # Two descriptors of two registers each; only the second if a factor is in registers.
            left = re.search(r"\bR\d+, R\d+, gdesc", operands) is not None
            start, count = (start + 2, 2) if left else (start, 4)
        elif ahead.endswith("desc["):
            count = 2
        read |= set(range(start, start + count))
    return read, written
