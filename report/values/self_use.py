"""Beyond the paper: Self flow by token, and what a layer's parts are worth to a trained model."""

import pandas as pd

from report.values.examined import NO_FLOW, OVER_SEEDS, STUBS, BySeed, Examined, average, row_of
from report.values.frames import CampaignRecords
from report.values.layout import Note, Number, Panel, Table, value
from report.values.measured import Measurements, select
from report.values.numbers import POINTS

# Parts of a layer as the record names them, and as a reader does.
PARTS = {"self": "Self", "exchange": "Exchange", "count": "Count\ncorrection", "mixing": "Mixing"}
# Tokens by name: how they are sorted, and which band they are.
TOKENS = {
    "first": ("occurrence", 0),
    "again": ("occurrence", 1),
    "frequent": ("frequency", 0),
    "rare": ("frequency", 3),
}


def rises(rows: pd.DataFrame) -> pd.DataFrame:
    """NLL less the whole model's, of a checkpoint's rows of SELF_USE, as `value`.

    A row a layer and the part, `group`, that it lacks.
    """
    nll = select(rows, metric="nll")
    whole = float(nll[nll["layer"].isna()]["value"].iloc[0])
    lacking = nll[nll["layer"].notna()]
    return lacking.assign(value=lacking["value"] - whole)


def _flow(group: str, band: int) -> tuple[BySeed, str]:
    """Mean Self flow of some tokens over layers, of one seed, and which rows that is."""

    def of(rows: pd.DataFrame) -> float | None:
        return average(select(rows, metric="self_flow", group=group, band=band))

    return of, f"metric = self_flow, group = {group}, band = {band}"


def _rise(part: str, first: bool) -> tuple[BySeed, str]:
    """Mean rise of NLL without a part in layer 0 or a later one, of one seed, and its rows."""

    def of(rows: pd.DataFrame) -> float | None:
        found = select(rises(rows), group=part)
        found = found[(found["layer"] == 0) == first]
        return None if found.empty else float(found["value"].mean())

    return of, f"metric = nll, group = {part}, layer {'=' if first else '>'} 0, less the whole's"


def self_use(records: CampaignRecords) -> Measurements:
    """A row a model: Self flow by kind of token, and the rise of NLL without each part."""
    examined, found = Examined(records, "self_use"), Measurements()
    for model in examined.models:
        flows = {
            name: examined.mean(model, *_flow(*tokens), unit="%", none=NO_FLOW)
            for name, tokens in TOKENS.items()
        }
        means = {f"self.{name}": mean for name, mean in flows.items()}
        means["self.again.less"] = flows["again"] - flows["first"]
        means["self.rare.less"] = flows["rare"] - flows["frequent"]
        for part in PARTS:
            for where, first in (("first", True), ("later", False)):
                none = "no such layer has this part"
                mean = examined.mean(model, *_rise(part, first), none=none)
                means[f"without.{part}.{where}"] = mean
        found.put_intervals("/".join(model), means)
    return found


_FLOW, _CHANGE = Number(2, "%"), Number(2, POINTS, signed=True)
_RISE = Number(3, signed=True)
SELF_USE = Table(
    label="beyond-self",
    number="B5",
    title="Where Self is used",
    summary="Self flow by token, and NLL where one layer lacks one of its parts.",
    caption=(
        "Windows of validation text as long as the training context. (a) Self flow, MHA’s diagonal "
        "flow, mean over the layers that have a flow: of tokens that stand in their window for the "
        "first time or again, and of the most and the least frequent quarter of the text. (b) Rise "
        "of NLL where one layer lacks a part: layer 0, and the mean over the later layers, one at "
        "a time."
    ),
    panels=(
        Panel(
            "(a) Self flow by token",
            (
                value("First\ntime", "self.first", _FLOW),
                value("Again", "self.again", _FLOW),
                value("less\nfirst", "self.again.less", _CHANGE),
                value("Frequent", "self.frequent", _FLOW),
                value("Rare", "self.rare", _FLOW),
                value("less\nfrequent", "self.rare.less", _CHANGE),
            ),
            measured=True,
        ),
        Panel(
            "(b) NLL without a part",
            tuple(
                value(f"{title},\n{said}", f"without.{part}.{where}", _RISE)
                for part, title in PARTS.items()
                for where, said in (("first", "L0"), ("later", "later"))
            ),
            measured=True,
        ),
    ),
    measure=self_use,
    stubs=STUBS,
    rows=(),
    extra_row=row_of,
    notes=(
        Note(OVER_SEEDS),
        Note(
            "Nothing is scaled up for a part that is taken away, and no model was trained without "
            "it: a rise says that the rest of the model relies on the part, not that the operator "
            "needs it. Tokens that come again are often the frequent ones too, and stand later."
        ),
    ),
)
