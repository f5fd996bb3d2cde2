"""Claims on speed, memory and cost: 12 to 14, 16, 21 (Sections 5, 6.3, Appendices F to H)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from relation.variants import PAIRED
from report.judge.claims.context import Context
from report.judge.claims.evidence import (
    LAST_BIT,
    Evidence,
    Term,
    compare,
    joined,
    says_otherwise,
    undecided,
)
from report.values.complexity import TOKEN_MIXING
from report.values.layout import SCALES
from report.values.linear import LINEAR_LONG, PAPER_CONTEXTS
from report.values.measured import is_number, select
from report.values.numbers import MINUS
from report.values.paper import printed
from report.values.systems import EFFICIENT, FIXED_CONTEXT, PRODUCTION

# Fixed costs at small T and caches that overflow at large T bend a fitted power of T by so much.
POWER_OF_TIME = 0.15
# Bytes are counted, not timed: a fitted power is off by no more than rounding.
POWER_OF_BYTES = 0.01
# A power is told to so many decimals; what a fit leaves of a whole one lies far below.
POWER_DECIMALS = 3


Workload = Callable[[Context, str], str]
"""Why a scale was measured on another workload than the paper's, or ""."""


def _comparable(context: Context, found: Evidence, other_workload: Workload) -> Evidence:
    """The evidence of a scale, undecided if measured on no CUDA GPU or on another workload."""
    if found.ours is None:
        return found
    lacking = context.setting(found.sources).lacks("cuda") or other_workload(context, found.label)
    return undecided(found, lacking) if lacking else found


def _other_context(context: Context, scale: str) -> str:
    """Why the comparison with the materialised operator is not at the paper's T, if it is not."""
    length = context.cell(EFFICIENT, scale, "fixed.context").value
    return "" if length == FIXED_CONTEXT else f"measured at T = {length:.0f}, not {FIXED_CONTEXT}"


def _other_batches(context: Context, scale: str) -> str:
    """Why the pair is not the paper's production workload, if it is not."""
    for variant in PAIRED:
        column = f"micro_ga.{variant}"
        ours = context.cell(PRODUCTION, scale, column).text
        theirs = printed(PRODUCTION.label, scale, column).printed
        if ours != theirs:
            return f"measured with micro/GA {ours}, not {theirs}"
    return ""


def _held_to_the_worst(
    context: Context,
    quantity: str,
    terms: Mapping[str, Term],
    direction: Callable[[float], bool] | None,
    other_workload: Workload,
    *,
    more: bool,
    ends: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> Iterator[Evidence]:
    """Hold each scale to the paper's worst: at least that where ``more`` is better, else at most.

    ends: of each scale's 95% interval.
    """
    worst = (min if more else max)((term.paper for term in terms.values()), key=lambda p: p.value)
    slack = worst.rounding + LAST_BIT

    def met(value: float) -> bool:
        return value >= worst.value - slack if more else value <= worst.value + slack

    for scale, term in terms.items():
        interval = ends[scale] if ends else (None, None)
        found = compare(scale, quantity, *term, direction, met=met, ends=interval, counted="rounds")
        yield _comparable(context, found, other_workload)


def _throughput(
    context: Context,
    column: str,
    peer: str,
    direction: Callable[[float], bool] | None,
    other_workload: Workload,
) -> Iterator[Evidence]:
    """FlashRelation's training throughput over a peer's, a column of Table 5."""
    return _held_to_the_worst(
        context,
        f"training throughput, FlashRelation / {peer}",
        {scale: context.term(EFFICIENT, scale, column) for scale in SCALES},
        direction,
        other_workload,
        more=True,
        ends={scale: context.interval(EFFICIENT, scale, column) for scale in SCALES},
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
    names = (context.cell(EFFICIENT, scale, "peers.name").text for scale in SCALES)
    peer = next(filter(None, names), "")
    yield from _beyond_the_paper(context, "peers.other_ratio", peer, _other_batches)


def _beyond_the_paper(
    context: Context, column: str, peer: str, other_workload: Workload
) -> Iterator[Evidence]:
    """FlashRelation's throughput over what the paper does not compare with; decides nothing."""
    for scale in SCALES:
        measured = context.cell(EFFICIENT, scale, column)
        if measured.value is None:
            continue
        low, high = context.interval(EFFICIENT, scale, column)
        quantity = f"beyond the paper: training throughput, FlashRelation / {peer}"
        aside = {"counted": "rounds", "asks_size": False, "beside": True}
        found = Evidence.of(scale, quantity, measured, low=low, high=high, **aside)
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
    ratios = {
        scale: context.term(PRODUCTION, scale, "allocated.full")
        / context.term(PRODUCTION, scale, "allocated.mha")
        for scale in SCALES
    }
    for found in _held_to_the_worst(
        context,
        "allocated memory, FlashRelation / FlashAttention",
        ratios,
        lambda value: value <= 1,
        _other_batches,
        more=False,
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


class _Power(NamedTuple):
    """A power of T that the paper gives: what it is of, by how much a fit may be off it, its sign.

    Without ``holds`` it is shown and decides nothing.
    """

    row: str
    quantity: str
    label: str
    paper: float
    tolerance: float | None = None
    holds: Callable[[float], bool] | None = None


def complexity(context: Context) -> Iterator[Evidence]:
    """Claim 16: fitted powers of T of Linear Relation's time, and of both decode states.

    Beside them those of the others' times, which are quadratic by definition.
    """
    fitted = (
        row
        for row in ("full-flash", "full-reference")
        if context.cell(TOKEN_MIXING, row, "state_exponent").value is not None
    )
    full = next(fitted, "full-flash")
    linear = "linear"
    for power in (
        _Power(linear, "time", "Linear Relation’s time", 1.0, POWER_OF_TIME, lambda e: e < 1.5),
        _Power(
            linear,
            "state",
            "Linear Relation’s decode state",
            0.0,
            POWER_OF_BYTES,
            lambda e: e < 0.5,
        ),
        _Power(
            full, "state", "Full Relation’s decode state", 1.0, POWER_OF_BYTES, lambda e: e > 0.5
        ),
        _Power(full, "time", "Full Relation’s time", 2.0),
        _Power("mha", "time", "MHA’s time", 2.0),
    ):
        yield _of_power(context, power)


def _of_power(context: Context, power: _Power) -> Evidence:
    column = f"{power.quantity}_exponent"
    cell = context.cell(TOKEN_MIXING, power.row, column)
    low, high = context.interval(TOKEN_MIXING, power.row, column)
    size = None
    if cell.value is not None and power.tolerance is not None:
        inside = low is not None and low <= power.paper <= high
        size = inside or abs(cell.value - power.paper) <= power.tolerance
    contested = says_otherwise(power.holds, low, high)
    low, high, shown = (
        None if end is None else round(end, POWER_DECIMALS) for end in (low, high, cell.value)
    )
    timed = select(context.records.complexity, operator=power.row)["source"]
    return Evidence.of(
        power.label,
        "fitted power of T",
        cell,
        unit="1",
        paper=power.paper,
        ours=shown,
        low=low,
        high=high,
        counted="points",
        direction=None if cell.value is None or power.holds is None else power.holds(cell.value),
        size=size,
        contested=contested,
        asks_direction=power.holds is not None,
        asks_size=power.tolerance is not None,
        essential=power.holds is not None,
        beside=power.holds is None,
        sources=cell.sources or tuple(dict.fromkeys(timed)),
    )


def long_context(context: Context) -> Iterator[Evidence]:
    """Claim 21: what the paper's memory holds; how many contexts train, and which run out of it.

    Beside it, what a GPU with more memory allocates where the paper's runs out.
    """
    theirs = {T: printed(LINEAR_LONG.label, T, "status").printed for T in PAPER_CONTEXTS}
    for status, quantity in (("PASS", "contexts that train"), ("OOM", "contexts out of memory")):
        lengths = [T for T in PAPER_CONTEXTS if theirs[T] == status]
        cells = [context.cell(LINEAR_LONG, T, "status") for T in lengths]
        there = [cell for cell in cells if cell.text is not None]
        ours = sum(cell.text == status for cell in there)
        rates = [context.cell(LINEAR_LONG, T, "throughput") for T in lengths]
        sources = tuple(dict.fromkeys(source for rate in rates for source in rate.sources))
        lacking = context.setting(sources).lacks("gpu") if there else ""
        missing = dict.fromkeys(c.reason for c in cells if c.text is None)
        open_ = lacking or len(there) < len(cells)
        yield Evidence(
            _contexts([_length(context, T) for T in lengths]),
            quantity,
            "1",
            paper=len(lengths),
            ours=ours if there else None,
            n=len(there),
            counted="contexts",
            paper_n=len(lengths),
            direction=None if open_ else ours == len(lengths),
            asks_size=False,
            essential=True,
            note=joined(lacking or "", *missing),
            sources=sources,
        )
        if status == "OOM":
            for T in lengths:
                yield from _fits(context, T)


def _length(context: Context, T: str) -> int:
    """What stands for a context of the paper's, in a campaign of other models."""
    return int(context.cell(LINEAR_LONG, T, "context").value or T)


def _contexts(lengths: list[int]) -> str:
    first, last = (f"{T:,}" for T in (lengths[0], lengths[-1]))
    return f"T = {first}" if first == last else f"T = {first} to {last}"


def _fits(context: Context, T: str) -> Iterator[Evidence]:
    """Allocated bytes at a context that the paper's memory does not hold; decides nothing."""
    allocated = context.cell(LINEAR_LONG, T, "allocated")
    if allocated.value is None or _length(context, T) != int(T):
        return
    yield Evidence.of(
        f"T = {int(T):,}, allocated",
        "GPU memory of an update",
        allocated,
        counted="rounds",
        asks_size=False,
        beside=True,
        told=f"T = {int(T):,} takes {allocated.value:.3g} GiB here; the paper’s GPU has 32 GB",
    )
