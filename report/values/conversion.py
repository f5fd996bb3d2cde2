"""Beyond the paper: Full Relation that goes on from a trained MHA model's weights."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from relation.variants import PAIRED
from report.values.efficiency import token_crossing
from report.values.frames import CampaignRecords
from report.values.layout import SCALE_ROWS, SCALES, Needs, Note, Number, Panel, Table, value
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    over_seeds,
    put,
    put_with_interval,
    select,
)

METRIC = "validation_nll"
# What the gaps of these runs are called.
KIND = "converted run"


def curves(probes: pd.DataFrame, scale: str) -> dict[int, pd.DataFrame]:
    """Validation NLL by tokens of the runs of one variant at a scale, by seed.

    probes: rows of PROBES, with `alike`; looks that another configuration took are left out.
    """
    looks = select(probes, scale=scale, metric=METRIC, alike=True)
    looks = looks[looks["value"].notna()].sort_values("tokens")
    return {int(seed): rows[["tokens", "value"]] for seed, rows in looks.groupby("seed")}


def tokens_until(target: float, looks: pd.DataFrame) -> float | None:
    """Tokens after which a curve first is at `target`, between looks by a line; None for never."""
    tokens, values = (looks[name].to_numpy(float) for name in ("tokens", "value"))
    return token_crossing(target, tokens, values, max(1, int(tokens[-1]))).tokens


def conversion(records: CampaignRecords) -> Measurements:
    """A row a scale."""
    found: Measurements = {}
    for scale in SCALES:
        _put_scale(found, records, scale, curves(records.converted_probes, scale))
    return found


def _put_scale(
    found: Measurements, records: CampaignRecords, scale: str, converted: dict[int, pd.DataFrame]
) -> None:
    mha, full = (curves(select(records.probes, variant=v), scale) for v in PAIRED)
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

    put(found, scale, {"mha": mean({seed: ends[seed] for seed in seeds})})
    starts = {s: converted[s]["value"].iloc[0] - ends[s] for s in seeds}
    put_with_interval(found, scale, "start", mean(starts))
    for column, of in (("converted", converted), ("nothing", full)):
        told = {s: tokens_until(ends[s], of[s]) for s in seeds if s in of}
        reached = {s: tokens for s, tokens in told.items() if tokens is not None}
        share = mean(reached, "M tokens")
        if told and not reached:
            share = Measured(status="not reached", reason="no run reaches MHA’s final NLL")
        elif len(reached) < len(told):
            never = ", ".join(str(seed) for seed in told if seed not in reached)
            share = replace(share, reason=f"seeds that never reach it: {never}")
        put_with_interval(found, scale, f"until.{column}", share)
    lasts = {s: converted[s]["value"].iloc[-1] - ends[s] for s in seeds}
    put_with_interval(found, scale, "end", mean(lasts))
    trained = {s: converted[s]["tokens"].iloc[-1] for s in seeds}
    put(found, scale, {"trained": mean(trained, "M tokens")})


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
    notes=lambda cells: list(_notes(cells)),
)
