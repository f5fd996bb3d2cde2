"""The printed form of what was measured: tables of rows, and the notes below them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relation.bench.sides import LONG, STEP
from relation.bench.statistics import ratio, ratio_apart

MISSING = "-"


@dataclass(frozen=True)
class Section:
    """One table: what it is about, its columns and its rows."""

    title: str
    header: list[str]
    rows: list[list[str]]


def cell(value: float | None, form: str, unit: float = 1) -> str:
    """A number in multiples of `unit`, or a dash for None."""
    if value is None:
        return MISSING
    return format(value if unit == 1 else value / unit, form)


def with_interval(row: Mapping, name: str, form: str) -> str:
    """A column's number with its interval, as far as the row has them."""
    if row.get(f"{name}_low") is None:
        return cell(row.get(name), form)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:{form}} [{low:{form}}, {high:{form}}]"


def _status(row: Mapping) -> str:
    return "" if row["status"] == "PASS" else row["status"]


def _operator_section(title: str, rows: Sequence[Mapping]) -> Section:
    """Peers down, measures across; peak and error are those of the last measure."""
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    header = ["operator"]
    for measure in measures:
        header += [f"{measure} ms", "ratio"]
    table = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        own = {row["measure"]: row for row in rows if row["peer"] == peer}
        cells = [peer]
        for measure in measures:
            row = own[measure]
            cells += [cell(row["seconds"], ".3f", 1e-3), with_interval(row, "ratio", ".2f")]
        cells += [cell(row["peak_bytes"], ",.0f", 2**20), cell(row["relative_error"], ".1e")]
        table.append([*cells, _status(row)])
    return Section(title, [*header, "peak MiB", "error", ""], table)


def _step_section(title: str, rows: Sequence[Mapping]) -> Section:
    table = [
        [
            row["peer"],
            cell(row["seconds"], ".2f", 1e-3),
            with_interval(row, "ratio", ".2f"),
            cell(row["tokens_per_second"], ",.0f"),
            cell(row["peak_bytes"], ",.2f", 2**30),
            _status(row),
        ]
        for row in rows
    ]
    return Section(title, ["model", "step ms", "ratio", "tok/s", "peak GiB", ""], table)


def _long_section(title: str, rows: Sequence[Mapping]) -> Section:
    """Lengths down; each rate also over that of the shortest."""
    first = rows[0]["tokens_per_second"]
    table = [
        [
            f"{row['length']:,}",
            cell(row["seconds"], ".2f", 1e-3),
            cell(row["tokens_per_second"], ",.0f"),
            MISSING if first is None else cell(row["tokens_per_second"], ".3f", first),
            cell(row["peak_bytes"], ",.2f", 2**30),
            _status(row),
        ]
        for row in rows
    ]
    header = ["T", "step ms", "tok/s", f"of T={rows[0]['length']:,}", "peak GiB", ""]
    return Section(title, header, table)


def sections(rows: Sequence[Mapping]) -> list[Section]:
    """One table a shape of the operator, a training step and a sweep of T, as measured."""
    grouped: dict[tuple, list[Mapping]] = {}
    for row in rows:
        kind = row["measure"] if row["measure"] in (STEP, LONG) else None
        shape = row["batch"], row["heads"], row["length"], row["width"]
        key = kind, row["scale"], None if kind == LONG else shape
        grouped.setdefault(key, []).append(row)
    found = []
    for (kind, scale, shape), members in grouped.items():
        if kind == STEP:
            title = f"{scale} training step, T {shape[2]}, micro-batch {shape[0]}"
            found.append(_step_section(title, members))
        elif kind == LONG:
            title = f"{scale} training step of {members[0]['peer']} on one sequence"
            found.append(_long_section(title, members))
        else:
            title = f"{scale} operator, (B, H, T, D) = {shape}"
            found.append(_operator_section(title, members))
    return found


def _floor_lines(rows: Sequence[Mapping]) -> list[str]:
    """How many bytes the floor of each shape moved, and how fast."""
    moved: dict[str, list[str]] = {}
    for row in rows:
        if row["moved_bytes"] is not None:
            megabytes, speed = row["moved_bytes"] / 1e6, row["moved_bytes"] / row["seconds"]
            told = f"{row['measure']} {megabytes:,.1f} MB at {speed / 1e9:,.0f} GB/s"
            moved.setdefault(f"{row['scale']} T {row['length']}", []).append(told)
    if not moved:
        return []
    explained = (
        "floor: a copy on the device, in the same rounds, of as many bytes as the operator must "
        "read and write: in each pass every input and every output once"
    )
    return [explained, *(f"floor ({where}): {', '.join(told)}" for where, told in moved.items())]


def _memory_lines(rows: Sequence[Mapping]) -> list[str]:
    """The line through peak memory against T, and how far the points lie from it."""
    points = [
        (row["length"], row["peak_bytes"])
        for row in rows
        if row["measure"] == LONG and row["peak_bytes"] is not None
    ]
    if len(points) < 3:
        return []
    lengths, peaks = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(lengths, peaks)
    off = max(abs(peak - intercept - slope * n) / peak for n, peak in points)
    return [
        f"memory against T: {intercept / 2**20:,.0f} MiB + {slope / 2**10:,.1f} KiB a token by "
        f"least squares; no point is off that line by more than {off:.2%} of its own value"
    ]


def _failure_lines(rows: Sequence[Mapping]) -> list[str]:
    """Why sides have no time: a line for each reason of a side, with where it was met first."""
    met: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["status"] != "PASS":
            reason = row["peer"], row["status"], row["reason"]
            where = f"{row['scale']} {row['measure']} T {row['length']}"
            met.setdefault(reason, []).append(where)
    lines = []
    for (peer, status, reason), (first, *rest) in met.items():
        others = f" and {len(rest)} more" if rest else ""
        lines.append(f"{peer} ({first}{others}): {status}, {reason}")
    return lines


def notes(subject: str, rows: Sequence[Mapping], conditions: Sequence[Mapping]) -> list[str]:
    """Lines below the tables: how to read them, why a side is missing, what disturbed."""
    lines = [
        f"ratio: a row's time over that of {subject}, round by round, with a 95% interval of the "
        f"median; above 1, {subject} is faster"
    ]
    if any(row["relative_error"] is not None for row in rows):
        lines.append(
            "error: RMS off the definition in FP32, over its RMS, of Y; with a backward, the "
            "largest of Y and the gradients; - for the definition itself and a floor"
        )
    lines += _floor_lines(rows) + _memory_lines(rows)
    lines += _failure_lines(rows)
    for state in conditions:
        if state["disturbed"]:
            lines.append(f"{state['moment']}: {state['disturbed']}")
    clocks = [f"{s['sm_clock']:.0f}" for s in conditions if s["sm_clock"] is not None]
    if clocks:
        limit = f"{conditions[-1]['sm_clock_limit']:.0f}"
        lines.append(f"SM clock of each part: {', '.join(clocks)} MHz (at most {limit})")
    return lines


def rate_ratio(row: Mapping, base: Mapping) -> dict:
    """A row's tokens per second over another's, as columns; none where one was not measured."""
    if not row["samples"] or not base["samples"]:
        return {}
    taken = ratio_apart if row["alone"] or base["alone"] else ratio
    return taken(row["samples"], base["samples"])


def throughput_section(title: str, rows: Sequence[Mapping]) -> Section:
    """Sides of a campaign's benchmark down, each over the first where they share a model's size."""
    first, apart = rows[0], rows[0]["benchmark"].startswith("linear")

    def over_first(row: Mapping) -> dict:
        return {} if apart or row is first else rate_ratio(row, first)

    table = [
        [
            row["side"],
            row["backend"],
            f"{row['context']:,}",
            f"{row['micro']}/{row['accumulation']}",
            with_interval(row, "tokens_per_second", ",.0f"),
            with_interval(over_first(row), "ratio", ".3f"),
            cell(row["allocated_gib"], ".2f"),
            cell(row["reserved_gib"], ".2f"),
            _status(row),
        ]
        for row in rows
    ]
    over = "ratio" if apart else f"over {first['side']}"
    header = ["side", "backend", "T", "micro/GA", "tok/s", over, "alloc. GiB", "res. GiB", ""]
    return Section(title, header, table)


def complexity_section(title: str, rows: Sequence[Mapping]) -> Section:
    """Operators down, their contexts as measured."""
    table = [
        [
            row["operator"],
            f"{row['context']:,}",
            cell(row["seconds"], ".3f", 1e-3),
            cell(row["decode_state_bytes"], ","),
            _status(row),
        ]
        for row in sorted(rows, key=lambda row: row["operator"])
    ]
    return Section(title, ["operator", "T", "ms", "state bytes", ""], table)


def campaign_notes(rows: Sequence[Mapping]) -> list[str]:
    """Lines below a campaign's benchmark: why a side is missing, what disturbed, the clocks."""
    lines = []
    for row in rows:
        name = row.get("side") or f"{row['operator']} T={row['context']}"
        if row["status"] != "PASS":
            lines.append(f"{name}: {row['status']}, {row['reason']}")
        if row.get("alone"):
            lines.append(f"{name}: measured apart, because together the sides did not fit")
    disturbed = dict.fromkeys(row["disturbed"] for row in rows if row["disturbed"] is not None)
    lines += [f"disturbed: {told}" for told in disturbed]
    clocks = [row["sm_clock_least"] for row in rows if row["sm_clock_least"] is not None]
    if clocks:
        limit = max(row["sm_clock_limit"] or 0 for row in rows)
        lines.append(f"lowest SM clock {min(clocks):.0f} MHz (at most {limit:.0f})")
    return lines
