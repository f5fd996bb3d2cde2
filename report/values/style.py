"""One look for all figures, the same type and colours as the pages."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from matplotlib.figure import Figure

MHA = "#0072B2"
RELATION = "#D55E00"
# Okabe and Ito's further colours, for operators outside the pair.
LINEAR = "#009E73"
MATERIALISED = "#CC79A7"
# The two residual scales of the readings: plain on light and dark, far from the operators' colours.
UNSCALED = "#1b9e8f"
SCALED = "#8c6bc8"
INK = "#1b1c1e"
MUTED = "#62656a"
HAIR = "#d9d9d4"

# Verdicts differ in sign and in lightness too; none is near the two operators' colours.
AGREES = "#1f7a4d"
PARTLY = "#8a6100"
DIFFERS = "#a3126f"

OPERATOR_COLOUR = {
    "mha": MHA,
    "full": RELATION,
    "full-flash": RELATION,
    "full-reference": MATERIALISED,
    "linear": LINEAR,
}
OPERATOR_NAME = {
    "mha": "MHA",
    "full": "Relation",
    "full-flash": "FlashRelation",
    "full-reference": "Full, materialised",
    "linear": "Linear Relation",
}

# Browsers set the text, so that it follows the page's type; DejaVu Sans, which ships with
# matplotlib and runs wider, only reserves the room. A fixed salt keeps the ids from changing.
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "relation",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    # With a height of its own a title needs no measure of the tick labels beside it.
    "axes.titley": 1.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": HAIR,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
}

# A font is looked up when a figure is written, so one drawing serves page and print. Print's is
# narrower: it fits into the page's layout, but for titles of several lines, which it sets higher.
_PRINT = {"font.sans-serif": ["STIXGeneral"], "pdf.fonttype": 42}

PAGE_TYPE = (
    'Inter, -apple-system, "Segoe UI", "Helvetica Neue", "Liberation Sans", "Noto Sans", '
    "system-ui, sans-serif"
)

# The three neutral colours turn over with the reader's scheme, and MHA's blue is too dark for words
# on dark; a figure is an image of its own, so the page's style sheet does not reach it.
MHA_ON_DARK = "#4aa3df"
_DARK = {INK: "#e4e4e0", MUTED: "#9da0a6", HAIR: "#35373c", MHA.lower(): MHA_ON_DARK}


def styled(**more: Any) -> AbstractContextManager[None]:
    """The project's look, with ``more`` settings of matplotlib, for figures drawn and written."""
    import matplotlib

    return matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "svg", **more})


def save(figure: Figure, path: Path, printed: bool = True) -> None:
    """Write a figure as SVG for the pages to ``path``, and beside it, where printed, as PDF."""
    from matplotlib import rc_context

    path.write_text(svg_text(figure), encoding="utf-8")
    if not printed:
        return
    titles = (axes.get_title(where) for axes in figure.axes for where in ("left", "center"))
    if not any("\n" in title for title in titles):
        _lay_out_no_more(figure)
    with rc_context(_PRINT), open(path.with_suffix(".pdf"), "wb") as file:
        _write(figure, file, "pdf", {"CreationDate": None, "Creator": None})


def svg_text(figure: Figure) -> str:
    """A figure as SVG for the pages; the same figure gives the same bytes."""
    buffer = io.StringIO()
    _write(figure, buffer, "svg", {"Date": None, "Creator": None})
    return adapt(buffer.getvalue())


def _write(figure: Figure, file: IO, form: str, metadata: dict[str, None]) -> None:
    """Lay a figure out, then draw it: ``savefig`` alone would draw all of it for the layout too."""
    from matplotlib.backends.registry import backend_registry

    engine = figure.get_layout_engine()
    if engine is not None:
        # The canvas knows how wide a text is in this form.
        backend_registry.load_backend_module(form).FigureCanvas(figure)
        engine.execute(figure)
        _lay_out_no_more(figure)
    figure.savefig(file, format=form, metadata=metadata)
    figure.set_layout_engine(engine)


def _lay_out_no_more(figure: Figure) -> None:
    from matplotlib import rc_context

    with rc_context({"figure.constrained_layout.use": False}):  # else None is that
        figure.set_layout_engine(None)


def adapt(svg: str) -> str:
    """Give an SVG the page's type and a dark scheme."""
    rules = [f"text {{ font-family: {PAGE_TYPE} !important; }}"]
    dark = [
        f'[style*="{kind}: {light}"] {{ {kind}: {colour} !important; }}'
        for light, colour in _DARK.items()
        for kind in ("fill", "stroke")
    ]
    rules.append(f"@media screen and (prefers-color-scheme: dark) {{ {' '.join(dark)} }}")
    # The first definition block is matplotlib's own; ours follows the opening tag.
    opening = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:opening]}\n<style>{' '.join(rules)}</style>{svg[opening:]}"
