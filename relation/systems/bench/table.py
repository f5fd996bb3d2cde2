"""The printed form of a benchmark: one table a shape or training step, and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relation.systems.bench.steps import STEP

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


def _step_section(title: str, rows: Sequence[Mapping]) -> Section:
    table = []
    for row in rows:
        rate = row["tokens_per_second"]
        tokens = _MISSING if rate is None else f"{rate:,.0f}"
        cells = [_milliseconds(row, 2), _ratio(row), tokens, _peak(row, 2**30, 2), _status(row)]
        table.append([row["peer"], *cells])
    return Section(title, ["model", "step ms", "ratio", "tok/s", "peak GiB", ""], table)


def sections(rows: Sequence[Mapping]) -> list[Section]:
    """One table a shape of the operator, then one a training step, in the order measured."""
    grouped: dict[tuple, list[Mapping]] = {}
    for row in rows:
        shape = row["batch"], row["heads"], row["length"], row["width"]
        grouped.setdefault((row["measure"] == STEP, row["scale"], shape), []).append(row)
    found = []
    for (is_step, scale, shape), members in grouped.items():
        if is_step:
            title = f"{scale} training step, T {shape[2]}, micro-batch {shape[0]}"
            found.append(_step_section(title, members))
        else:
            title = f"{scale} operator, (B, H, T, D) = {shape}"
            found.append(_operator_section(title, members))
    return found


def notes(subject: str, rows: Sequence[Mapping], gpu_states: Sequence[Mapping]) -> list[str]:
    """Lines below the tables: how to read them, why a side is missing, what the GPU said."""
    lines = [
        f"ratio: a row's time over that of {subject}, round by round, with a 95% interval of the "
        f"median; above 1, {subject} is faster"
    ]
    if any(row["relative_error"] is not None for row in rows):
        lines.append(
            "error: RMS off the definition in FP32, over its RMS, of Y; with a backward, the "
            "largest of Y and the gradients; - for the definition itself"
        )
    for row in rows:
        if row["status"] != "PASS":
            where = f"{row['scale']} {row['measure']} T {row['length']}"
            lines.append(f"{row['peer']} ({where}): {row['status']}, {row['reason']}")
    for state in gpu_states:
        if "error" in state:
            lines.append(f"clocks unknown: {state['error']}")
            break
        if state["compute_processes"]:
            lines.append(
                f"compute processes reported at {state['moment']}: "
                f"{', '.join(state['compute_processes'])} (in a container one may be this run)"
            )
    clocks = [state["clocks.sm"] for state in gpu_states if "error" not in state]
    if clocks:
        limit = gpu_states[-1].get("clocks.max.sm", "unknown")
        lines.append(f"SM clock after each part: {', '.join(clocks)} MHz (at most {limit})")
    return lines
