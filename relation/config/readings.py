"""Readings of the paper that are no key under `assumptions`: fixed here, or set elsewhere.

The report lists them with the assumptions, so that every choice stands in one place.
"""

from collections.abc import Mapping


def _words(value: object) -> str:
    """Nested values on one line: "name: key value, key value; name: ..."."""
    if isinstance(value, Mapping):
        nested = any(isinstance(item, Mapping | list) for item in value.values())
        join, mark = ("; ", ": ") if nested else (", ", " ")
        return join.join(f"{key}{mark}{_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " and ".join(f"({_words(item)})" for item in value)
    return str(value)


def settled_readings(campaign: Mapping) -> tuple[dict, ...]:
    """One mapping (name, value, question) a reading, with the campaign's own values."""
    scales, systems = campaign["scales"], campaign["systems"]

    def by_scale(read) -> str:
        return ", ".join(f"{name} {read(scale)}" for name, scale in scales.items())

    def batches(section: str) -> str:
        given = systems[section]["batches"]
        return ", ".join(f"{name} {micro}/{ga}" for name, (micro, ga) in given.items())

    readings = (
        (
            "scales.*.budget_tokens",
            by_scale(lambda s: f"{s['budget_tokens']:,}"),
            "Predicted tokens of a run; the paper's 100M budget follows from its 1% warm-up",
        ),
        (
            "scales.*.warmup_tokens",
            by_scale(lambda s: f"{s['warmup_tokens']:,}"),
            "Tokens of the linear warm-up; its rate counts the tokens after an update, the decay's "
            "those before it, so that no update has rate zero",
        ),
        (
            "scales.*.overrides",
            _words({n: s["overrides"] for n, s in scales.items() if "overrides" in s}) or "none",
            "What single variants change of their scale; Hybrid keeps the 30M rate, warm-up, data "
            "and context",
        ),
        (
            "precision",
            campaign["precision"],
            "FP32 master weights; under bf16 the model runs in BF16 autocast, and lambda, angles, "
            "A_log, dt_bias and every softmax and normaliser stay FP32",
        ),
        (
            "corpora.*.source",
            _words({name: corpus["source"] for name, corpus in campaign["corpora"].items()}),
            "Where documents come from, at which revision, and how validation is split off",
        ),
        (
            "fixed",
            "byte-level BPE, 256 bytes and one end-of-text token among the entries",
            "The tokenizer, trained on the training split",
        ),
        (
            "fixed",
            "windows of T predicted tokens with stride T, epoch e ordered by (seed, e)",
            "How documents, joined by end-of-text, are packed and ordered",
        ),
        (
            "fixed",
            "trailing mean, linear interpolation, no crossing is left out of the mean",
            "How matched-loss token efficiency is read; efficiency.window sets the window",
        ),
        (
            "fixed",
            "H = 1, d_h = d, no head pair and so no Givens mixing",
            "What the single-head ablation is",
        ),
        (
            "fixed",
            "I = X, the normalised mixer input; W_I does not exist",
            "What the Raw-X ablation is",
        ),
        ("fixed", "full head, base 1e4, rotate-half", "How RoPE pairs channels"),
        (
            "fixed",
            "a metric of every sequence's own flow matrix, then their mean",
            "How the metrics of a head pool the fixed sequences",
        ),
        (
            "fixed",
            "by its rows for flow, distance and sink, by its matrices for spectra",
            "By what heads and layers are count-weighted; rows without history count, as zero",
        ),
        (
            "systems.fixed",
            f"T = {systems['fixed']['context']}, micro/GA {batches('fixed')}",
            "Reference against FlashRelation; the reference is the materialised operator run "
            "eagerly inside the otherwise identical model",
        ),
        (
            "systems.linear_long",
            f"{systems['linear_long']['scale']} geometry, micro 1",
            "Geometry of the long-context sweep, which the paper does not print",
        ),
        (
            "fixed",
            "all tokens over the wall time from the first update, compilation included",
            "What the raw mean throughput is; the paper's number of updates is not printed",
        ),
    )
    return tuple({"name": n, "value": v, "question": q} for n, v, q in readings)
