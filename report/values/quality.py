"""NLL, paired differences, token efficiency: Tables 2, 11 and 12 (Appendix C)."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from relation.spec import RunSpec
from relation.variants import PAIRED
from report.values.architecture import backbone, data_and_vocab, model_number, tokens, worded_models
from report.values.frames import CampaignRecords
from report.values.further import FURTHER_PANEL, further_notes, further_pairs
from report.values.layout import (
    SCALES,
    SEEDS,
    Needs,
    Note,
    Number,
    Panel,
    Row,
    Table,
    Words,
    block,
    shown,
    value,
)
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    logs_beside,
    over_seeds,
    select,
)
from report.values.numbers import MINUS

PAPER_WINDOW = 1.0  # % of the budget (Appendix B.4)
_NLL_ROWS = "final_nll"
_CURVE_ROWS = "loss against tokens, smoothed as efficiency.window says"


def _runs(
    records: CampaignRecords, scale: str, *variants: str, seed: int | None = None
) -> pd.DataFrame:
    """The finished runs of some variants, in their order."""
    keys = {"scale": scale} if seed is None else {"scale": scale, "seed": seed}
    found = select(records.runs[records.runs["final_nll"].notna()], **keys)
    return pd.concat([select(found, variant=variant) for variant in variants])


def _sources(records: CampaignRecords, scale: str, seed: int | None = None) -> tuple[str, ...]:
    """The records of a scale's pairs."""
    return tuple(_runs(records, scale, *PAIRED, seed=seed)["source"])


def final_nll(
    records: CampaignRecords, scale: str, variant: str, seed: int | None = None
) -> Measured:
    """Final validation NLL in nats a token: the mean over the seeds, or that of one seed."""
    runs = _runs(records, scale, variant, seed=seed)
    return over_seeds(
        dict(zip(runs["seed"], runs["final_nll"], strict=True)),
        records.page["seeds"] if seed is None else (),
        tuple(runs["source"]),
        lambda: absent(records, ("run",), scale, (variant,), seed),
        rows=_NLL_ROWS,
    )


def nll_difference(
    records: CampaignRecords, scale: str, variant: str, base: str, seed: int | None = None
) -> Measured:
    """The mean over the paired seeds of variant - base, or the difference of one seed."""
    terms = [final_nll(records, scale, name, seed) for name in (variant, base)]
    found = terms[0] - terms[1]
    if found.value is None:
        return absent(records, ("run",), scale, (variant, base), seed)
    unpaired = sorted(terms[0].by_seed.keys() ^ terms[1].by_seed.keys())
    reason = f"seeds without a pair: {', '.join(map(str, unpaired))}" if unpaired else ""
    return replace(found, reason=reason)


def all_seeds(records: CampaignRecords, scale: str, *variants: str) -> list[int]:
    """The paper's seeds, the campaign's, and any other that a record here carries."""
    recorded = sorted(int(seed) for seed in _runs(records, scale, *variants)["seed"].unique())
    return list(dict.fromkeys([*SEEDS, *records.page["seeds"], *recorded]))


def epochs(
    records: CampaignRecords, scale: str, *variants: str, seed: int | None = None
) -> dict[str, Measured]:
    """How often the runs pass over their training windows, under the name of its column, if known.

    Runs of one scale read alike; of those that do not, the most.
    """
    runs = _runs(records, scale, *variants, seed=seed)
    passes = runs["epochs"].dropna()
    if passes.empty:
        return {}
    found = Measured(
        float(passes.max()),
        unit="epochs",
        n=len(passes),
        sources=tuple(runs["source"]),
        rows="epochs",
    )
    return {"epochs": found}


def _window(records: CampaignRecords, sources: tuple[str, ...]) -> Measured:
    """Over how much of the budget the loss is smoothed."""
    share = records.page["efficiency_window"]
    return Measured(share, unit="%", n=1, sources=sources, rows=_CURVE_ROWS)


def main_results(records: CampaignRecords) -> Measurements:
    """Table 2: configuration, mean NLL of the pair, their difference, token reduction."""
    found = Measurements()
    for scale in SCALES:
        wordings = {"backbone": backbone, "data": data_and_vocab, "tokens": tokens}
        for column, wording in wordings.items():
            found[scale, column, "value"] = worded_models(records, scale, ("full", "mha"), wording)
        found[scale, "context", "value"] = model_number(records, scale, "full", "context", "tokens")
        for variant in PAIRED:
            found.put_mean(scale, f"{variant}_nll", final_nll(records, scale, variant))
        found.put_with_interval(scale, "delta", nll_difference(records, scale, "full", "mha"))
        found.put_mean(scale, "token_reduction", mean_reduction(records, scale))
        found.put(scale, epochs(records, scale, *PAIRED))
        if len(select(records.efficiency, scale=scale)):
            sources = logs_beside(_sources(records, scale))
            found[scale, "window", "value"] = _window(records, sources)
    return found


def mean_reduction(records: CampaignRecords, scale: str) -> Measured:
    """Tokens spared to MHA's final smoothed loss: the mean share over pairs that reach it."""
    rows = select(records.efficiency, scale=scale)
    reached = rows[rows["reduction"].map(is_number).astype(bool)]

    def none() -> Measured:
        if rows.empty:
            return absent(records, ("run",), scale, PAIRED)
        reason = f"no seed of {len(rows)} reached the paired MHA run's final smoothed loss"
        return Measured(status="not reached", n=len(rows), reason=reason)

    return over_seeds(
        dict(zip(reached["seed"], reached["reduction"], strict=True)),
        records.page["seeds"],
        logs_beside(_sources(records, scale)),
        none,
        unit="%",
        rows=_CURVE_ROWS,
    )


def paired_nll(records: CampaignRecords) -> Measurements:
    """Table 11: final validation NLL of every pair, their means, and the further pairs."""
    found = Measurements()
    for scale in SCALES:
        for seed in all_seeds(records, scale, *PAIRED):
            row = f"{scale}/{seed}"
            found.put(row, {v: final_nll(records, scale, v, seed) for v in PAIRED})
            found.put(row, {"delta": nll_difference(records, scale, "full", "mha", seed)})
            found.put(row, epochs(records, scale, *PAIRED, seed=seed))
        mean = f"{scale}/mean"
        for variant in PAIRED:
            found.put_mean(mean, variant, final_nll(records, scale, variant))
        found.put_with_interval(mean, "delta", nll_difference(records, scale, "full", "mha"))
    found.update(further_pairs(records))
    return found


def token_efficiency(records: CampaignRecords) -> Measurements:
    """Table 12: target loss, crossing and token reduction of every pair (section B.4)."""
    found = Measurements()
    for scale in SCALES:
        recorded = select(records.efficiency, scale=scale)
        by_seed = {int(row["seed"]): row for row in recorded.to_dict("records")}
        for seed in dict.fromkeys([*SEEDS, *records.page["seeds"], *sorted(by_seed)]):
            row = f"{scale}/{seed}"
            sources = logs_beside(_sources(records, scale, seed))
            if seed in by_seed:
                found.put(row, _crossing(by_seed[seed], sources))
                found.put(row, {"window": _window(records, sources)})
            else:
                none = absent(records, ("run",), scale, PAIRED, seed)
                found.put(row, dict.fromkeys(("target", "crossing", "reduction"), none))
    return found


def _crossing(row: dict[str, object], sources: tuple[str, ...]) -> dict[str, Measured]:
    behind = {"sources": sources, "rows": _CURVE_ROWS}
    never = Measured(
        status="not reached",
        reason="the Relation run's smoothed loss stayed above the target to its last token",
        **behind,
    )
    found = {
        "target": Measured(float(row["target"]), unit="nat/token", n=1, **behind),
        "own_reduction": Measured(row["own_reduction"], unit="%", n=1, sources=sources),
        "end_gap": Measured(row["end_gap"], unit="nat/token", n=1, sources=sources),
    }
    for column, field, unit in (
        ("crossing", "crossing_tokens", "M tokens"),
        ("reduction", "reduction", "%"),
    ):
        reached = is_number(row[field])
        found[column] = Measured(float(row[field]), unit=unit, n=1, **behind) if reached else never
    return found


ROUNDED = Number(4)
FULL_PRECISION = Number(6)
# The paper prints six decimals of some; a 95% interval over seeds has no more than four.
DELTA = Number(4, signed=True, own=True)
MEAN_ROW = "Mean ± SD"


def _window_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """Over what the loss is smoothed, as the tokens of a crossing depend on it."""
    for window in dict.fromkeys(share for _, share in shown(cells, "window")):
        theirs = "as in the paper" if window == PAPER_WINDOW else f"{PAPER_WINDOW:g}% in the paper"
        yield Note(
            "The training loss is smoothed by a trailing mean over "
            f"{window:g}% of the budget, {theirs}."
        )


def _by_scale(cells: pd.DataFrame, column: str) -> dict[str, list[float]]:
    """The values of a column by scale; those of a row without a scale under ""."""
    found: dict[str, list[float]] = {}
    for row, number in shown(cells, column):
        scale = row.split("/")[0]
        found.setdefault(scale if scale in SCALES else "", []).append(number)
    return found


def _control_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """What the measure gives MHA against itself, and which Relation runs end above the target."""
    gaps = _by_scale(cells, "end_gap")
    told = []
    for scale, own in _by_scale(cells, "own_reduction").items():
        early = ", ".join(f"{share:.2f}" for share in own)
        ends = ", ".join(f"{gap:+.4f}".replace("-", MINUS) for gap in gaps.get(scale, ()))
        told.append(f"{scale}: {early}% and {ends} nat/token")
    if told:
        yield Note(
            "A first crossing comes early by the noise of the curves: seed by seed, how early each "
            "MHA run first reaches its own final loss, and how far Relation’s final smoothed loss "
            f"lies above it. {'; '.join(told)}."
        )


def epoch_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """How often the runs saw their corpus, scale by scale where the table has several."""
    told = [
        f"{scale} ".lstrip() + " to ".join(dict.fromkeys(f"{n:.3g}" for n in (min(of), max(of))))
        for scale, of in _by_scale(cells, "epochs").items()
    ]
    if told:
        yield Note(f"Passes over the training windows: {', '.join(told)}.")


def _seed_row(key: str) -> Row:
    scale, seed = key.split("/")
    return Row(key, (scale, seed), group=scale)


def _of_pairs(run: RunSpec) -> bool:
    return run.variant in PAIRED


MAIN_RESULTS = Table(
    label="main-results",
    number="2",
    title="Main validation results",
    summary="Configurations and mean validation NLL of the pairs, and the tokens Relation spares.",
    caption=(
        "Final-validation NLL of the paired MHA and Full Relation models, mean ± sample standard "
        "deviation over seeds. Backbone reads layers / $d_{model}$ / heads × $d_h$ / $d_{ff}$. "
        "Token reduction is the share of the budget that Relation spares to reach the paired MHA "
        "run’s final smoothed training loss, over the seeds that reached it. "
        "Δ is the mean paired difference, with its 95% interval over seeds."
    ),
    panels=block(
        value("Backbone", "backbone", Words("geometry"), setting=True),
        value("Data/Vocab", "data", Words(), setting=True),
        value("Ctx", "context", Number(), setting=True),
        value("Tokens", "tokens", Words(), setting=True),
        value("MHA NLL ↓", "mha_nll", ROUNDED, "mha"),
        value("Relation NLL ↓", "full_nll", ROUNDED, "full"),
        value("Δ", "delta", DELTA),
        value("Token\nreduction ↑", "token_reduction", Number(1, "%", count=True)),
    ),
    measure=main_results,
    needs=Needs(_of_pairs),
    notes=(_window_notes, epoch_notes),
)

PAIRED_NLL = Table(
    label="app-nll",
    number="11",
    title="Final validation NLL by seed",
    summary="Every pair, its difference, and the means.",
    caption=(
        "Final validation NLL of every pair, in nats per token, and the mean difference with its "
        "95% interval over seeds."
    ),
    stubs=("Scale", "Seed"),
    rows=tuple(
        Row(f"{scale}/{seed}", (scale, label), group=scale)
        for scale in SCALES
        for seed, label in (*((seed, str(seed)) for seed in SEEDS), ("mean", MEAN_ROW))
    ),
    panels=(
        Panel(
            "(a) Pairs of the matrix",
            (
                value("MHA NLL", "mha", FULL_PRECISION, "mha"),
                value("Full Relation NLL", "full", FULL_PRECISION, "full"),
                value("Full−MHA", "delta", DELTA),
            ),
        ),
        FURTHER_PANEL,
    ),
    measure=paired_nll,
    needs=Needs(_of_pairs, further=True),
    notes=(epoch_notes, further_notes),
    extra_row=_seed_row,
)

TOKEN_EFFICIENCY = Table(
    label="app-token-efficiency",
    number="12",
    title="Token efficiency by seed",
    summary="Where each Relation run meets its MHA run’s final training loss.",
    caption=(
        "Tokens at which each Relation run first reaches the paired MHA run’s final smoothed "
        "training loss, and the share of the budget spared."
    ),
    stubs=("Scale", "Seed"),
    rows=tuple(
        Row(f"{scale}/{seed}", (scale, str(seed)), group=scale)
        for scale in SCALES
        for seed in SEEDS
    ),
    panels=block(
        value("MHA target", "target", FULL_PRECISION, "mha"),
        value("Relation crossing\ntokens", "crossing", Number(2, significant=4), "full"),
        value("Token reduction", "reduction", Number(2, "%")),
    ),
    measure=token_efficiency,
    needs=Needs(_of_pairs),
    notes=(_window_notes, _control_notes),
    extra_row=_seed_row,
)
