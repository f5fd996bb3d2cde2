"""Beyond the paper: Full Relation that goes on from a trained MHA model's weights.

Its control is MHA that goes on from them too, on the same tokens by the same schedule: only what
lies between the two is the operator's.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pandas as pd

from relation.pipeline.campaign import GOES_ON
from relation.variants import PAIRED
from report.values.cost import first_crossing, validation_looks
from report.values.frames import CampaignRecords
from report.values.layout import SCALE_ROWS, SCALES, Needs, Note, Number, Panel, Table, value
from report.values.measured import Measured, Measurements, absent, over_seeds, select

# What the gaps of these runs are called.
KIND = "converted run"
Mean = Callable[[Mapping[int, float], str], Measured]


def _by_seed(probes: pd.DataFrame, **keys: object) -> dict[int, pd.DataFrame]:
    """The looks at the runs that have these keys."""
    looks = validation_looks(probes, **keys)
    return {int(seed): rows[["tokens", "value"]] for seed, rows in looks.groupby("seed")}


def _behind(looks: pd.DataFrame, control: pd.DataFrame) -> pd.DataFrame:
    """How far a curve is above its control's, at the tokens that both have."""
    both = looks.merge(control, on="tokens", suffixes=("", "_control"))
    return both.assign(value=both["value"] - both["value_control"])[["tokens", "value"]]


def conversion(records: CampaignRecords) -> Measurements:
    """A row a scale."""
    found = Measurements()
    for scale in SCALES:
        _put_scale(found, records, scale)
    return found


def _until(
    curves: Mapping[int, pd.DataFrame], targets: Mapping[int, float], mean: Mean, what: str
) -> Measured:
    """Mean tokens until each seed's curve is at its target; `what` the target is, in words."""
    found = {
        s: first_crossing(targets[s], curves[s]).tokens for s in targets.keys() & curves.keys()
    }
    reached = {seed: tokens for seed, tokens in sorted(found.items()) if tokens is not None}
    if found and not reached:
        return Measured(status="not reached", reason=f"no run reaches {what}")
    tokens = mean(reached, "M tokens")
    if len(reached) < len(found):
        never = ", ".join(str(seed) for seed in sorted(found) if seed not in reached)
        tokens = replace(tokens, reason=f"seeds that never reach it: {never}")
    return tokens


def _put_scale(found: Measurements, records: CampaignRecords, scale: str) -> None:
    gone_on = select(records.converted_probes, scale=scale)
    paired = select(records.probes, scale=scale, variant=PAIRED)
    sources = tuple(
        dict.fromkeys(source for rows in (gone_on, paired) for source in rows["source"])
    )
    mha, full = (_by_seed(paired, variant=variant) for variant in PAIRED)
    control, converted = (_by_seed(gone_on, variant=GOES_ON[variant]) for variant in PAIRED)

    def mean(values: Mapping[int, float], unit: str = "nat/token") -> Measured:
        def missing() -> Measured:
            if len(select(records.missing, kind=KIND, scale=scale)):
                return absent(records, (KIND,), scale)
            return absent(records, ("run",), scale, PAIRED)

        planned = records.page["seeds"]
        return over_seeds(values, planned, sources, missing, unit, "validation NLL by tokens")

    every = {seed: _last(looks) for seed, looks in mha.items()}
    ends = {seed: every[seed] for seed in converted if seed in every}
    found.put(scale, {"mha": mean(ends)})
    starts = {s: converted[s]["value"].iloc[0] - end for s, end in ends.items()}
    found.put_with_interval(scale, "start", mean(starts))
    for column, of in (("converted", converted), ("nothing", full)):
        until = _until(of, ends, mean, "MHA’s final NLL")
        found.put_with_interval(scale, f"until.{column}", until)
    lasts = {s: _last(converted[s]) - end for s, end in ends.items()}
    found.put_with_interval(scale, "end", mean(lasts))
    trained = {s: converted[s]["tokens"].iloc[-1] for s in ends}
    found.put(scale, {"trained": mean(trained, "M tokens")})

    alone = {s: _last(control[s]) - every[s] for s in control if s in every}
    found.put_with_interval(scale, "end.control", mean(alone))
    behind = {s: _behind(converted[s], control[s]) for s in ends if s in control}
    left = {seed: _last(looks) for seed, looks in behind.items()}
    found.put_with_interval(scale, "behind", mean(left))
    level = _until(behind, dict.fromkeys(behind, 0.0), mean, "that of MHA trained on alike")
    found.put_with_interval(scale, "until.control", level)


def _last(looks: pd.DataFrame) -> float:
    return float(looks["value"].iloc[-1])


def _notes(cells: pd.DataFrame) -> Iterator[Note]:
    if not len(cells[(cells["status"] == "ok") & (cells["column"] == "start")]):
        return
    yield Note(
        "The converted run has further tokens and another schedule than MHA, so that a lower NLL "
        "at its end is no comparison of the operators. MHA trained on is: it goes on from the same "
        "weights, on the same tokens by the same schedule. A seed that never reaches a NLL has no "
        "number of tokens, so that the mean is over the others.",
        below=True,
    )


_NLL, _TOKENS = Number(4), Number(2)
CONVERSION = Table(
    label="beyond-conversion",
    number="B6",
    title="From attention to Relation",
    summary="Full Relation from MHA’s weights: its first loss, and tokens until MHA’s.",
    caption=(
        "Full Relation whose $W_1$, $W_2$, $W_I$, $W_O$ and all other matrices are those of a "
        "trained MHA model, with mixing angles of 0 and λ chosen on training windows for the "
        "lowest loss: validation NLL before the first update, and tokens until it is that of MHA "
        "at the end of its budget, beside Full Relation trained from nothing. MHA trained on goes "
        "on from the same weights, on the same tokens by the same schedule."
    ),
    panels=(
        Panel(
            "Converted runs",
            (
                value("MHA\nNLL", "mha", _NLL, "mha"),
                value("Start\n− MHA", "start", Number(4, signed=True), "full"),
                value("Tokens\nuntil MHA’s,\nconverted", "until.converted", _TOKENS, "full"),
                value("Tokens\nuntil MHA’s,\nfrom nothing", "until.nothing", _TOKENS, "full"),
                value("End\n− MHA", "end", Number(4, signed=True), "full"),
                value("Tokens\ntrained", "trained", _TOKENS, setting=True),
            ),
            rows=SCALE_ROWS,
            measured=True,
        ),
        Panel(
            "Beside MHA trained on",
            (
                value("MHA trained on,\nend − MHA", "end.control", Number(4, signed=True), "mha"),
                value("Converted, end\n− MHA trained on", "behind", Number(4, signed=True), "full"),
                value("Tokens until\nMHA trained on’s", "until.control", _TOKENS, "full"),
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
