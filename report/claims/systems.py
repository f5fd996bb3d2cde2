"""Claims on speed, memory and cost: 12 to 14, 16, 21 (Sections 5, 6.3, Appendices F to H)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from report import paper_seeds
from report.claims.context import Context
from report.claims.evidence import (
    Evidence,
    Printed,
    at_least_as_good,
    joined,
    printed,
    says_otherwise,
)
from report.compute import systems as compute
from report.compute.complexity import complexity as powers
from report.compute.measured import Measured, Measurements, is_number, select
from report.compute.structure import ratio
from report.compute.systems import PAPER_CONTEXTS
from report.layout import SCALES
from report.numbers import MINUS
from report.paper import load

# The T of claim 12.
FIXED_CONTEXT = 1024
# Fixed costs at small T and caches that overflow at large T bend a fitted power of T by so much.
POWER_OF_TIME = 0.15
# Bytes are counted, not timed: a fitted power is off by no more than rounding.
POWER_OF_BYTES = 0.01
# A power is told to so many decimals; what a fit leaves of a whole one lies far below.
POWER_DECIMALS = 3


def _comparable(
    context: Context, found: Evidence, other_workload: Callable[[Context, str], str]
) -> Evidence:
    """The evidence of a scale, undecided if measured on no CUDA GPU or on another workload."""
    if found.ours is None:
        return found
    lacking = context.setting(found.sources).lacks("cuda") or other_workload(context, found.label)
    return replace(found, direction=None, size=None, note=lacking) if lacking else found


def _other_context(context: Context, scale: str) -> str:
    """Why the comparison with the materialised operator is not at the paper's T, if it is not."""
    length = context.table(compute.efficient)[scale, "fixed.context", "value"].value
    return "" if length == FIXED_CONTEXT else f"measured at T = {length:.0f}, not {FIXED_CONTEXT}"


def _other_batches(context: Context, scale: str) -> str:
    """Why the pair is not the paper's production workload, if it is not."""
    for variant in ("mha", "full"):
        column = f"micro_ga.{variant}"
        ours = context.table(compute.production)[scale, column, "value"].text
        theirs = paper_seeds.printed("app-prod-fr-fa", scale, column).printed
        if ours != theirs:
            return f"measured with micro/GA {ours}, not {theirs}"
    return ""


def _held_to_the_worst(
    context: Context,
    quantity: str,
    theirs: dict[str, Printed],
    ours: Callable[[str], Measured],
    more: bool,
    direction: Callable[[float], bool] | None,
    other_workload: Callable[[Context, str], str],
    ends: Callable[[str], tuple[float | None, float | None]] | None = None,
) -> Iterator[Evidence]:
    worst = (min if more else max)(theirs.values(), key=lambda found: found.value)
    for scale, paper in theirs.items():
        found = at_least_as_good(
            scale,
            quantity,
            paper,
            worst,
            ours(scale),
            more=more,
            direction=direction,
            ends=ends(scale) if ends else (None, None),
        )
        yield _comparable(context, found, other_workload)


def _interval(table: Measurements, row: str, column: str) -> tuple[float | None, float | None]:
    """The 95% interval beside a value of a table, where the table has one."""
    found = (table.get((row, column, end)) for end in ("low", "high"))
    low, high = (None if end is None else end.value for end in found)
    return low, high


def _throughput(
    context: Context,
    column: str,
    peer: str,
    sign: Callable[[float], bool] | None,
    other_workload: Callable[[Context, str], str],
) -> Iterator[Evidence]:
    """FlashRelation's training throughput over a peer's, a column of efficient-relation."""
    return _held_to_the_worst(
        context,
        f"training throughput, FlashRelation / {peer}",
        {scale: printed("efficient-relation", scale, column) for scale in SCALES},
        lambda scale: context.table(compute.efficient)[scale, column, "value"],
        True,
        sign,
        other_workload,
        lambda scale: _interval(context.table(compute.efficient), scale, column),
    )


def speedup(context: Context) -> Iterator[Evidence]:
    """Claim 12; beside it, over the materialised operator compiled with its model."""
    yield from _throughput(
        context, "fixed.speedup", "materialised", lambda value: value > 1, _other_context
    )
    yield from _beyond_the_paper(
        context, "peers.compiled_ratio", "materialised, compiled with its model", _other_context
    )


def beside_attention(context: Context) -> Iterator[Evidence]:
    """Claim 13; the paper's is below 1 itself, so that no sign is asked for.

    Beside it, over the other attention that the campaign measures.
    """
    for found in _throughput(context, "matched.ratio", "FlashAttention", None, _other_batches):
        yield replace(found, note=joined(found.note, _which_attention(context, found.label)))
    peer = next(
        (
            name.text
            for scale in SCALES
            if (name := context.table(compute.efficient)[scale, "peers.name", "value"]).text
        ),
        "",
    )
    yield from _beyond_the_paper(context, "peers.other_ratio", peer, _other_batches)


def _beyond_the_paper(
    context: Context, column: str, peer: str, other_workload: Callable[[Context, str], str]
) -> Iterator[Evidence]:
    """FlashRelation's throughput over what the paper does not compare with; decides nothing."""
    table = context.table(compute.efficient)
    for scale in SCALES:
        measured = table[scale, column, "value"]
        if measured.value is None:
            continue
        low, high = _interval(table, scale, column)
        found = Evidence(
            scale,
            f"beyond the paper: training throughput, FlashRelation / {peer}",
            measured.unit,
            ours=measured.value,
            low=low,
            high=high,
            n=measured.n,
            counted="rounds",
            asks_size=False,
            beside=True,
            note=measured.reason,
            sources=measured.sources,
        )
        yield _comparable(context, found, other_workload)


def _side(context: Context, benchmark: str, scale: str, side: str) -> dict | None:
    """The row of one side of a benchmark that passed, if it is there."""
    rows = select(context.records.throughput, benchmark=benchmark, scale=scale, side=side)
    passed = select(rows, status="PASS").to_dict("records")
    return passed[0] if passed else None


def _which_attention(context: Context, scale: str) -> str:
    """Which FlashAttention was measured, by the kernels that ran."""
    row = _side(context, "matched", scale, "mha")
    of_pytorch = row is not None and any("pytorch_flash" in kernel for kernel in row["kernels"])
    return "FlashAttention is PyTorch’s FlashAttention-2" if of_pytorch else ""


def memory(context: Context) -> Iterator[Evidence]:
    """Claim 14."""

    def theirs(scale: str) -> Printed:
        return Printed.over(
            *(printed("app-prod-fr-fa", scale, f"allocated.{v}") for v in ("full", "mha"))
        )

    def ours(scale: str) -> Measured:
        return ratio(
            *(
                context.table(compute.production)[scale, f"allocated.{v}", "value"]
                for v in ("full", "mha")
            )
        )

    for found in _held_to_the_worst(
        context,
        "allocated memory, FlashRelation / FlashAttention",
        {scale: theirs(scale) for scale in SCALES},
        ours,
        False,
        lambda value: value <= 1,
        _other_batches,
    ):
        yield replace(found, note=joined(found.note, *_bytes_beside(context, found.label)))


def _bytes_beside(context: Context, scale: str) -> Iterator[str]:
    """By how much the pair's memory differs, and what the materialised operator allocates."""
    for benchmark, sides in (("matched", ("full", "mha")), ("fixed", ("reference", "full"))):
        rows = [_side(context, benchmark, scale, side) for side in sides]
        gib = [row["allocated_gib"] for row in rows if row and is_number(row["allocated_gib"])]
        if len(gib) < len(sides):
            continue
        if benchmark == "matched":
            yield f"{1024 * (gib[0] - gib[1]):+.0f} MiB".replace("-", MINUS)
        else:
            yield (
                f"at T = {rows[0]['context']:.0f} the materialised operator allocates "
                f"{gib[0]:.3g} GiB, FlashRelation {gib[1]:.3g}"
            )


def complexity(context: Context) -> Iterator[Evidence]:
    """Claim 16: fitted powers of T of Linear Relation's time, and of both decode states.

    Beside them those of the others' times, which are quadratic by definition.
    """
    found = context.table(powers)

    full = next(
        (r for r in ("full-flash", "full-reference") if _power(context, r, "state") is not None),
        "full-flash",
    )
    for row, quantity, paper, tolerance, label, holds in (
        ("linear", "time", 1.0, POWER_OF_TIME, "Linear Relation’s time", lambda e: e < 1.5),
        (
            "linear",
            "state",
            0.0,
            POWER_OF_BYTES,
            "Linear Relation’s decode state",
            lambda e: e < 0.5,
        ),
        (full, "state", 1.0, POWER_OF_BYTES, "Full Relation’s decode state", lambda e: e > 0.5),
        (full, "time", 2.0, None, "Full Relation’s time", None),
        ("mha", "time", 2.0, None, "MHA’s time", None),
    ):
        cell = found[row, f"{quantity}_exponent", "value"]
        low, high = _interval(found, row, f"{quantity}_exponent")
        size = None
        if cell.value is not None and tolerance is not None:
            inside = low is not None and high is not None and low <= paper <= high
            size = inside or abs(cell.value - paper) <= tolerance
        contested = says_otherwise(holds, low, high)
        low, high, shown = (
            None if end is None else round(end, POWER_DECIMALS) for end in (low, high, cell.value)
        )
        yield Evidence(
            label,
            "fitted power of T",
            "1",
            paper=paper,
            ours=shown,
            low=low,
            high=high,
            n=cell.n,
            counted="points",
            direction=None if cell.value is None or holds is None else holds(cell.value),
            size=size,
            contested=contested,
            asks_direction=holds is not None,
            asks_size=tolerance is not None,
            essential=holds is not None,
            beside=holds is None,
            note=cell.reason,
            sources=cell.sources
            or tuple(dict.fromkeys(select(context.records.complexity, operator=row)["source"])),
        )


def _power(context: Context, row: str, quantity: str) -> float | None:
    return context.table(powers)[row, f"{quantity}_exponent", "value"].value


def long_context(context: Context) -> Iterator[Evidence]:
    """Claim 21: what the paper's memory holds; how many contexts train, and which run out of it.

    Beside it, what a GPU with more memory allocates where the paper's runs out.
    """
    found = context.table(compute.linear_long)
    theirs = {T: load("app-linear-long")[T, "status", "value"].printed for T in PAPER_CONTEXTS}
    for status, quantity in (("PASS", "contexts that train"), ("OOM", "contexts out of memory")):
        lengths = [T for T in PAPER_CONTEXTS if theirs[T] == status]
        cells = [found[T, "status", "value"] for T in lengths]
        there = [cell for cell in cells if cell.text is not None]
        ours = sum(cell.text == status for cell in there)
        sources = tuple(
            dict.fromkeys(s for T in lengths for s in found[T, "throughput", "value"].sources)
        )
        lacking = context.setting(sources).lacks("gpu") if there else ""
        all_there = len(there) == len(cells)
        missing = "; ".join(dict.fromkeys(c.reason for c in cells if c.text is None and c.reason))
        yield Evidence(
            _contexts([_length(found, T) for T in lengths]),
            quantity,
            "1",
            paper=len(lengths),
            ours=ours if there else None,
            n=len(there),
            counted="contexts",
            paper_n=len(lengths),
            direction=None if lacking or not all_there else ours == len(lengths),
            asks_size=False,
            essential=True,
            note=joined(lacking or "", missing),
            sources=sources,
        )
        if status == "OOM":
            for T in lengths:
                yield from _fits(found, T)


def _length(found: Measurements, T: str) -> int:
    """What stands for a context of the paper's, in a campaign of other models."""
    return int(found[T, "context", "value"].value or T)


def _contexts(lengths: list[int]) -> str:
    first, last = (f"{T:,}" for T in (lengths[0], lengths[-1]))
    return f"T = {first}" if first == last else f"T = {first} to {last}"


def _fits(found: Measurements, T: str) -> Iterator[Evidence]:
    """Allocated bytes at a context that the paper's memory does not hold; decides nothing."""
    allocated = found[T, "allocated", "value"]
    if allocated.value is None or _length(found, T) != int(T):
        return
    yield Evidence(
        f"T = {int(T):,}, allocated",
        "GPU memory of an update",
        "GiB",
        ours=allocated.value,
        n=allocated.n,
        counted="rounds",
        asks_size=False,
        beside=True,
        note=allocated.reason,
        told=f"T = {int(T):,} takes {allocated.value:.3g} GiB here; the paper’s GPU has 32 GB",
        sources=allocated.sources,
    )
