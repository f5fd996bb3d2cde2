"""Where a training step's time goes: one stacked bar a model."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from report.values.style import HAIR, MUTED, styled, svg_text

_COLOUR = {
    "operator": "#D55E00",
    "projections": "#0072B2",
    "FFN": "#56B4E9",
    "norm": "#009E73",
    "RoPE and sums": "#7FC9B3",
    "casts": "#BFE4D9",
    "loss": "#CC79A7",
    "optimiser": "#E69F00",
    "clipping": "#F0E442",
    "unclassified": MUTED,
    "idle": HAIR,
}


def profile_svg(rows: Sequence[Mapping]) -> str:
    """An SVG of stacked bars: the rows of `relation.bench.profile`, milliseconds of an update."""
    steps = list(dict.fromkeys((row["scale"], row["variant"]) for row in rows))
    with styled():
        figure = Figure(figsize=(8.4, 1.4 + 0.5 * len(steps)))
        axes = figure.subplots()
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x")
        for place, step in enumerate(steps):
            left = 0.0
            for row in rows:
                if (row["scale"], row["variant"]) != step:
                    continue
                width = 1e3 * row["seconds"]
                label = row["part"] if place == 0 else None
                colour = _COLOUR[row["part"]]
                axes.barh(place, width, left=left, color=colour, label=label, height=0.6)
                left += width
        axes.set_yticks(range(len(steps)), [f"{scale} {variant}" for scale, variant in steps])
        axes.invert_yaxis()
        axes.set_xlabel("ms of an update of one micro-batch")
        figure.legend(loc="outside upper center", ncols=6)
        return svg_text(figure)
