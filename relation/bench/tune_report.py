"""What a search prints: a table a shape, notes, and entries in the format of launches.toml."""

import statistics
from collections import Counter
from dataclasses import fields

import torch
import triton

from relation.bench.statistics import ratio
from relation.bench.table import Section, cell, with_interval
from relation.bench.tune import Found, Ranking
from relation.kernels.flash_relation.launches import (
    GLUON_PASSES,
    PASSES,
    Launch,
    Launches,
    load_launches,
)
from relation.verify.inputs import Shape

_SHOWN = 5
_HEADER = ["pass", "rank", "i x j", "warps", "stages", "registers", "ms", "of shipped", ""]


def _row(ranking: Ranking, place: int, launch: Launch) -> list[str]:
    seconds, unit = ranking.seconds[launch], ranking.seconds.get(ranking.shipped)
    shipped = launch == ranking.shipped
    compared = {} if unit is None or shipped else ratio(seconds, unit)
    return [
        ranking.name,
        f"{place}",
        f"{launch.block_i} x {launch.block_j}",
        f"{launch.warps}",
        f"{launch.stages}",
        cell(launch.registers, "d"),
        f"{1e3 * statistics.median(seconds):.4f}",
        with_interval(compared, "ratio", ".3f"),
        "shipped" if shipped else "",
    ]


def sections(found: Found) -> list[Section]:
    """A table a shape: of each pass the five fastest launches, and the shipped one with its rank.

    ms is the forward's time for the pass `forward`, else the whole backward's.
    """
    tables = []
    for shape in dict.fromkeys(ranking.shape for ranking in found.rankings):
        rows = []
        for ranking in (r for r in found.rankings if r.shape == shape):
            for place, launch in enumerate(ranking.seconds, 1):
                if place <= _SHOWN or launch == ranking.shipped:
                    rows.append(_row(ranking, place, launch))
        title = f"{shape.scale}, (B, H, T, D) = {shape.dimensions}, {found.precision}"
        tables.append(Section(title, _HEADER, rows))
    return tables


def notes(found: Found) -> list[str]:
    """Lines below the tables: how to read them, what is not in them and why."""
    lines = [
        "ms: median of the forward, or for p1 and p2_info of the whole backward; of shipped: over "
        "the shipped launch's, round by round, with a 95% interval of the median"
    ]
    for ranking in found.rankings:
        reasons = Counter(ranking.rejected.values())
        if reasons:
            told = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
            tried = len(ranking.rejected) + len(ranking.seconds)
            lines.append(f"{ranking.shape.scale} {ranking.name}, out of {tried}: {told}")
        if ranking.shipped in ranking.rejected:
            lines.append(f"{ranking.shape.scale} {ranking.name}: the shipped launch is among them")
    for shape in found.left_out:
        lines.append(
            f"{shape.scale} was not searched: another shape of head width {shape.width} has more "
            "pairs of tokens, and an entry serves them all"
        )
    lines += _gluon_lines(found)
    if found.architecture not in load_launches():
        lines.append(
            f"launches.toml has no {found.architecture}: give it entries for every head width "
            "and number of bits, or the kernels find none for those it lacks"
        )
    return lines


def _gluon_lines(found: Found) -> list[str]:
    """What the entries leave out: passes in Gluon, which are not searched."""
    lines = []
    for target in found.targets:
        width, bits = target.shape.width, target.shipped.bits
        entries = load_launches().get(found.architecture, ())
        entry = next((e for e in entries if e.bits == bits and e.widest >= width), None)
        names = [f"gluon_{name}" for name in GLUON_PASSES if entry and entry.gluon(name)]
        if names:
            lines.append(
                f"{target.shape.scale}: only Triton's kernels were searched; keep "
                f"{' and '.join(names)} of the shipped entry"
            )
    return lines


def _table(launch: Launch) -> str:
    values = {field.name: getattr(launch, field.name) for field in fields(launch)}
    told = ", ".join(
        f"{name} = {str(value).lower()}"
        for name, value in values.items()
        if value is not None and value is not False
    )
    return f"{{ {told} }}"


def _entry(architecture: str, launches: Launches, comment: str) -> str:
    lines = [
        f"# {comment}",
        f"[[{architecture}]]",
        f"bits = {launches.bits}",
        f"widest = {launches.widest}",
        f"tuned = {'true' if launches.tuned else 'false'}",
        *(["descriptors = true"] if launches.descriptors else []),
        *(f"{name} = {_table(getattr(launches, name))}" for name in PASSES),
    ]
    return "\n".join(lines) + "\n"


def entries_toml(found: Found) -> str:
    """The entries of a search as TOML that `load_launches` reads, each with its origin."""
    return "\n".join(
        _entry(found.architecture, launches, _origin(found, shape))
        for shape, launches in found.entries().items()
    )


def _origin(found: Found, shape: Shape) -> str:
    versions = f"PyTorch {torch.__version__}, Triton {triton.__version__}"
    return f"{found.device}, {found.precision}, {shape.dimensions}; {versions}"
