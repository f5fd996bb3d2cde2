"""Beyond the paper: multi-query associative recall by mixer and width (Arora et al. 2023)."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from relation.variants import VARIANTS
from report.values.frames import CampaignRecords
from report.values.layout import Note, Number, Row, Table, Words, block, settings, value
from report.values.measured import Measured, Measurements, absent, over_seeds, select, worded

# In the order of the rows and of the legends.
MIXER_NAME = {
    **{name: VARIANTS[name].title for name in ("mha", "full", "linear", "hybrid")},
    "gla": "GLA",
    "kda": "KDA",
}
PEERS = ("gla", "kda")
_WHOLE = ("width", "parameters", "seed", "length", "pairs", "distance", "queries", "right")
_TRAINING = ["mixer", "width", "learning_rate", "seed"]
_COLUMNS = ("rate", "parameters", "accuracy", "fewest", "most")


def counted(records: CampaignRecords) -> pd.DataFrame:
    """The rows of every training at a chosen rate: a row a task and octave of distance."""
    rows = select(records.recall, status="PASS")
    # Beside the row of a peer that did not run, which has no numbers, they were read as floats.
    return rows[rows["chosen"].astype(bool)].astype(dict.fromkeys(_WHOLE, int))


def accuracies(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Share of right answers of each training, `accuracy`, in all or by further columns.

    Over several tasks it is the mean of theirs: a task with many queries weighs no more.
    """
    keys = [*_TRAINING, *by]
    tasks = rows.groupby(list(dict.fromkeys([*keys, "length", "pairs"])))[["right", "queries"]]
    sums = tasks.sum()
    shares = (sums["right"] / sums["queries"]).astype(float)
    return shares.groupby(keys).mean().rename("accuracy").reset_index()


def associative_recall(records: CampaignRecords) -> Measurements:
    """A row a mixer and width: the chosen rate, and accuracies with intervals over the seeds."""
    found = Measurements()
    rows = counted(records)
    for mixer in MIXER_NAME:
        own = select(rows, mixer=mixer)
        for width in sorted(own["width"].unique()):
            _put_width(found, f"{mixer}/{width}", select(own, width=width))
        if own.empty and (none := _why_none(records, mixer)) is not None:
            found.put(mixer, dict.fromkeys(_COLUMNS, none))
    _put_setting(found, rows)
    return found


def _put_width(found: Measurements, row: str, own: pd.DataFrame) -> None:
    sources = tuple(own["source"].unique())
    few, many = own["pairs"].min(), own["pairs"].max()
    about = {
        "rate": worded(f"{own['learning_rate'].iloc[0]:.2g}", sources=sources),
        "parameters": Measured(float(own["parameters"].iloc[0]), unit="parameters", n=1),
    }
    found.put(row, about)
    for column, rows in (
        ("accuracy", own),
        ("fewest", select(own, pairs=few)),
        ("most", select(own, pairs=many)),
    ):
        by_seed = accuracies(rows).set_index("seed")["accuracy"].to_dict()
        mean = over_seeds(by_seed, by_seed, sources, Measured, "%", "right / queries")
        found.put_statistics(row, column, {"value": mean, **_cut(mean)})


def _cut(share: Measured) -> dict[str, Measured]:
    """The ends of a share's interval, no lower than 0 and no higher than 1."""
    ends = share.interval if share.margin else {}
    return {side: replace(end, value=min(max(end.value, 0.0), 1.0)) for side, end in ends.items()}


def _why_none(records: CampaignRecords, mixer: str) -> Measured | None:
    """Why a mixer has no accuracy; None where the campaign does not ask for it."""
    tried = select(records.recall, mixer=mixer)
    if len(tried):
        row = tried.iloc[0]
        return Measured(status="not run", reason=row["reason"], sources=(row["source"],))
    planned = select(records.missing, kind="recall", variant=mixer)
    return None if planned.empty else absent(records, ("recall",), variants=(mixer,))


def _put_setting(found: Measurements, rows: pd.DataFrame) -> None:
    if rows.empty:
        return
    tasks = rows[["length", "pairs"]].drop_duplicates().sort_values(["pairs", "length"])
    told = ", ".join(f"{pairs} in {length}" for length, pairs in tasks.itertuples(index=False))
    found.put(
        "setting",
        {
            "tasks": worded(told),
            "seeds": worded(", ".join(map(str, sorted(rows["seed"].unique())))),
            "device": worded("; ".join(rows["device"].unique())),
        },
    )


def _notes(cells: pd.DataFrame) -> Iterator[Note]:
    setting = settings(cells)
    if not setting:
        return
    yield Note(f"Pairs in tokens of a sequence: {setting['tasks']}. Seeds: {setting['seeds']}.")
    yield Note(
        "Brackets hold the 95% t interval over the seeds, cut at 0 and 100%; where all seeds have "
        "the same share there is none. It does not cover the choice of the "
        "rate, made on the first seed, which counts too; nor does the table establish what other "
        "depths, numbers of heads, budgets or vocabularies would do.",
        below=True,
    )
    if any(cells["row"].str.split("/").str[0].isin(PEERS)):
        yield Note(
            "GLA and KDA are flash-linear-attention’s layers in the same decoder, with a state as "
            "large as Linear Relation’s. KDA has its short convolutions, which Linear Relation has "
            "not.",
            below=True,
        )


def _row(key: str) -> Row:
    mixer, _, width = key.partition("/")
    return Row(key, (MIXER_NAME[mixer], width or "all"), group=mixer)


_SHARE = Number(1, "%")
RECALL = Table(
    label="beyond-recall",
    number="B1",
    title="Associative recall",
    summary="Answers to keys asked for again, by mixer and width.",
    caption=(
        "Multi-query associative recall as Arora et al. (2023) define it: a sequence begins with "
        "pairs of a key and its value, and each key is asked for once more, the next ones soon and "
        "some late. Two layers, one model for all lengths; the share of queries whose likeliest "
        "token is the value. A value guessed among the sequence’s own is right once in as many "
        "pairs. The learning rate is chosen on one seed, on sequences that do not count."
    ),
    panels=block(
        value("Rate", "rate", Words()),
        value("Parameters", "parameters", Number(grouped=True), setting=True),
        value("Right,\nmean of tasks", "accuracy", _SHARE),
        value("Fewest\npairs", "fewest", _SHARE),
        value("Most\npairs", "most", _SHARE),
    ),
    measure=associative_recall,
    stubs=("Mixer", "Width"),
    rows=(),
    extra_row=_row,
    notes=(_notes,),
)
