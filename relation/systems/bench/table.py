"""The printed form of a benchmark: one table a shape or training step, and notes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relation.systems.bench.sides import LONG, STEP

_MISSING = "-"


@dataclass(frozen=True)
class Section:
    """One table: what it is about, its columns and its rows."""

    title: str
    header: list[str]
    rows: list[list[str]]


def _milliseconds(row: Mapping, digits: int) -> str:
    return _MISSING if row["seconds"] is None else f"{1e3 * row['seconds']:.{digits}f}"


def _ratio(row: Mapping) -> str:
    """The ratio with its interval, where there are one and the other."""
    if row["ratio"] is None:
        return _MISSING
    if row["ratio_low"] is None:
        return f"{row['ratio']:.2f}"
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


def _peak(row: Mapping, unit: int, digits: int) -> str:
    return _MISSING if row["peak_bytes"] is None else f"{row['peak_bytes'] / unit:,.{digits}f}"


def _error(row: Mapping) -> str:
    return _MISSING if row["relative_error"] is None else f"{row['relative_error']:.1e}"


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
            cells += [_milliseconds(own[measure], 3), _ratio(own[measure])]
        last = own[measures[-1]]
        table.append([*cells, _peak(last, 2**20, 0), _error(last), _status(last)])
    return Section(title, [*header, "peak MiB", "error", ""], table)


def _rate(row: Mapping) -> str:
    rate = row["tokens_per_second"]
    return _MISSING if rate is None else f"{rate:,.0f}"


def _step_section(title: str, rows: Sequence[Mapping]) -> Section:
    table = []
    for row in rows:
        cells = [_milliseconds(row, 2), _ratio(row), _rate(row), _peak(row, 2**30, 2)]
        table.append([row["peer"], *cells, _status(row)])
    return Section(title, ["model", "step ms", "ratio", "tok/s", "peak GiB", ""], table)


def _long_section(title: str, rows: Sequence[Mapping]) -> Section:
    """Lengths down; each rate also over that of the shortest."""
    table, first = [], rows[0]["tokens_per_second"]
    for row in rows:
        rate = row["tokens_per_second"]
        relative = _MISSING if rate is None or first is None else f"{rate / first:.3f}"
        cells = [_milliseconds(row, 2), _rate(row), relative, _peak(row, 2**30, 2), _status(row)]
        table.append([f"{row['length']:,}", *cells])
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
