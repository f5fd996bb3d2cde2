"""Claims that a verification's checks decide: 15, 18 and 22 to 24 (Sections 3 to 5, Appendix A)."""

import math
from collections.abc import Callable, Iterator

import pandas as pd

from report.judge.claims.context import Context
from report.judge.claims.evidence import Evidence
from report.values.conditions import TILED
from report.values.measured import select

# What a verification calls the Triton kernel, and the definition that is checked beside it.
KERNEL, DEFINITION = "flash", "definition"
# The precision in which the definition decides.
EXACT = "fp64"

# What a check of a backend says of the claim, and why it may say nothing.
Held = Callable[[str, bool], tuple[bool | None, str]]


def _held(backend: str, held: bool) -> tuple[bool | None, str]:
    return held, ""


def _held_of_the_kernel(backend: str, held: bool) -> tuple[bool | None, str]:
    """An error beyond its bound speaks against any form of FlashRelation.

    Only the kernel speaks for itself.
    """
    if backend == KERNEL or not held:
        return held, ""
    ran = TILED if backend == "tiled" else f"backend {backend}, not the kernel"
    return None, f"only {ran} was checked here"


def _of_check(context: Context, check: str) -> pd.DataFrame:
    return select(context.records.verification, check=check)


def _no_record(context: Context, quantity: str) -> Evidence:
    """Why a check is not there: no verification, or one from before the check was added."""
    missing = select(context.records.missing, kind="verification")["reason"]
    why = "; ".join(missing) or "this campaign holds no verification"
    if len(context.records.verification):
        why = (
            "this campaign’s verification is older than this check; `python -m relation verify` "
            "makes it anew"
        )
    return Evidence("all", quantity, "1", note=why, essential=True)


def _shares(rows: pd.DataFrame, label: str, held: Held, essential: bool) -> Evidence:
    """The largest error over what is allowed, of one operator in one precision."""
    operator, precision = str(rows["operator"].iloc[0]), rows["precision"].iloc[0]
    # An error that is no number is beyond any bound.
    shares = (rows["error"] / rows["allowed"]).fillna(math.inf)
    largest = rows.loc[shares.idxmax()]
    lengths = " and ".join(str(length) for length in sorted(set(rows["length"])))
    direction, unchecked = held(operator, bool((rows["error"] <= rows["allowed"]).all()))
    nearest = (
        f"backend {operator} in {precision} at T = {lengths}: {largest['measure']} error "
        f"of {largest['name']} is the nearest to its bound"
    )
    return Evidence(
        label,
        f"largest error / allowed, {operator} in {precision}",
        "1",
        ours=float(shares.max()),
        n=len(rows),
        counted="checks",
        direction=direction,
        asks_size=False,
        essential=essential,
        note=unchecked or nearest,
        sources=tuple(dict.fromkeys(rows["source"])),
    )


def exactness(context: Context) -> Iterator[Evidence]:
    """Claim 15: errors off the definition over what its own precision allows, at every scale."""
    rows = _of_check(context, "exactness")
    if rows.empty:
        yield _no_record(context, "error / allowed")
    for (scale, *_), found in rows.groupby(["scale", "operator", "precision"], sort=False):
        yield _shares(found, str(scale), _held_of_the_kernel, essential=True)


def recurrence(context: Context) -> Iterator[Evidence]:
    """Claim 23: errors of Linear Relation's other forms off the recurrence, over what is allowed.

    The forms in FP64 are needed; the campaign's backend may fail it too.
    """
    rows = _of_check(context, "recurrence")
    if rows.empty:
        yield _no_record(context, "error / allowed")
    for (operator, precision), found in rows.groupby(["operator", "precision"], sort=False):
        label = f"{operator} in {precision}"
        yield _shares(found, label, _held, essential=precision == EXACT)


def _largest(context: Context, check: str, held: Held) -> Iterator[Evidence]:
    """The largest error of each identity, of the definition and of the backends.

    The definition in FP64 decides.
    """
    rows = _of_check(context, check)
    if rows.empty:
        yield _no_record(context, "largest error")
    for row in rows.to_dict("records"):
        operator, precision = row["operator"], row["precision"]
        within = bool(row["error"] <= row["allowed"])
        of_the_definition = operator == DEFINITION
        decides = of_the_definition and precision == EXACT
        direction, unchecked = (within, "") if of_the_definition else held(operator, within)
        apart = precision if of_the_definition else operator
        yield Evidence(
            row["name"] if decides else f"{row['name']}, {apart}",
            f"largest error, {operator} in {precision}",
            "1",
            paper=0.0,
            ours=row["error"],
            n=1,
            counted="checks",
            direction=direction,
            asks_size=False,
            essential=decides,
            note=unchecked or f"allowed: {row['allowed']:.2g}",
            sources=(row["source"],),
        )


def identities(context: Context) -> Iterator[Evidence]:
    """Claim 18: that the kernel was not checked leaves its own rows open."""
    return _largest(context, "identity", _held_of_the_kernel)


def mixing(context: Context) -> Iterator[Evidence]:
    """Claim 22."""
    return _largest(context, "mixing", _held)


def history(context: Context) -> Iterator[Evidence]:
    """Claim 24: any backend may fail it."""
    return _largest(context, "history", _held)
