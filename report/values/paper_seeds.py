"""What the paper prints seed by seed behind one of its cells, and how far its seeds lie apart."""

from __future__ import annotations

import statistics
from functools import cache

from report.values.layout import SEEDS
from report.values.paper import PrintedValue, load

Key = tuple[str, str, str]


@cache
def _printed(label: str) -> dict[Key, PrintedValue]:
    return load(label)


def printed(label: str, row: str, column: str, statistic: str = "value") -> PrintedValue | None:
    """One printed cell, or None where the paper prints none."""
    return _printed(label).get((row, column, statistic))


def number(label: str, row: str, column: str, statistic: str = "value") -> float | None:
    """The number of one printed cell."""
    found = printed(label, row, column, statistic)
    return None if found is None else found.number


def _seeds_of(label: str, row: str, column: str) -> tuple[tuple[str, str, str], ...] | None:
    """The cells (table, row, column) of the three seeds behind a cell; None where unprinted."""
    if label in ("app-nll", "app-token-efficiency"):
        scale = row.split("/")[0]
        return tuple((label, f"{scale}/{seed}", column) for seed in SEEDS)
    if label == "main-results":
        if column == "token_reduction":
            return _seeds_of("app-token-efficiency", row, "reduction")
        names = {"mha_nll": "mha", "full_nll": "full", "delta": "delta"}
        return _seeds_of("app-nll", row, names[column]) if column in names else None
    if label == "structural-ablations":
        return _seeds_of("app-ablation", column, "mean" if row == "nll" else "delta")
    if label == "app-ablation":
        return tuple((label, row, f"seed_{seed}") for seed in SEEDS)
    if label == "app-hybrid":
        return tuple((label, str(seed), "nll") for seed in SEEDS)
    return None


def by_seed(label: str, row: str, column: str) -> dict[int, float]:
    """The paper's values of the three seeds behind one of its cells; empty where it prints none.

    Differences to Full Relation are taken seed by seed, as this project takes them.
    """
    cells = _seeds_of(label, row, column)
    if cells is None:
        return {}
    values = {seed: number(*cell) for seed, cell in zip(SEEDS, cells, strict=True)}
    ablation = (label == "app-ablation" and column == "delta") or (
        label == "structural-ablations" and row == "delta"
    )
    if ablation:
        full = by_seed("app-ablation", "full", "mean")
        values = {seed: value - full[seed] for seed, value in values.items()}
    return values


def spread(label: str, row: str, column: str) -> float | None:
    """Sample standard deviation over the paper's seeds behind a cell; None where it prints none."""
    values = by_seed(label, row, column)
    return statistics.stdev(values.values()) if values else None


def resolution(printed_text: str) -> float:
    """Half a unit of the last printed digit: what rounding alone can hide."""
    return 0.5 * 10.0 ** -len(printed_text.partition(".")[2])
