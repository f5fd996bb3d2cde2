"""A model card: what the records say of one run, its seeds, its claims and its text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relation.data.splits import END_OF_TEXT
from relation.spec import RunSpec
from relation.store.layouts import RUN
from relation.store.parquet import read_origin, read_parquet
from relation.variants import MHA, VARIANTS, model_config
from report.judge.claims import Judged, judge_claims
from report.render.runs import facts_of
from report.render.templating import environment
from report.values.frames import CampaignRecords
from report.values.measured import Measured
from report.values.numbers import DASH, significant
from report.values.quality import final_nll, nll_difference


def card(run: RunSpec, record: Path, records: CampaignRecords) -> str:
    """The card of a run, in Markdown with the metadata that Hugging Face's hub reads.

    Args:
        run: which one.
        record: its record.parquet.
        records: those of its campaign, for the seeds and the claims.
    """
    origin = read_origin(record)
    (row,) = read_parquet(record, RUN).to_pylist()
    data = origin["data_origin"]
    return (
        environment(autoescape=False)
        .get_template("card.md.j2")
        .render(
            title=f"{VARIANTS[run.variant].title}, {run.reading or run.scale}, seed {run.seed}",
            campaign=origin["campaign"],
            facts={name: _cell(value) for name, value in _facts(run, row, origin).items()},
            seeds=[] if run.reading else _seeds(run, records),
            claims=[] if run.reading else _claims(run, records),
            text={
                "title": data["title"],
                "source": ", ".join(f"{k} {v}" for k, v in facts_of(_source(data["source"]))),
                "sha256": data.get("corpus_sha256"),
                "vocabulary": f"{run.model['vocab_size']:,}",
                "end": END_OF_TEXT,
            },
        )
    )


def _source(source: Any) -> Mapping[str, Any]:
    return source if isinstance(source, Mapping) else {"source": source}


def _facts(run: RunSpec, row: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, str]:
    """Names and values of the run, as a reader sees them."""
    model = model_config(run.model)
    return {
        "Final validation NLL": f"{row['final_nll']:.6f} nat/token",
        "over": f"{row['validation_tokens']:,} tokens, in windows of {run.context:,}",
        "Entropy of their unigrams": f"{row['unigram_entropy']:.4f} nat/token",
        "Parameters": f"{row['parameters']:,}",
        "Layers": f"{model.layout}, of width {model.d_model:,} with {model.heads} heads",
        "Trained on": f"{row['trained_tokens']:,} tokens, {row['epochs']:.3g} passes",
        "Context in training": f"{run.context:,} tokens",
        "Precision": run.precision,
        "Device": origin["device"],
        "Seed": str(run.seed),
        "Versions": ", ".join(f"{name} {v}" for name, v in origin["versions"].items()),
        "Commit": origin["commit"],
        "Hash of the configuration": origin["config_hash"],
        "Hash of the order of windows": row["order_hash"],
        "Made": origin["created"],
    }


def _seeds(run: RunSpec, records: CampaignRecords) -> list[dict[str, str]]:
    """The mean over the campaign's seeds, and against MHA where its runs are there."""
    found = {"final validation NLL, nat/token": final_nll(records, run.scale, run.variant)}
    if set(model_config(run.model).layout) != {MHA}:
        against = nll_difference(records, run.scale, run.variant, "mha")
        found["difference from MHA of the same seed, nat/token"] = against
    return [_row(name, measured) for name, measured in found.items()]


def _row(quantity: str, measured: Measured) -> dict[str, str]:
    ends = [end.value for end in measured.interval.values()]
    reason = measured.reason or "one seed has no interval"
    return {
        "quantity": quantity,
        "value": significant(measured.value, 5),
        "interval": _interval(*ends) if ends else _cell(f"{DASH} ({reason})"),
        "seeds": ", ".join(map(str, measured.by_seed)) or DASH,
    }


def _claims(run: RunSpec, records: CampaignRecords) -> list[dict[str, Any]]:
    """The claims that have evidence of the run's scale or variant, and that evidence."""
    title = VARIANTS[run.variant].title
    found = []
    for judged in judge_claims(records):
        rows = [e for e in judged.evidence if e.label == title or e.label.split()[0] == run.scale]
        if rows:
            found.append(_claim(judged, rows))
    return found


def _claim(judged: Judged, rows: list) -> dict[str, Any]:
    open_ = judged.not_established
    return {
        "number": judged.claim.number,
        "text": judged.claim.text,
        "verdict": judged.verdict.capitalize() + ".",
        "reason": f" {judged.reason}." if judged.reason else "",
        "not_established": f" Not established: {open_}." if open_ else "",
        "evidence": [
            {
                "label": row.label,
                "quantity": _cell(row.quantity),
                "paper": significant(row.paper),
                "ours": significant(row.ours),
                "interval": _interval(row.low, row.high),
                "unit": _cell(row.unit),
                "note": _cell(row.note),
            }
            for row in rows
        ],
    }


def _interval(low: float | None, high: float | None) -> str:
    return DASH if low is None or high is None else f"{significant(low)} to {significant(high)}"


def _cell(text: str) -> str:
    """Text that breaks no table."""
    return str(text).replace("|", "\\|").replace("\n", " ")
