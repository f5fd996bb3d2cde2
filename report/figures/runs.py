"""The curves of every training run, a picture a run."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from relation.variants import PAIRED
from report.figures.drawing import counts, inside, mark_passes, smoothed, token_axis
from report.values.frames import CampaignRecords
from report.values.measured import select
from report.values.style import INK, MUTED, OPERATOR_COLOUR, OPERATOR_NAME, styled, svg_text

_BESIDE = {
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm before clipping",
    "tokens_per_second": "tokens/s",
}


def draw_runs(records: CampaignRecords, out_dir: Path) -> list[Path]:
    """Draw figures/runs/<scale>-<variant>-<seed>.svg under ``out_dir`` for every run with a log.

    Left, the loss of each update with its trailing mean, that of the other run of its pair, and
    dotted the ends of its passes over the training windows; right, the learning rate, the
    gradient's norm and the throughput. Returns the files.
    """
    folder = Path(out_dir) / "figures" / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with styled():
        for (scale, variant, seed), log in records.logs.groupby(["scale", "variant", "seed"]):
            paths.append(folder / f"{scale}-{variant}-{seed}.svg")
            figure = _draw(log.sort_values("update"), records)
            run = select(records.runs, scale=scale, variant=variant, seed=seed)
            mark_passes(figure.axes[0], run)
            paths[-1].write_text(svg_text(figure), encoding="utf-8")
    return paths


def _draw(log: pd.DataFrame, records: CampaignRecords) -> Figure:
    # Fixed margins: to find them anew for every run would take most of the time.
    figure = Figure(figsize=(8.4, 3.4), layout="none")
    figure.subplots_adjust(left=0.07, right=0.985, top=0.93, bottom=0.13, wspace=0.22, hspace=0.55)
    shape = figure.add_gridspec(3, 2, width_ratios=(1.9, 1))
    scale, variant, seed = log[["scale", "variant", "seed"]].iloc[0]
    colour = OPERATOR_COLOUR.get(variant, INK)
    loss = figure.add_subplot(shape[:, 0])
    loss.plot(log["tokens"], log["loss"], color=colour, alpha=0.3, linewidth=0.8)
    loss.plot(smoothed(log, records), color=colour)
    for other in PAIRED if variant in PAIRED else ():
        partner = select(records.logs, scale=scale, variant=other, seed=seed)
        if other != variant and len(partner):
            look = {"color": OPERATOR_COLOUR[other], "linewidth": 1, "linestyle": (0, (4, 2))}
            loss.plot(smoothed(partner, records), **look)
            inside(loss, 0.82, f"{OPERATOR_NAME[other]}, same seed", OPERATOR_COLOUR[other])
    if variant in OPERATOR_NAME:
        inside(loss, 0.9, OPERATOR_NAME[variant], colour)
    loss.set_title("training loss (nat/token)")
    token_axis(loss)
    loss.set_xlim(left=0)
    for row, (column, title) in enumerate(_BESIDE.items()):
        here = figure.add_subplot(shape[row, 1])
        here.plot(log["tokens"], log[column], color=MUTED, linewidth=1)
        here.set_title(title)
        here.set_ylim(bottom=0)
        here.yaxis.set_major_locator(MaxNLocator(3))
        # A run that diverges would have its power of ten where the title stands.
        here.ticklabel_format(axis="y", style="plain")
        here.set_xlim(left=0)
        here.tick_params(labelbottom=False)
    counts(here.yaxis, 3)
    here.tick_params(labelbottom=True)
    token_axis(here)
    return figure
