"""What a table of systems was measured on and under: the cells of its row "setting", its notes."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from relation.variants import VARIANTS
from report.values.frames import CampaignRecords
from report.values.layout import Note, settings
from report.values.measured import Measurements, worded
from report.values.run_rates import SPANS, hybrid_rates

PAPER_PRECISION = "BF16"
# What the backend `tiled` is, where it stands for FlashRelation.
TILED = "FlashRelation’s tiling in plain PyTorch, not the kernel"


def _kernel_name(name: str) -> str:
    """A kernel without its namespaces, template arguments and parameters."""
    return re.split(r"[<(]", name.removeprefix("void "))[0].split("::")[-1]


def _disturbed(rows: pd.DataFrame) -> Iterable[str]:
    """What disturbed each measurement, with its contexts where they were not disturbed alike."""
    names = ["benchmark", "scale"] if "benchmark" in rows else ["scale"]
    for name, measured in rows.groupby(names, sort=False):
        where = " ".join(name)
        readings = measured.groupby("disturbed", sort=False, dropna=False)["context"].unique()
        for told, contexts in readings.items():
            if pd.isna(told):
                continue
            at = ", ".join(f"{context:,.0f}" for context in sorted(contexts))
            yield f"{where}{f' at T = {at}' if len(readings) > 1 else ''}: {told}"


def put_setting(found: Measurements, rows: pd.DataFrame, page: Mapping[str, Any]) -> None:
    """What the rows of a table were measured on and under, in the row "setting".

    page: what the campaign says of itself.
    """
    if rows.empty:
        return

    def put(column: str, texts: Iterable[object]) -> None:
        told = "; ".join(dict.fromkeys(str(text) for text in texts if pd.notna(text)))
        if told:
            found["setting", column, "value"] = worded(told)

    put("device", rows["device"])
    put("precision", (precision.upper() for precision in page["systems"]["precision"]))
    sides = set(rows["variant"] if "variant" in rows else rows["operator"])
    if page["systems"]["flash"] != "flash" and sides & {"full", "full-flash"}:
        put("flash", [page["systems"]["flash"]])
    put("driver", rows["driver"])
    clocks = rows["sm_clock_least"].dropna()
    if len(clocks):
        put("clock", [f"{clocks.min():.0f} of {rows['sm_clock_limit'].max():.0f} MHz"])
    put("disturbed", _disturbed(rows))
    if "kernels" in rows:
        passed = rows[rows["status"] == "PASS"].to_dict("records")
        ran = {row["side"]: map(_kernel_name, row["kernels"]) for row in passed}
        sides_of: dict[str, list[str]] = {}
        for side, kernels in ran.items():
            sides_of.setdefault(", ".join(dict.fromkeys(kernels)), []).append(side)
        told = {kernels: ", ".join(sides) for kernels, sides in sides_of.items() if kernels}
        put("kernels", [f"{sides}: {kernels}" for kernels, sides in told.items()])
        by_operator = rows.groupby("variant", sort=False)["backend"].unique()
        put(
            "backends",
            [
                f"{VARIANTS[name].title} on {' and '.join(backends)}"
                for name, backends in by_operator.items()
            ],
        )
        put("tokens", rows["tokens"])
        alone = rows[rows["alone"].astype(bool)]
        put("alone", alone["scale"] + " " + alone["side"])


def put_retention(found: Measurements, records: CampaignRecords, rows: pd.DataFrame) -> None:
    """That Linear Relation was timed untrained, and what training did to the rate of Hybrid runs.

    The kernels leave work out where retention keeps much of the past; training changes how much.
    """
    if rows.empty or rows["device"].str.contains("cpu", case=False).any():
        return
    found["setting", "retention", "value"] = worded("untrained")
    trained = hybrid_rates(records)
    if trained is not None:
        found["setting", "trained", "value"] = trained


# Of each setting: its key, its sentence, and whether that stands below the table. What a value
# means stands before the table, what it was measured under below it.
_SETTINGS = (
    ("driver", "GPU driver {}.", True),
    ("clock", "Lowest SM clock while it was measured: {}.", True),
    ("kernels", "Attention and Relation kernels that a profile of the updates saw: {}.", True),
    ("update", "One window is a whole update, of more tokens than the others have, at {}.", False),
    (
        "raw",
        "The raw mean is over {} timed updates and the few before them, so compilation weighs "
        "more than in a run of thousands.",
        False,
    ),
    ("alone", "Measured apart from the others, because together they did not fit: {}.", True),
    (
        "retention",
        "Linear Relation was timed {}; where training makes retention forget faster, more chunks "
        "take slower kernels (kernels/linear_relation/README.md, Mixed chunks).",
        False,
    ),
    (
        "trained",
        "The rate of Hybrid runs in training, tok/s, the median of the updates from "
        f"{SPANS[0][0]:.0%} to {SPANS[0][1]:.0%} and that of the last "
        f"{SPANS[1][1] - SPANS[1][0]:.0%}: {{}}.",
        True,
    ),
    ("oom", "Out of memory: {}.", True),
    (
        "flat",
        "No trend of a token’s time with T is resolved: the 95% intervals at the first and the "
        "last T overlap ({}).",
        False,
    ),
    ("disturbed", "What disturbed the measurement: {}.", True),
)


def setting_notes(cells: pd.DataFrame) -> list[Note]:
    """What the device was and did while the campaign measured, one sentence each."""
    found = settings(cells)
    notes = [
        Note(sentence.format(found[key]), below)
        for key, sentence, below in _SETTINGS
        if key in found
    ]
    if "precision" in found:
        notes.insert(0, Note(_precision_note(found), below=found["precision"] == PAPER_PRECISION))
    if "random" in found.get("tokens", ""):
        notes.append(Note("Measured on random tokens: the corpus was not prepared."))
    return notes


def _precision_note(found: Mapping[str, str]) -> str:
    """In which precision, on which backends; the device stands in the table's last line."""
    precision = found["precision"]
    told = f"In {precision}"
    if precision != PAPER_PRECISION:
        told += f", the paper’s in {PAPER_PRECISION}"
    if "backends" in found:
        told += f": {found['backends']}"
    if "flash" in found:
        what = f", {TILED}" if found["flash"] == "tiled" else ""
        told += f". For FlashRelation stands the backend {found['flash']}{what}"
    return f"{told}."
