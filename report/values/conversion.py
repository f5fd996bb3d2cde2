"""Beyond the paper: Full Relation that goes on from a trained MHA model's weights."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from relation.variants import PAIRED
from report.values.cost import first_crossing, validation_looks
from report.values.frames import CampaignRecords
from report.values.layout import SCALE_ROWS, SCALES, Needs, Note, Number, Panel, Table, value
from report.values.measured import Measured, Measurements, absent, over_seeds, select

# What the gaps of these runs are called.
KIND = "converted run"


def _by_seed(probes: pd.DataFrame, **keys: object) -> dict[int, pd.DataFrame]:
    """The looks at the runs that have these keys."""
    return {int(seed): rows for seed, rows in validation_looks(probes, **keys).groupby("seed")}


def conversion(records: CampaignRecords) -> Measurements:
    """A row a scale."""
    found = Measurements()
    for scale in SCALES:
        _put_scale(found, records, scale)
    return found


def _put_scale(found: Measurements, records: CampaignRecords, scale: str) -> None:
    converted = _by_seed(records.converted_probes, scale=scale)
    mha, full = (_by_seed(records.probes, scale=scale, variant=variant) for variant in PAIRED)
    ends = {seed: float(looks["value"].iloc[-1]) for seed, looks in mha.items()}
    seeds = [seed for seed in converted if seed in ends]
    behind = (
        select(records.converted_probes, scale=scale),
        select(records.probes, scale=scale, variant=PAIRED),
    )
    sources = tuple(dict.fromkeys(source for rows in behind for source in rows["source"]))

    def mean(values: dict[int, float], unit: str = "nat/token") -> Measured:
        def missing() -> Measured:
            return absent(records, (KIND, "run"), scale)

        planned = records.page["seeds"]
        return over_seeds(values, planned, sources, missing, unit, "validation NLL by tokens")

    found.put(scale, {"mha": mean({seed: ends[seed] for seed in seeds})})
    starts = {s: converted[s]["value"].iloc[0] - ends[s] for s in seeds}
    found.put_with_interval(scale, "start", mean(starts))
    for column, of in (("converted", converted), ("nothing", full)):
        told = {s: first_crossing(ends[s], of[s]).tokens for s in seeds if s in of}
        reached = {s: tokens for s, tokens in told.items() if tokens is not None}
        share = mean(reached, "M tokens")
        if told and not reached:
            share = Measured(status="not reached", reason="no run reaches MHA’s final NLL")
        elif len(reached) < len(told):
            never = ", ".join(str(seed) for seed in told if seed not in reached)
            share = replace(share, reason=f"seeds that never reach it: {never}")
        found.put_with_interval(scale, f"until.{column}", share)
    lasts = {s: converted[s]["value"].iloc[-1] - ends[s] for s in seeds}
    found.put_with_interval(scale, "end", mean(lasts))
    trained = {s: converted[s]["tokens"].iloc[-1] for s in seeds}
    found.put(scale, {"trained": mean(trained, "M tokens")})


def _notes(cells: pd.DataFrame) -> Iterator[Note]:
    if not len(cells[(cells["status"] == "ok") & (cells["column"] == "start")]):
        return
    yield Note(
        "The converted run has further tokens and another schedule than MHA: a lower NLL at its "
        "end is no comparison of the operators. A seed that never reaches MHA’s NLL has no number "
        "of tokens, so that the mean is over the others.",
        below=True,
    )


_NLL, _TOKENS = Number(4), Number(2)
CONVERSION = Table(
    label="beyond-conversion",
    number="B6",
    title="From attention to Relation",
    summary="Full Relation from MHA’s weights: its first loss, and tokens until MHA’s.",
    caption=(
        "Full Relation whose W_1, W_2, W_I, W_O and all other matrices are those of a trained MHA "
        "model, with mixing angles of 0 and λ chosen on training windows for the lowest loss: "
        "validation NLL before the first update, and millions of tokens until it is that of MHA at "
        "the end of its budget, beside Full Relation trained from nothing."
    ),
    panels=(
        Panel(
            "Converted runs",
            (
                value("MHA\nNLL", "mha", _NLL, "mha"),
                value("Start\n− MHA", "start", Number(4, signed=True), "full"),
                value("M tokens\nuntil MHA’s,\nconverted", "until.converted", _TOKENS, "full"),
                value("M tokens\nuntil MHA’s,\nfrom nothing", "until.nothing", _TOKENS, "full"),
                value("End\n− MHA", "end", Number(4, signed=True), "full"),
                value("M tokens\ntrained", "trained", _TOKENS, setting=True),
            ),
            rows=SCALE_ROWS,
            measured=True,
        ),
    ),
    measure=conversion,
    needs=Needs(lambda run: run.variant in PAIRED),
    rows=(),
    notes=(_notes,),
)
