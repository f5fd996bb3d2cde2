"""Tables on a terminal, shared by the commands."""

from collections.abc import Iterable
from typing import Protocol


class Table(Protocol):
    """A table with its title."""

    title: str
    header: list[str]
    rows: list[list[str]]


def _is_number(text: str) -> bool:
    # A run's name starts with a digit too, as in 10M/full/42.
    return text in ("", "-") or (text.lstrip("-")[0].isdigit() and "/" not in text)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Aligned columns, numbers to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    for line in (header, *rows):
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_tables(tables: Iterable[Table], notes: Iterable[str]) -> None:
    """Each table below its title, then lines of notes."""
    for table in tables:
        print(f"\n{table.title}")
        print_table(table.header, table.rows)
    print()
    for line in notes:
        print(line)
