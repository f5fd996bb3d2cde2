"""NLL, paired differences and token efficiency (Section 6.1, Appendices C, D, E)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from relation.config.readings import NO_OTHER_BACKEND, OTHER_BACKENDS
from report.compute.configurations import (
    backbone,
    data_and_vocab,
    model_number,
    tokens,
    worded_models,
)
from report.compute.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    over_seeds,
    select,
    worded,
)
from report.layout import SCALES, SEEDS

if TYPE_CHECKING:
    import pandas as pd

    from relation.records import CampaignRecords

ABLATIONS = ("exchange-only", "raw-x", "no-count", "no-givens", "single-head")
# Of which Table 3 has a column.
PRINTED_ABLATIONS = ("exchange-only", "raw-x", "no-count", "single-head")
ABLATION_SCALE = "10M"
HYBRID_SCALE = "30M"
_NLL_ROWS = "final_nll"
_CURVE_ROWS = "loss against tokens, smoothed as efficiency.window says"


class FinalNLL:
    """Final-validation NLL by scale, variant and seed, with its absences."""

    def __init__(self, records: CampaignRecords) -> None:
        self._records = records
        self.seeds: list[int] = [int(seed) for seed in records.page["seeds"]]
        finished = records.runs[records.runs["final_nll"].notna()]
        self._finished = dict(iter(finished.groupby(["scale", "variant"])))
        self._none = finished.iloc[:0]

    def _runs(self, scale: str, variant: str) -> pd.DataFrame:
        return self._finished.get((scale, variant), self._none)

    def by_seed(self, scale: str, variant: str) -> dict[int, float]:
        runs = self._runs(scale, variant)
        return {
            int(seed): float(nll) for seed, nll in zip(runs["seed"], runs["final_nll"], strict=True)
        }

    def sources(self, scale: str, *variants: str, seed: int | None = None) -> tuple[str, ...]:
        found: list[str] = []
        for variant in variants:
            runs = self._runs(scale, variant)
            found += (runs if seed is None else select(runs, seed=seed))["source"].tolist()
        return tuple(found)

    def one(self, scale: str, variant: str, seed: int) -> Measured:
        """NLL of one run, in nats a token."""
        nll = self.by_seed(scale, variant).get(seed)
        if nll is None:
            return absent(self._records, ("run",), scale, (variant,), seed)
        source = self.sources(scale, variant, seed=seed)
        return Measured(nll, unit="nat/token", n=1, sources=source, rows=_NLL_ROWS)

    def statistics(self, scale: str, variant: str) -> dict[str, Measured]:
        """Mean and standard deviation over the seeds of one variant."""
        return over_seeds(
            self.by_seed(scale, variant),
            self.seeds,
            self.sources(scale, variant),
            absent(self._records, ("run",), scale, (variant,)),
            rows=_NLL_ROWS,
        )

    def difference(self, scale: str, variant: str, base: str, seed: int | None = None) -> Measured:
        """Mean over the paired seeds of variant - base; with all seeds, the means' difference."""
        ours, theirs = self.by_seed(scale, variant), self.by_seed(scale, base)
        paired = [s for s in ours if s in theirs and seed in (None, s)]
        if not paired:
            return absent(self._records, ("run",), scale, (variant, base), seed)
        unpaired = sorted((set(ours) | set(theirs)) - set(paired)) if seed is None else []
        return Measured(
            sum(ours[s] - theirs[s] for s in paired) / len(paired),
            unit="nat/token",
            n=len(paired),
            by_seed={s: ours[s] - theirs[s] for s in paired},
            rows=_NLL_ROWS,
            reason=f"seeds without a pair: {', '.join(map(str, unpaired))}" if unpaired else "",
            sources=self.sources(scale, base, variant, seed=seed),
        )

    def all_seeds(self, scale: str, *variants: str) -> list[int]:
        """The paper's seeds, the campaign's, and any other that a record here carries."""
        recorded = {seed for variant in variants for seed in self.by_seed(scale, variant)}
        return list(dict.fromkeys([*SEEDS, *self.seeds, *sorted(recorded)]))

    def epochs(self, scale: str, *variants: str, seed: int | None = None) -> dict[str, Measured]:
        """How often the runs pass over their training windows, by the name of a column, if at all.

        Runs of one scale read alike; of those that do not, the most.
        """
        runs = [self._runs(scale, variant) for variant in variants]
        if seed is not None:
            runs = [select(of_variant, seed=seed) for of_variant in runs]
        passes = [float(count) for of_variant in runs for count in of_variant["epochs"].dropna()]
        if not passes:
            return {}
        sources = self.sources(scale, *variants, seed=seed)
        found = Measured(max(passes), unit="epochs", n=len(passes), sources=sources, rows="epochs")
        return {"epochs": found}


def _put(found: Measurements, row: str, column: str, values: dict[str, Measured]) -> None:
    found.update({(row, column, statistic): value for statistic, value in values.items()})


def put_with_interval(found: Measurements, row: str, column: str, value: Measured) -> None:
    """A mean over seeds with its 95% interval, where it has one."""
    found[row, column, "value"] = value
    if value.margin:
        for statistic, end in (("low", -value.margin), ("high", value.margin)):
            found[row, column, statistic] = replace(value, value=value.value + end, by_seed={})


def _note(found: Measurements, row: str, columns: dict[str, Measured]) -> None:
    """What is told below the table, in columns that it does not show."""
    found.update({(row, column, "value"): value for column, value in columns.items()})


def main_results(records: CampaignRecords) -> Measurements:
    """Table 2: configuration, mean NLL of the pair, their difference, token reduction."""
    nll = FinalNLL(records)
    found: Measurements = {}
    for scale in SCALES:
        for column, wording in (
            ("backbone", backbone),
            ("data", data_and_vocab),
            ("tokens", tokens),
        ):
            found[scale, column, "value"] = worded_models(records, scale, ("full", "mha"), wording)
        found[scale, "context", "value"] = model_number(records, scale, "full", "context", "tokens")
        _put(found, scale, "mha_nll", nll.statistics(scale, "mha"))
        _put(found, scale, "full_nll", nll.statistics(scale, "full"))
        put_with_interval(found, scale, "delta", nll.difference(scale, "full", "mha"))
        _put(found, scale, "token_reduction", _mean_reduction(records, scale))
        _note(found, scale, nll.epochs(scale, "mha", "full"))
        if len(select(records.efficiency, scale=scale)):
            sources = logs_beside(nll.sources(scale, "mha", "full"))
            found[scale, "window", "value"] = _window(records, sources)
    return found


def _mean_reduction(records: CampaignRecords, scale: str) -> dict[str, Measured]:
    rows = select(records.efficiency, scale=scale)
    reached = {
        int(seed): float(reduction)
        for seed, reduction in zip(rows["seed"], rows["reduction"], strict=True)
        if is_number(reduction)
    }
    if len(rows) and not reached:
        none = Measured(
            status="not reached",
            n=len(rows),
            reason=f"no seed of {len(rows)} reached the paired MHA run's final smoothed loss",
        )
    else:
        none = absent(records, ("run",), scale, ("mha", "full"))
    sources = logs_beside(FinalNLL(records).sources(scale, "mha", "full"))
    seeds = records.page["seeds"]
    return over_seeds(reached, seeds, sources, none, unit="%", rows=_CURVE_ROWS)


def paired_nll(records: CampaignRecords) -> Measurements:
    """Final validation NLL of every pair, and their means."""
    nll = FinalNLL(records)
    found: Measurements = {}
    for scale in SCALES:
        for seed in nll.all_seeds(scale, "mha", "full"):
            row = f"{scale}/{seed}"
            for variant in ("mha", "full"):
                found[row, variant, "value"] = nll.one(scale, variant, seed)
            found[row, "delta", "value"] = nll.difference(scale, "full", "mha", seed)
            _note(found, row, nll.epochs(scale, "mha", "full", seed=seed))
        for variant in ("mha", "full"):
            _put(found, f"{scale}/mean", variant, nll.statistics(scale, variant))
        put_with_interval(found, f"{scale}/mean", "delta", nll.difference(scale, "full", "mha"))
    return found


def token_efficiency(records: CampaignRecords) -> Measurements:
    """Target loss, crossing and token reduction of every pair (section B.4)."""
    nll = FinalNLL(records)
    found: Measurements = {}
    for scale in SCALES:
        recorded = select(records.efficiency, scale=scale)
        by_seed = {int(row["seed"]): row for row in recorded.to_dict("records")}
        for seed in dict.fromkeys([*SEEDS, *nll.seeds, *sorted(by_seed)]):
            sources = logs_beside(nll.sources(scale, "mha", "full", seed=seed))
            none = absent(records, ("run",), scale, ("mha", "full"), seed)
            for column, value in _crossing(by_seed.get(seed), none, sources).items():
                found[f"{scale}/{seed}", column, "value"] = value
            if seed in by_seed:
                found[f"{scale}/{seed}", "window", "value"] = _window(records, sources)
                for column, unit in (("own_reduction", "%"), ("end_gap", "nat/token")):
                    shown = Measured(by_seed[seed][column], unit=unit, n=1, sources=sources)
                    found[f"{scale}/{seed}", column, "value"] = shown
    return found


def _window(records: CampaignRecords, sources: tuple[str, ...]) -> Measured:
    """Over how much of the budget the loss is smoothed."""
    share = records.page["efficiency_window"]
    return Measured(share, unit="%", n=1, sources=sources, rows=_CURVE_ROWS)


def logs_beside(records: tuple[str, ...]) -> tuple[str, ...]:
    """The logs beside the records of runs."""
    return tuple(str(Path(record).with_name("log.parquet")) for record in records)


def _crossing(
    row: dict[str, object] | None, none: Measured, sources: tuple[str, ...]
) -> dict[str, Measured]:
    if row is None:
        return dict.fromkeys(("target", "crossing", "reduction"), none)
    behind = {"sources": sources, "rows": _CURVE_ROWS}
    found = {"target": Measured(float(row["target"]), unit="nat/token", n=1, **behind)}
    for column, field, unit in (
        ("crossing", "crossing_tokens", "M tokens"),
        ("reduction", "reduction", "%"),
    ):
        if is_number(row[field]):
            found[column] = Measured(float(row[field]), unit=unit, n=1, **behind)
        else:
            found[column] = Measured(
                status="not reached",
                reason="the Relation run's smoothed loss stayed above the target to its last token",
                **behind,
            )
    return found


def structural_ablations(records: CampaignRecords) -> Measurements:
    """Table 3: mean NLL of each ablation at 10M and its difference to Full Relation."""
    nll = FinalNLL(records)
    found: Measurements = {}
    for variant in ("full", *PRINTED_ABLATIONS):
        _put(found, "nll", variant, nll.statistics(ABLATION_SCALE, variant))
        if variant != "full":
            difference = nll.difference(ABLATION_SCALE, variant, "full")
            put_with_interval(found, "delta", variant, difference)
    _note(found, "nll", nll.epochs(ABLATION_SCALE, "full", *PRINTED_ABLATIONS))
    _put_other_backends(found, records)
    return found


def _put_other_backends(found: Measurements, records: CampaignRecords) -> None:
    """Which variants another backend computes than the others, in the row "setting"."""
    for reading in records.page["assumptions"]:
        if reading["name"] == OTHER_BACKENDS and reading["value"] != NO_OTHER_BACKEND:
            found["setting", "backends", "value"] = worded(reading["value"])


def ablation_seeds(records: CampaignRecords) -> Measurements:
    """NLL of every ablation run, their means, and the differences to Full Relation."""
    nll = FinalNLL(records)
    found: Measurements = {}
    for variant in ("full", *ABLATIONS):
        for seed in nll.all_seeds(ABLATION_SCALE, variant):
            found[variant, f"seed_{seed}", "value"] = nll.one(ABLATION_SCALE, variant, seed)
        _put(found, variant, "mean", nll.statistics(ABLATION_SCALE, variant))
        put_with_interval(found, variant, "delta", nll.difference(ABLATION_SCALE, variant, "full"))
        _note(found, variant, nll.epochs(ABLATION_SCALE, variant))
    _put_other_backends(found, records)
    return found


def hybrid_seeds(records: CampaignRecords) -> Measurements:
    """NLL of every Hybrid run and their mean (Appendix E.2)."""
    nll = FinalNLL(records)
    found: Measurements = {
        (str(seed), "nll", "value"): nll.one(HYBRID_SCALE, "hybrid", seed)
        for seed in nll.all_seeds(HYBRID_SCALE, "hybrid")
    }
    _put(found, "mean", "nll", nll.statistics(HYBRID_SCALE, "hybrid"))
    _note(found, "mean", nll.epochs(HYBRID_SCALE, "hybrid"))
    return found
