"""The curves of every training run, a picture a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from relation.geometry import PAIRED
from relation.records import smoothed_loss
from report.compute.measured import select
from report.figures.drawing import mark_passes, quantity
from report.style import INK, MUTED, OPERATOR_COLOUR, OPERATOR_NAME, STYLE, svg_text

if TYPE_CHECKING:
    from relation.records import CampaignRecords


def draw_runs(records: CampaignRecords, out_dir: Path) -> list[Path]:
    """Draw figures/runs/<scale>-<variant>-<seed>.svg under ``out_dir`` for every run with a log.

    Left, the loss of each update with its trailing mean, that of the other run of its pair, and
    dotted the ends of its passes over the training windows; right, the learning rate, the
    gradient's norm and the throughput. Returns the files.
    """
    folder = Path(out_dir) / "figures" / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "svg"}):
        for (scale, variant, seed), log in records.logs.groupby(["scale", "variant", "seed"]):
            paths.append(folder / f"{scale}-{variant}-{seed}.svg")
            partner = pd.DataFrame()
            if variant in PAIRED:
                (other,) = (name for name in PAIRED if name != variant)
                partner = select(records.logs, scale=scale, variant=other, seed=seed)
            window = records.page["efficiency_window"]
            figure = _draw(str(variant), log, partner, window)
            run = select(records.runs, scale=scale, variant=variant, seed=seed)
            mark_passes(figure.axes[0], run)
            paths[-1].write_text(svg_text(figure), encoding="utf-8")
    return paths


def _draw(variant: str, log: pd.DataFrame, partner: pd.DataFrame, window: float) -> Figure:
    # Fixed margins: to find them anew for every run would take most of the time.
    figure = Figure(figsize=(8.4, 3.4), layout="none")
    figure.subplots_adjust(left=0.07, right=0.985, top=0.93, bottom=0.13, wspace=0.22, hspace=0.55)
    shape = figure.add_gridspec(3, 2, width_ratios=(1.9, 1))
    log = log.sort_values("update")
    colour = OPERATOR_COLOUR.get(variant, INK)
    loss = figure.add_subplot(shape[:, 0])
    loss.plot(log["tokens"], log["loss"], color=colour, alpha=0.3, linewidth=0.8)
    loss.plot(log["tokens"], _smooth(log, window), color=colour)
    if len(partner):
        (other,) = set(partner["variant"])
        partner = partner.sort_values("update")
        loss.plot(
            partner["tokens"],
            _smooth(partner, window),
            color=OPERATOR_COLOUR[other],
            linewidth=1,
            linestyle=(0, (4, 2)),
        )
        _name(loss, 0.82, f"{OPERATOR_NAME[other]}, same seed", OPERATOR_COLOUR[other])
    if variant in OPERATOR_NAME:
        _name(loss, 0.9, OPERATOR_NAME[variant], colour)
    loss.set_title("training loss (nat/token)")
    _tokens(loss)
    for row, (column, title) in enumerate(
        (
            ("learning_rate", "learning rate"),
            ("gradient_norm", "gradient norm before clipping"),
            ("tokens_per_second", "tokens/s"),
        )
    ):
        here = figure.add_subplot(shape[row, 1])
        here.plot(log["tokens"], log[column], color=MUTED, linewidth=1)
        here.set_title(title)
        here.set_ylim(bottom=0)
        here.yaxis.set_major_locator(MaxNLocator(3))
        if column == "tokens_per_second":
            here.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: quantity(rate)))
        if row == 2:
            _tokens(here)
        else:
            here.set_xlim(left=0)
            here.tick_params(labelbottom=False)
    return figure


def _smooth(log: pd.DataFrame, window: float):
    tokens = log["tokens"].to_numpy()
    return smoothed_loss(
        tokens, log["update_tokens"].to_numpy(), log["loss"].to_numpy(), window * tokens[-1]
    )


def _tokens(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.set_xlabel("training tokens")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: quantity(tokens)))


def _name(axes: Axes, height: float, text: str, colour: str) -> None:
    axes.text(0.97, height, text, transform=axes.transAxes, ha="right", color=colour)
