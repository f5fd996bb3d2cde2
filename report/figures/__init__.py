"""The figures of a report: each a function from a setting's records to a picture.

A function returns None where its rows are not there, and the figure is then left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from report.data import FRAMES, Records
from report.figures import quality, structure, systems
from report.figures.style import save, styled


@dataclass(frozen=True)
class Drawing:
    """A figure: its heading, its caption, and what draws it."""

    name: str
    heading: str
    caption: str
    draw: Callable[[Records], Figure | None]


ALL = (
    Drawing(
        "loss-curves",
        "Training loss",
        "Training loss of every pair, trailing mean over 1% of the budget, after its first "
        "quarter. Dashed: MHA’s final smoothed loss; the circle is where Relation first reaches "
        "it. Dotted: the end of a pass over the corpus.",
        quality.loss_curves,
    ),
    Drawing(
        "validation-curves",
        "Validation NLL while training",
        "Above, MHA and Relation, thin by seed and thick the mean; below, the difference of each "
        "pair and its mean. After the first quarter of the budget.",
        quality.validation_curves,
    ),
    Drawing(
        "pairs",
        "Validation NLL by pair",
        "Final validation NLL; a line joins the two runs of a seed. Titles give Relation − MHA "
        "with its 95% interval over pairs.",
        quality.pairs,
    ),
    Drawing(
        "variants",
        "Variants beside Full Relation",
        "Final validation NLL less Full Relation’s of the same seed: bars are means, lines 95% "
        "intervals, points seeds, diamonds the paper’s values.",
        quality.variants,
    ),
    Drawing(
        "flow-by-layer",
        "Flow and effective rank by layer",
        "Self flow of Relation and diagonal flow of MHA, the effective rank of either flow, and "
        "the ratio of the ranks: means over seeds, points are seeds.",
        structure.flow_by_layer,
    ),
    Drawing(
        "flow-maps",
        "Flow maps",
        "Flow between blocks of tokens on the first diagnosed sequence, mean over heads. A row "
        "shows where its tokens draw from and sums to 1; colours are logarithmic from "
        "1/100,000 to 1.",
        structure.flow_maps,
    ),
    Drawing(
        "flow-spectra",
        "Spectra of the flow",
        "Singular values of the flow, means over sequences, heads and seeds: the first layer’s "
        "bold, the others thin.",
        structure.spectra,
    ),
    Drawing(
        "history-by-distance",
        "History by distance",
        "Historical flow beyond every distance, conditioned on history, and Relation’s less MHA’s. "
        "Dashed: the distances of the tables.",
        structure.history,
    ),
    Drawing(
        "sink-profile",
        "Flow on the first tokens",
        "Historical flow on the first k tokens, conditioned on history, and Relation’s less MHA’s.",
        structure.sink,
    ),
    Drawing(
        "split-by-position",
        "Self and Exchange by position",
        "Self flow of Relation and diagonal flow of MHA by position; the rest of Relation’s flow "
        "is Exchange.",
        structure.positions,
    ),
    Drawing(
        "throughput",
        "Throughput",
        "Tokens per second of whole training steps, medians over rounds: at one context of 1,024 "
        "(fixed) and at each scale’s own shapes (matched).",
        systems.throughput,
    ),
    Drawing(
        "scaling",
        "Cost against the context",
        "Batch 1: forward and backward of one layer’s operator, its decode state, and a token "
        "decoded by the whole model. Bands are 95% intervals.",
        systems.scaling,
    ),
    Drawing(
        "linear-long",
        "Linear Relation at long contexts",
        "Whole training steps, one window a micro-batch.",
        systems.linear_long,
    ),
    Drawing(
        "length",
        "Texts longer than trained",
        "Validation NLL by position in long windows, less that of the same tokens in windows as "
        "long as trained; means over seeds.",
        systems.lengths,
    ),
    Drawing(
        "recall",
        "Associative recall",
        "Share of queries answered by two layers of each mixer, at the learning rate chosen for "
        "each width; means over seeds.",
        systems.recall,
    ),
)


def draw(records: Records, folder: Path) -> list[Drawing]:
    """Draw every figure whose rows are there as folder/<name>.svg; returns those drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {name: getattr(records, name) for name in FRAMES}
    own = {n: f.assign(scale=f["own_scale"]) for n, f in frames.items() if "own_scale" in f}
    records, drawn = replace(records, **own), []
    for drawing in ALL:
        path = folder / f"{drawing.name}.svg"
        path.unlink(missing_ok=True)
        with styled():
            figure = drawing.draw(records)
            if figure is not None:
                save(figure, path)
                drawn.append(drawing)
    return drawn
