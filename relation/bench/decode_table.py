"""The printed form of `relation.bench.decode`: tables, and who overtakes whom."""

from collections.abc import Iterator, Mapping, Sequence

from relation.bench.decode import AGREEMENT, FORWARD, PROMPT, TOKEN
from relation.bench.statistics import ratio_apart
from relation.bench.table import Section, cell, with_interval

_HEADER = ["model", "T", "ms a token", "tok/s", "state", ""]


def of_measure(rows: Sequence[Mapping], measure: str) -> list[Mapping]:
    """The rows of one measure."""
    return [row for row in rows if row["measure"] == measure]


def sections(rows: Sequence[Mapping]) -> list[Section]:
    """A table of tokens for each batch, models and contexts down; of prompts; of agreement."""
    tokens = of_measure(rows, TOKEN)
    found = [
        Section(
            f"Batch {batch}",
            _HEADER,
            [_line(row) for row in tokens if row["batch"] == batch and _told(row)],
        )
        for batch in dict.fromkeys(row["batch"] for row in tokens)
    ]
    if prompts := _prompts(rows):
        header = ["model", "T", "batch", "ms", "tok/s", "forward ms", "of its rate", ""]
        found.append(Section("Reading a prompt, beside training's forward", header, prompts))
    if compared := [_compared(row) for row in of_measure(rows, AGREEMENT)]:
        header = ["model", "tokens", "error", "forward's", "greedy differs", "forward's", ""]
        found.append(Section("Decoding a given text, beside the forward", header, compared))
    return found


def _prompts(rows: Sequence[Mapping]) -> list[list[str]]:
    """A line a prompt: its time, and its rate over that of training's forward."""
    place = ("model", "context", "batch")
    forwards = {tuple(row[k] for k in place): row for row in of_measure(rows, FORWARD)}
    lines = []
    for row in of_measure(rows, PROMPT):
        beside = forwards[tuple(row[k] for k in place)]
        rate = {}
        if row["samples"] and beside["samples"]:
            rate = ratio_apart(beside["samples"], row["samples"])
        lines.append(
            [
                *(row["model"], f"{row['context']:,}", f"{row['batch']}"),
                cell(row["seconds"], ".3f", 1e-3),
                cell(row["tokens_per_second"], ",.0f"),
                cell(beside["seconds"], ".3f", 1e-3),
                with_interval(rate, "ratio", ".2f"),
                _status(row) or _status(beside),
            ]
        )
    return lines


def _compared(row: Mapping) -> list[str]:
    counts = (f"{row[name]:,}" for name in ("greedy_differs", "forward_differs"))
    errors = (cell(row[name], ".2e") for name in ("logit_error", "forward_error"))
    return [row["model"], f"{row['compared_tokens']:,}", *errors, *counts, _status(row)]


def _status(row: Mapping) -> str:
    return "" if row["status"] == "PASS" else row["status"]


def _told(row: Mapping) -> bool:
    """What is unavailable is told once, below the tables."""
    return row["status"] != "UNAVAILABLE"


def _line(row: Mapping) -> list[str]:
    in_ms = {k: v and 1e3 * v for k, v in row.items() if k.startswith("seconds")}
    return [
        row["model"],
        f"{row['context']:,}",
        with_interval(in_ms, "seconds", ".3f"),
        cell(row["tokens_per_second"], ",.0f"),
        _size(row["state_bytes"]),
        _status(row),
    ]


def _size(count: int) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{count / unit:,.1f} {name}"


def overtaken(rows: Sequence[Mapping], model: str, base: str) -> Iterator[tuple[int, int | None]]:
    """Of each batch, the first context from which on a token of `model` is the faster one.

    Yields the batch and the context, None where the longest context that both have is slower.
    """
    for batch in dict.fromkeys(row["batch"] for row in rows):
        of = {
            name: {
                row["context"]: row["seconds"]
                for row in rows
                if (row["batch"], row["model"], row["status"]) == (batch, name, "PASS")
            }
            for name in (model, base)
        }
        both = sorted(of[model].keys() & of[base].keys())
        first = None
        for context in reversed(both):
            if of[model][context] >= of[base][context]:
                break
            first = context
        if both:
            yield batch, first


def notes(rows: Sequence[Mapping]) -> list[str]:
    """Where Linear and Hybrid Relation overtake MHA, and why cells are missing."""
    lines = []
    for model in ("linear", "hybrid"):
        for batch, context in overtaken(of_measure(rows, TOKEN), model, "mha"):
            when = "at no measured T" if context is None else f"from T = {context:,} on"
            lines.append(f"batch {batch}: {model} decodes faster than mha {when}")
    if of_measure(rows, PROMPT):
        lines.append(
            "prompt: logits of the last token alone; of its rate: the prompt's tokens per second "
            "over those of training's forward pass, loss included, compiled on a GPU"
        )
    if of_measure(rows, AGREEMENT):
        lines.append(
            "error: RMS of the logits off the forward in FP64, over its RMS, of decoding and of "
            "the forward in the same precision; greedy differs: tokens whose largest logit is not "
            "the forward's, and of the forward, not FP64's; WRONG beyond twice the forward's error"
        )
    missing = [row for row in rows if row["status"] != "PASS"]
    for reason in dict.fromkeys(row["reason"] for row in missing if not _told(row)):
        of = dict.fromkeys(row["model"] for row in missing if row["reason"] == reason)
        lines.append(f"{', '.join(of)}: {reason}")
    lines += [
        f"{row['model']} {'' if row['measure'] == TOKEN else row['measure'] + ' '}"
        f"T={row['context']:,} batch {row['batch']}: {row['status']}, {row['reason']}"
        for row in missing
        if _told(row)
    ]
    return lines
