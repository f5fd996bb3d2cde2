"""The printed form of `relation.bench.decode`: a table a batch, and who overtakes whom."""

from collections.abc import Iterator, Mapping, Sequence

from relation.bench.table import Section, cell, with_interval

_HEADER = ["model", "T", "ms a token", "tok/s", "state", ""]


def sections(rows: Sequence[Mapping]) -> list[Section]:
    """A table for each batch: models and contexts down."""
    return [
        Section(
            f"Batch {batch}",
            _HEADER,
            [_line(row) for row in rows if row["batch"] == batch and _told(row)],
        )
        for batch in dict.fromkeys(row["batch"] for row in rows)
    ]


def _told(row: Mapping) -> bool:
    """What is unavailable is told once, below the tables."""
    return row["status"] != "UNAVAILABLE"


def _line(row: Mapping) -> list[str]:
    in_ms = {k: v and 1e3 * v for k, v in row.items() if k.startswith("seconds")}
    return [
        row["model"],
        f"{row['context']:,}",
        with_interval(in_ms, "seconds", ".3f"),
        cell(row["tokens_per_second"], ",.0f"),
        _size(row["state_bytes"]),
        "" if row["status"] == "PASS" else row["status"],
    ]


def _size(count: int) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{count / unit:,.1f} {name}"


def overtaken(rows: Sequence[Mapping], model: str, base: str) -> Iterator[tuple[int, int | None]]:
    """Of each batch, the first context from which on a token of `model` is the faster one.

    Yields the batch and the context, None where the longest context that both have is slower.
    """
    for batch in dict.fromkeys(row["batch"] for row in rows):
        of = {
            name: {
                row["context"]: row["seconds"]
                for row in rows
                if (row["batch"], row["model"], row["status"]) == (batch, name, "PASS")
            }
            for name in (model, base)
        }
        both = sorted(of[model].keys() & of[base].keys())
        first = None
        for context in reversed(both):
            if of[model][context] >= of[base][context]:
                break
            first = context
        if both:
            yield batch, first


def notes(rows: Sequence[Mapping]) -> list[str]:
    """Where Linear and Hybrid Relation overtake MHA, and why cells are missing."""
    lines = []
    for model in ("linear", "hybrid"):
        for batch, context in overtaken(rows, model, "mha"):
            when = "at no measured T" if context is None else f"from T = {context:,} on"
            lines.append(f"batch {batch}: {model} decodes faster than mha {when}")
    missing = [row for row in rows if row["status"] != "PASS"]
    for reason in dict.fromkeys(row["reason"] for row in missing if not _told(row)):
        of = dict.fromkeys(row["model"] for row in missing if row["reason"] == reason)
        lines.append(f"{', '.join(of)}: {reason}")
    lines += [
        f"{row['model']} T={row['context']:,} batch {row['batch']}: {row['status']}, "
        f"{row['reason']}"
        for row in missing
        if _told(row)
    ]
    return lines
