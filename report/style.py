"""One look for all figures, the same type and colours as the pages."""

from __future__ import annotations

from typing import Any

MHA = "#0072B2"
RELATION = "#D55E00"
# Okabe and Ito's further colours, for operators outside the pair.
LINEAR = "#009E73"
MATERIALISED = "#CC79A7"
INK = "#1b1c1e"
MUTED = "#62656a"
HAIR = "#d9d9d4"

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

# Browsers set the text, so that it follows the page's type; DejaVu Serif, which ships with
# matplotlib and runs wider, only reserves the room. A fixed salt keeps the ids from changing.
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "relation",
    "font.family": "DejaVu Serif",
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
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

PAGE_TYPE = (
    'Charter, "Bitstream Charter", "Source Serif 4", Cambria, "Liberation Serif", '
    '"Times New Roman", serif'
)

# The three neutral colours turn over with the reader's scheme; a figure is an image of its own, so
# the page's style sheet does not reach it.
_DARK = {INK: "#e4e4e0", MUTED: "#9da0a6", HAIR: "#35373c"}


def adapt(svg: str) -> str:
    """Give an SVG the page's type and a dark scheme."""
    rules = [f"text {{ font-family: {PAGE_TYPE} !important; }}"]
    dark = [
        f'[style*="{kind}: {light}"] {{ {kind}: {colour} !important; }}'
        for light, colour in _DARK.items()
        for kind in ("fill", "stroke")
    ]
    rules.append(f"@media (prefers-color-scheme: dark) {{ {' '.join(dark)} }}")
    # The first definition block is matplotlib's own; ours follows the opening tag.
    opening = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:opening]}\n<style>{' '.join(rules)}</style>{svg[opening:]}"
