"""Beyond the paper: texts longer than trained, and what the count correction does there."""

import pandas as pd

from report.values.examined import OVER_SEEDS, STUBS, BySeed, Examined, average, row_of
from report.values.frames import CampaignRecords
from report.values.layout import Column, Note, Number, Panel, Table, value
from report.values.measured import Measurements, select

# Where spans of positions end, in training contexts; each begins at half of that.
ENDS = (2, 4, 8)
_SHORT = "no document of the validation split is so long"


def contexts_of(records: CampaignRecords) -> dict[tuple[str, str], int]:
    """The training context of every model, tokens, by scale and variant."""
    return {(row["scale"], row["variant"]): row["context"] for row in records.page["trained"]}


def _span(rows: pd.DataFrame, reading: str, start: int, end: int) -> float | None:
    """Mean NLL of a checkpoint's rows of LENGTHS between two positions; None where it has none."""
    kept = select(rows, reading=reading)
    return average(kept[(kept["first"] >= start) & (kept["first"] < end)], "nll")


def _less(reading: str, base: str, start: int, end: int) -> tuple[BySeed, str]:
    """NLL of a reading less another's on the same tokens, of one seed, and which rows those are."""

    def of(rows: pd.DataFrame) -> float | None:
        terms = [_span(rows, one, start, end) for one in (reading, base)]
        return None if None in terms else terms[0] - terms[1]

    return of, f"reading = {reading} minus reading = {base}, first = {start} to {end}"


def _later(change: tuple[BySeed, str], T: int) -> tuple[BySeed, str]:
    """The same without the first quarter of each short window, whose tokens see little."""
    of, rows = change
    begun = T // 4
    return lambda found: of(found[found["first"] % T >= begun]), f"{rows}, first mod T >= {begun}"


def length(records: CampaignRecords) -> Measurements:
    """A row a model: NLL within the training context, and how it changes beyond."""
    examined, found = Examined(records, "lengths"), Measurements()
    contexts = contexts_of(records)
    for model in examined.models:
        T = contexts[model]

        def within(rows: pd.DataFrame, T: int = T) -> float | None:
            return _span(rows, "whole", 0, T)

        means = {
            "length.within": examined.mean(model, within, "reading = whole, first < T", none=_SHORT)
        }
        for end in ENDS:
            change = _less("whole", "apart", end // 2 * T, end * T)
            means[f"length.{end}"] = examined.mean(model, *change, none=_SHORT)
            means[f"length.{end}.later"] = examined.mean(model, *_later(change, T), none=_SHORT)
        for reading in ("frozen", "removed"):
            change = _less(reading, "whole", ENDS[-1] // 2 * T, ENDS[-1] * T)
            # Of a model whose windows are long enough, only the correction can lack.
            none = "no layer of it has a count correction" if examined.seeds(*model) else _SHORT
            means[f"length.{reading}"] = examined.mean(model, *change, none=none)
        found.put_intervals("/".join(model), means)
    return found


def _times(contexts: int) -> str:
    return "T" if contexts == 1 else f"{contexts}T"


_NLL, _RISE = Number(3), Number(3, signed=True)


def _beyond(which: str) -> tuple[Column, ...]:
    spans = ((end, f"{_times(end // 2)} to\n{end}T") for end in ENDS)
    return tuple(value(title, f"length.{end}{which}", _RISE) for end, title in spans)


LENGTH = Table(
    label="beyond-length",
    number="B4",
    title="Longer than trained",
    summary="Validation NLL up to eight training contexts, and what the count correction does.",
    caption=(
        "Windows of up to eight training contexts T, each within one document. Positions, counts "
        "and states go on. By position beyond T: less the NLL of the same tokens in windows as "
        "long as trained, so that a positive difference is a loss; (b) leaves out the first "
        "quarter of each of these: its tokens see little there, and any history would help them. "
        "Count correction, from 4T to 8T: with log i kept at log T, and without it, less the whole "
        "reading."
    ),
    panels=(
        Panel(
            "(a) All tokens",
            (
                value("NLL\nto T", "length.within", _NLL),
                *_beyond(""),
                value("Count kept\nat T", "length.frozen", _RISE),
                value("Count\nleft out", "length.removed", _RISE),
            ),
            measured=True,
        ),
        Panel("(b) Later tokens of each short window", _beyond(".later"), measured=True),
    ),
    measure=length,
    stubs=STUBS,
    rows=(),
    extra_row=row_of,
    notes=(
        Note(OVER_SEEDS),
        Note(
            "Tokens differ between positions, so that NLL by position says little by itself: the "
            "differences are between readings of the same tokens. They say nothing of a model "
            "trained at that length. Without its count correction a layer is another one than was "
            "trained, within the context too."
        ),
    ),
)
