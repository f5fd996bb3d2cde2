"""The time of a token against the context, a panel a batch."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from report.values.style import LINEAR, MATERIALISED, MHA, MUTED, RELATION, styled, svg_text

_LINES = {
    "mha": ("MHA", MHA),
    "full": ("Full Relation", RELATION),
    "linear": ("Linear Relation", LINEAR),
    "hybrid": ("Hybrid Relation", MATERIALISED),
    "llama": ("Llama, compiled", MUTED),
}


def decode_svg(rows: Sequence[Mapping]) -> str:
    """An SVG of milliseconds a token, from the rows of `relation.bench.decode` that have a time."""
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    with styled():
        figure = Figure(figsize=(2.2 * len(batches) + 0.6, 2.8))
        panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
        for batch, axes in zip(batches, panels, strict=True):
            for model, (name, colour) in _LINES.items():
                points = [
                    (row["context"], 1e3 * row["seconds"])
                    for row in rows
                    if (row["model"], row["batch"]) == (model, batch) and row["status"] == "PASS"
                ]
                if points:
                    label = name if batch == batches[0] else None
                    axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(f"batch {batch}")
            axes.set_xlabel("tokens read")
        panels[0].set_ylabel("ms a token")
        figure.legend(loc="outside upper center", ncols=len(_LINES))
        return svg_text(figure)
