"""An examination's records in short, on a terminal."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from relation.cli.tables import print_table
from relation.store.parquet import read_parquet


def print_examination(outputs: Mapping[str, Path]) -> None:
    """Copying by distance, long texts, and what each layer's parts are worth; then the records.

    outputs: the records by name, as `examination_paths` gives them.
    """
    found = {name: read_parquet(path).to_pandas() for name, path in outputs.items()}
    print("Random tokens and their repetition: NLL in nat/token, accuracy, best induction head")
    _print(
        ["distance", "first", "repeated", "accuracy", "induction"],
        [(distance, *_copied(rows)) for distance, rows in found["copying"].groupby("distance")],
    )
    if len(found["lengths"]):
        print("\nLong texts: NLL in nat/token at the beginning and the end")
        _print(
            ["reading", "first", "last"],
            [
                (reading, *rows.sort_values("first")["nll"].iloc[[0, -1]])
                for reading, rows in found["lengths"].groupby("reading", sort=False)
            ],
        )
    nll = found["self_use"].query("metric == 'nll'")
    whole = nll[nll["layer"].isna()]["value"].item()
    parts = nll.dropna(subset="layer").pivot(index="layer", columns="group", values="value")
    print(f"\nNLL {whole:.4f} nat/token on validation text; rise without a part of a layer")
    _print(
        ["layer", *parts.columns],
        [(f"L{layer:.0f}", *(values - whole)) for layer, values in parts.iterrows()],
    )
    print()
    for path in outputs.values():
        print(path)


def _copied(rows: pd.DataFrame) -> list[float]:
    """Of one distance: both NLLs, the accuracy and the highest score of a head, if it has one."""
    largest = rows.groupby("metric")["value"].max()
    return [
        largest.get(metric)
        for metric in ("first_nll", "repeat_nll", "repeat_accuracy", "induction")
    ]


def _print(header: list[str], rows: list[tuple]) -> None:
    print_table(header, [[_shown(value) for value in row] for row in rows])


def _shown(value: float | int | str | None) -> str:
    if isinstance(value, int | str):
        return f"{value}"
    return "-" if pd.isna(value) else f"{value:.4f}"
