"""The command `compare`: two campaigns' reports side by side, cell by cell and claim by claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relation.errors import InputError
from relation.pipeline.config import load_config
from relation.pipeline.origin import origin
from relation.pipeline.results import CHECKSUMS, REPORT, SO_FAR
from relation.spec import canonical_hash
from relation.store.parquet import read_origin, read_parquet, write_parquet
from report.judge.frames import (
    CELL_KEY,
    CELLS,
    CLAIMS,
    COMPARED_CELL,
    COMPARED_CELLS,
    COMPARED_CLAIM,
    COMPARED_CLAIMS,
)


def report_of(name: str, root: Path) -> Path:
    """The report's folder of a campaign below results/, as "smoke" or "published/smoke".

    That of all its records, or else of what was there. Raises InputError where it has neither, with
    what the campaign lacks for one.
    """
    for folder in (root / name / REPORT, root / name / SO_FAR):
        if (folder / "cells.parquet").exists():
            return folder
    raise InputError(f"cannot compare {name}: {_lack(name, root)}")


def _lack(name: str, root: Path) -> str:
    """What a campaign without a report lacks, and the command that mends it."""
    shipped, _, campaign = name.rpartition("/")
    if (root / name / CHECKSUMS).exists():
        return "it is published and not rendered; `make published` renders it"
    if not shipped and (root / name / "campaign.json").exists():
        return (
            "it has no report yet; `python -m relation render --campaign "
            f"{campaign}` makes one of what is there"
        )
    defined = load_config(Path("config.yaml"))["campaigns"]
    if campaign not in defined or shipped not in ("", "published"):
        return (
            f"there is no such campaign; config.yaml defines {', '.join(defined)}, and "
            f"published/NAME is what was shipped of one"
        )
    if shipped:
        return (
            f"{root / name} does not exist; `python -m relation publish --campaign {campaign}` "
            "ships its records once it has run, then `make published` renders them"
        )
    return f"it has not run; `snakemake --cores all --config campaign={campaign}` runs it"


def compare(first: str, second: str, root: Path = Path("results")) -> Path:
    """Write results/compare/<first>-<second>/{cells,claims}.parquet and return the folder.

    Raises InputError where a campaign has no report or its report is of another version.
    """
    folders = [report_of(name, root) for name in (first, second)]
    cells = [read_parquet(folder / "cells.parquet", CELLS).to_pylist() for folder in folders]
    claims = [read_parquet(folder / "claims.parquet", CLAIMS).to_pylist() for folder in folders]
    if [row["number"] for row in claims[0]] != [row["number"] for row in claims[1]]:
        counts = " and ".join(str(len(rows)) for rows in claims)
        raise InputError(
            f"cannot compare {first} and {second}: their ledgers hold {counts} claims, so they are "
            "of two versions; render both again"
        )
    origins = [read_origin(folder / "cells.parquet") for folder in folders]
    written = origin(
        f"{first}-{second}",
        canonical_hash([found["config_hash"] for found in origins]),
        "compare",
        "; ".join(dict.fromkeys(found["device"] for found in origins)),
        first={"name": first, "page": origins[0]["page"]},
        second={"name": second, "page": origins[1]["page"]},
    )
    target = root / "compare" / f"{first}-{second}".replace("/", "-")
    write_parquet(target / "cells.parquet", COMPARED_CELLS, _side_by_side(*cells), written)
    rows = [_claims(a, b) for a, b in zip(*claims, strict=True)]
    write_parquet(target / "claims.parquet", COMPARED_CLAIMS, rows, written)
    return target


Cell = dict[str, Any]


def _side_by_side(first: list[Cell], second: list[Cell]) -> list[Cell]:
    """Every cell of either, in the first's order, then what only the second has."""
    keyed = [
        {tuple(cell[k] for k in CELL_KEY): cell for cell in cells} for cells in (first, second)
    ]
    rows = []
    for key in dict.fromkeys((*keyed[0], *keyed[1])):
        a, b = (cells.get(key) for cells in keyed)
        either = a or b
        row = dict(zip(CELL_KEY, key, strict=True))
        row |= {name: either[name] for name in ("unit", "paper", "paper_value")}
        for side, cell in (("first", a), ("second", b)):
            for name in COMPARED_CELL:
                row[f"{side}_{name}"] = None if cell is None else cell[name]
        rows.append(row | _difference(a, b))
    return rows


def _difference(a: Cell | None, b: Cell | None) -> Cell:
    """second - first, and whether their 95% intervals over seeds meet."""
    none = {"difference": None, "intervals_meet": None}
    if a is None or b is None or a["unit"] != b["unit"]:
        return none
    if a["value"] is None or b["value"] is None:
        return none
    ends = [cell[end] for cell in (a, b) for end in ("low", "high")]
    meet = None if None in ends else max(ends[0], ends[2]) <= min(ends[1], ends[3])
    return {"difference": b["value"] - a["value"], "intervals_meet": meet}


def _claims(a: Cell, b: Cell) -> Cell:
    row = {name: a[name] for name in ("number", "claim")}
    for side, claim in (("first", a), ("second", b)):
        row |= {f"{side}_{name}": claim[name] for name in COMPARED_CLAIM}
    return row
