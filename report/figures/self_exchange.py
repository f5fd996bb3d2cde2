"""Figure 2: Self-Exchange Relation of one head, and Multi-Head Relation over two layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.figures.drawing import Drawing
from report.figures.example import Example, worked_example
from report.figures.shapes import PLAIN, SMALL, arrow, box, matrix, plus, shades, sheet, words
from report.style import INK, MUTED, RELATION

if TYPE_CHECKING:
    from relation.records import CampaignRecords

TOKENS = 4
HEADS = 8
SELF_TINT, EXCHANGE_TINT = 0.75, 0.22
# Rows of the drawing of one head: the two relation spaces, the roles' middle, information.
P1_ROW, P2_ROW, MIDDLE, INFO_ROW = 6.12, 5.48, 5.8, 4.42
LANE, HEAD = 0.45, 0.35


def self_exchange(records: CampaignRecords | None = None) -> Figure:
    """One head above, two layers of eight heads below. It shows no campaign's data."""
    figure, axes = sheet(8.4, 6.85)
    words(axes, (0.1, 6.67), "(a) Self–Exchange Relation", 11, INK, "left", weight="bold")
    _one_head(axes, worked_example(TOKENS, seed=30))
    axes.plot((0.1, 8.3), (3.87, 3.87), color=MUTED, linewidth=0.5)
    words(axes, (0.1, 3.66), "(b) Multi-Head Relation", 11, INK, "left", weight="bold")
    words(axes, (8.3, 3.7), _HEADS_NOTE, SMALL, MUTED, "right")
    words(axes, (8.3, 3.5), _ROTATION, SMALL + 0.5, RELATION, "right")
    _layer(axes, 0.4, 0)
    _layer(axes, 4.65, 1)
    return figure


_HEADS_NOTE = (
    "each head builds its own $R^{(h)}$ and $F^{(h)}$ as in (a); $G$ mixes information only"
)
_ROTATION = (
    r"$G(\theta):\ \widetilde{I}^{(a)}=\cos\theta\,I^{(a)}-\sin\theta\,I^{(b)},\ \ "
    r"\widetilde{I}^{(b)}=\sin\theta\,I^{(a)}+\cos\theta\,I^{(b)}$"
)


def _one_head(axes: Axes, example: Example) -> None:
    box(axes, (0.3, MIDDLE), (0.36, 0.34), r"$X_\ell$")
    fork = 0.58
    for row, weight, state in (
        (P1_ROW, "$W_1$", "$P_1$"),
        (P2_ROW, "$W_2$", "$P_2$"),
        (INFO_ROW, "$W_I$", "$I$"),
    ):
        arrow(axes, (0.48, MIDDLE), (fork, MIDDLE), (fork, row), (0.7, row))
        box(axes, (0.88, row), (0.36, 0.3), weight)
        words(axes, (1.16, row + 0.12), state, SMALL + 1)
    for row in (P1_ROW, P2_ROW):
        arrow(axes, (1.06, row), (1.27, row))
        box(axes, (1.48, row), (0.42, 0.24), "RoPE", MUTED, font=SMALL)
        arrow(axes, (1.69, row), (1.78, row), (1.78, MIDDLE), (1.9, MIDDLE))
    box(axes, (2.4, MIDDLE), (1.0, 0.5), r"$U=P_1P_2^{\top}/\sqrt{d_h}$", font=SMALL + 0.5)
    _roles(axes)
    _relation_and_flow(axes, example)
    _transport(axes)


def _roles(axes: Axes) -> None:
    """Ask Self above, Ask Others below; both read U."""
    for side, name, formula, tint in (
        (1, "Ask Self", r"$S_i=\sigma(U_{ii}/\tau_S)$", SELF_TINT),
        (-1, "Ask Others", r"$E_{ij}=\mathrm{SiLU}(U_{ij})$", EXCHANGE_TINT),
    ):
        at = MIDDLE + 0.38 * side
        box(axes, (3.64, at), (1.08, 0.46), "", RELATION, tint * 0.35)
        words(axes, (3.64, at + 0.1), name, SMALL + 1, weight="bold")
        words(axes, (3.64, at - 0.1), formula, SMALL + 0.5)
        arrow(axes, (2.9, MIDDLE), (2.99, MIDDLE), (2.99, at), (3.1, at))
        arrow(axes, (4.18, at), (4.27, at), (4.27, MIDDLE), (4.42, MIDDLE))


def _relation_and_flow(axes: Axes, example: Example) -> None:
    cell, square = (0.57, 0.26), (0.26, 0.26)
    left, top = 4.46, MIDDLE + 2 * cell[1]
    below = top - TOKENS * cell[1] - 0.15
    matrix(axes, (left, top), cell, TOKENS, _role, _entry, font=6.6)
    middle = left + TOKENS * cell[0] / 2
    words(axes, (middle, top + 0.16), "Relation $R$", PLAIN, RELATION)
    words(axes, (middle, below), _SUBSTITUTE, SMALL)
    flow = left + TOKENS * cell[0] + 0.31
    arrow(axes, (flow - 0.27, MIDDLE), (flow - 0.04, MIDDLE), colour=RELATION)
    shade = shades(example.flow, RELATION)
    matrix(axes, (flow, top), square, TOKENS, shade, lambda i, j: _number(example, i, j), 6.2)
    middle = flow + TOKENS * square[0] / 2
    words(axes, (middle, top + 0.16), "Flow $F$", PLAIN, RELATION)
    words(axes, (middle, below), r"$F_i=\mathrm{Softmax}(R_i)$", SMALL)
    words(axes, (middle, below - 0.2), r"$F_{ii}+g_i=1$", SMALL, MUTED)
    edge = flow + TOKENS * square[0]
    down = INFO_ROW + 0.37
    arrow(
        axes,
        (edge + 0.02, MIDDLE),
        (edge + 0.13, MIDDLE),
        (edge + 0.13, down),
        (5.6, down),
        (5.6, INFO_ROW + 0.19),
        colour=RELATION,
    )


_SUBSTITUTE = r"below the diagonal, Exchange less its count: $E_{ij}-\lambda_\ell\,\log\,i$"


def _role(row: int, column: int) -> tuple[str, float] | None:
    if column > row:
        return None
    return RELATION, SELF_TINT * 0.8 if row == column else EXCHANGE_TINT


def _entry(row: int, column: int) -> str:
    if column > row:
        return r"$-\infty$"
    if column == row:
        return f"$S_{row + 1}$"
    return rf"$E_{{{row + 1}{column + 1}}}\!-\!\lambda_\ell\log{row + 1}$"


def _number(example: Example, row: int, column: int) -> str:
    return f"{example.flow[row, column]:.2f}".removeprefix("0") if column <= row else "0"


def _transport(axes: Axes) -> None:
    """Information passes below, is summed by the flow, projected, and added to the stream."""
    row = INFO_ROW
    arrow(axes, (1.06, row), (4.96, row))
    words(axes, (3.0, row + 0.11), "information, not rotated by position", SMALL, MUTED)
    box(axes, (5.6, row), (1.28, 0.38), r"$Y_i=\sum_{j\leq i}F_{ij}\,I_j$", font=SMALL + 1)
    arrow(axes, (6.24, row), (6.5, row))
    box(axes, (6.7, row), (0.4, 0.3), "$W_O$")
    arrow(axes, (6.9, row), (7.25, row))
    plus(axes, (7.34, row))
    arrow(axes, (7.43, row), (7.78, row))
    words(axes, (8.0, row), r"$X_{\ell+1}$", PLAIN)
    # The residual stream passes under everything.
    arrow(axes, (0.3, MIDDLE - 0.17), (0.3, 4.06), (7.34, 4.06), (7.34, row - 0.09))


def pairing(layer: int, heads: int = HEADS) -> list[tuple[int, int]]:
    """Head pairs, counted from one: M_A in even layers, M_B in odd ones."""
    first = 1 + layer % 2
    return [(head, head % heads + 1) for head in range(first, heads + 1, 2)]


def _layer(axes: Axes, left: float, layer: int) -> None:
    """One layer from its information at the bottom to its output on top."""
    lanes = {head: left + LANE * (head - 1) + HEAD / 2 for head in range(1, HEADS + 1)}
    middle, width = (lanes[1] + lanes[HEADS]) / 2, lanes[HEADS] - lanes[1] + HEAD
    name, pairs, stream, following = _NAMES[layer]
    words(axes, (middle, 0.13), f"layer {name}, pairs {pairs}", PLAIN)
    box(axes, (middle, 0.42), (width, 0.2), f"{stream}$W_I$, split into heads", font=SMALL + 0.5)
    slices, mixed, flow, out, concat = 0.76, 1.5, 1.98, 2.46, 2.83
    for head, x in lanes.items():
        arrow(axes, (x, 0.52), (x, slices - 0.11), head=False)
        box(axes, (x, slices), (HEAD, 0.22), f"$I^{{({head})}}$", font=7.4)
        box(axes, (x, mixed), (HEAD, 0.24), rf"$\widetilde{{I}}^{{({head})}}$", font=7.4)
        size = 0.062
        fill = shades(worked_example(TOKENS, 10 * layer + head).flow, RELATION)
        matrix(axes, (x - 2 * size, flow + 2 * size), (size, size), TOKENS, fill)
        arrow(axes, (x, slices + 0.11), (x, 1.02), head=False)
        arrow(axes, (x, 1.24), (x, mixed - 0.12))
        arrow(axes, (x, mixed + 0.12), (x, flow - 0.13))
        arrow(axes, (x, flow + 0.13), (x, out - 0.11))
        box(axes, (x, out), (HEAD, 0.22), f"$Y^{{({head})}}$", RELATION, 0.15, 7.4)
        arrow(axes, (x, out + 0.11), (x, concat - 0.1), head=False)
    _rotations(axes, lanes, layer)
    words(axes, (left - 0.04, flow), r"$F^{(h)}$", SMALL, RELATION, "right")
    box(axes, (middle, concat), (width, 0.2), "Concat, then $W_O$", font=SMALL + 0.5)
    arrow(axes, (middle, concat + 0.1), (middle, 3.07))
    plus(axes, (middle, 3.16))
    arrow(axes, (middle - 1.2, 3.16), (middle - 0.09, 3.16))
    words(axes, (middle - 1.26, 3.16), stream, PLAIN, align="right")
    arrow(axes, (middle + 0.09, 3.16), (middle + 1.2, 3.16))
    words(axes, (middle + 1.26, 3.16), following, PLAIN, align="left")


_NAMES = (
    (r"$\ell$", r"$\mathcal{M}_A$", r"$X_\ell$", r"$X_{\ell+1}$"),
    (r"$\ell+1$", r"$\mathcal{M}_B$", r"$X_{\ell+1}$", r"$X_{\ell+2}$"),
)


def _rotations(axes: Axes, lanes: dict[int, float], layer: int) -> None:
    """A box over each pair; that of the last and the first head is cut at the two sides."""
    row, height = 1.13, 0.22
    for a, b in pairing(layer):
        name = rf"$G(\theta_{{{a}{b}}})$"
        if a < b:
            centre = ((lanes[a] + lanes[b]) / 2, row)
            box(axes, centre, (LANE + 0.26, height), name, RELATION, 0.15, 7.4)
            continue
        for x, outwards in ((lanes[a], 1), (lanes[b], -1)):
            inner, outer = x - 0.13 * outwards, x + 0.32 * outwards
            low, high = row - height / 2, row + height / 2
            xs, ys = (outer, inner, inner, outer), (high, high, low, low)
            axes.fill(xs, ys, color=RELATION, alpha=0.15, linewidth=0)
            axes.plot(xs, ys, color=RELATION, linewidth=0.8)
            axes.plot((outer, outer), (low, high), ":", color=RELATION, linewidth=0.8)
            words(axes, ((inner + outer) / 2, row), name, 7.4)


DRAWING = Drawing(
    "self-exchange",
    "Self–Exchange Relation and Multi-Head Relation. (a) One head, with the paper’s equations; the "
    "numbers of the flow are a worked example of four tokens, not measurements. (b) Eight heads "
    "over two layers: the pairs that exchange information alternate, and in the second layer the "
    "last head is paired with the first.",
    "(a) From the input three projections; two of them, rotated by position, give the evidence U, "
    "which is asked for Self on the diagonal and for Others below it; both make the relation "
    "matrix R, a softmax of its rows the flow F, and F times the information the output, which is "
    "projected and added to the input. (b) Two layers of eight heads: Givens rotations mix the "
    "information of the pairs (1,2), (3,4), (5,6), (7,8), in the next layer of (2,3), (4,5), "
    "(6,7), (8,1); every head applies its own flow; the outputs are joined and projected.",
    self_exchange,
    outlined=True,
)
