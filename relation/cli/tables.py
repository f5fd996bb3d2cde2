"""Tables on a terminal, shared by the commands."""


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Aligned columns, numbers to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    numeric = [
        all(row[i][:1].isdigit() or row[i] in ("", "-") for row in rows) for i in range(len(header))
    ]
    for line in (header, *rows):
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())
