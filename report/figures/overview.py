"""Figure 1: what Relation does where Attention takes one step, and the four forms it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.figures.drawing import Drawing
from report.figures.example import worked_example
from report.figures.shapes import SMALL, arrow, box, brace, matrix, shades, sheet, words
from report.style import INK, LINEAR, MHA, MUTED, RELATION

if TYPE_CHECKING:
    from relation.records import CampaignRecords

TOKENS = 6
CELL = (0.15, 0.15)
SIDE = TOKENS * CELL[0]
# Centres of the stages, from the evidence to the answer.
EVIDENCE, ROLES, RELATION_AT, FLOW, ANSWER = 2.05, 3.42, 4.87, 6.35, 7.72
ATTENTION_ROW, RELATION_ROW = 4.42, 3.0
SELF_TINT, EXCHANGE_TINT = 0.85, 0.3


def overview(records: CampaignRecords | None = None) -> Figure:
    """Attention above Relation, stage under stage; the forms below. It shows no campaign's data."""
    figure, axes = sheet(8.4, 5.35)
    example = worked_example(TOKENS)
    for centre, name in (
        (EVIDENCE, "Pairwise evidence"),
        (RELATION_AT, "Relation"),
        (FLOW, "Flow"),
        (ANSWER, "Output"),
    ):
        words(axes, (centre, 5.17), name, SMALL + 1, MUTED)
    _attention(axes, example.evidence, example.attention)
    _relation(axes, example.evidence, example.flow)
    axes.plot((0.1, 8.3), (2.07, 2.07), color=MUTED, linewidth=0.5)
    _forms(axes, example.flow)
    return figure


def _square(axes: Axes, centre: float, row: float, fill) -> None:
    matrix(axes, (centre - SIDE / 2, row + SIDE / 2), CELL, TOKENS, fill)


def _evidence(values: np.ndarray):
    """Evidence has either sign: ink by its rank, which hides nothing of a causal triangle."""
    return shades(values - values.min(), MUTED, least=0.04)


def _start(axes: Axes, row: float, name: str, motto: str, colour: str, inputs: str) -> None:
    words(axes, (0.1, row + 0.3), name, 12, colour, "left", weight="bold")
    words(axes, (0.1, row + 0.08), motto, SMALL + 0.5, MUTED, "left", style="italic")
    words(axes, (0.1, row - 0.18), inputs, 9, INK, "left")
    arrow(axes, (1.27, row), (EVIDENCE - SIDE / 2 - 0.06, row))


def _attention(axes: Axes, evidence: np.ndarray, flow: np.ndarray) -> None:
    row = ATTENTION_ROW
    _start(axes, row, "Attention", "score becomes flow", MHA, r"$X \rightarrow Q,\ K,\ V$")
    _square(axes, EVIDENCE, row, _evidence(evidence))
    words(axes, (EVIDENCE, row - 0.6), r"$U_{ij}=q_i^{\top}k_j/\sqrt{d_h}$", SMALL + 1)
    arrow(
        axes,
        (EVIDENCE + SIDE / 2 + 0.06, row),
        (FLOW - SIDE / 2 - 0.06, row),
        colour=MHA,
    )
    words(axes, ((EVIDENCE + FLOW) / 2, row + 0.13), "Softmax", SMALL + 1, MHA)
    words(axes, ((EVIDENCE + FLOW) / 2, row - 0.15), "one step, no relation between", SMALL, MUTED)
    _square(axes, FLOW, row, shades(flow, MHA))
    words(axes, (FLOW, row - 0.6), r"$F_i=\mathrm{Softmax}(U_i)$", SMALL + 1)
    arrow(axes, (FLOW + SIDE / 2 + 0.06, row), (ANSWER - 0.55, row))
    words(axes, (ANSWER, row), r"$Y_i=\sum_{j\leq i}F_{ij}\,v_j$", 9)


def _roles(row: int, column: int) -> tuple[str, float] | None:
    if column > row:
        return None
    return RELATION, SELF_TINT if row == column else EXCHANGE_TINT


def _relation(axes: Axes, evidence: np.ndarray, flow: np.ndarray) -> None:
    row = RELATION_ROW
    inputs = r"$X \rightarrow P_1,\ P_2,\ I$"
    _start(axes, row, "Relation", "flow follows relation", RELATION, inputs)
    _square(axes, EVIDENCE, row, _evidence(evidence))
    words(axes, (EVIDENCE, row - 0.6), r"$U_{ij}=p_{1,i}^{\top}p_{2,j}/\sqrt{d_h}$", SMALL + 1)
    for side, name, formula, tint in (
        (1, "Ask Self", r"$S_i=\sigma(U_{ii}/\tau_S)$", SELF_TINT),
        (-1, "Ask Others", r"$E_{ij}=\mathrm{SiLU}(U_{ij})$", EXCHANGE_TINT),
    ):
        at = row + side * 0.29
        box(axes, (ROLES, at), (1.16, 0.44), "", RELATION, tint * 0.3)
        words(axes, (ROLES, at + 0.1), name, SMALL + 1, INK, weight="bold")
        words(axes, (ROLES, at - 0.09), formula, SMALL + 0.5)
        fork = EVIDENCE + SIDE / 2 + 0.14
        arrow(axes, (fork - 0.08, row), (fork, row), (fork, at), (ROLES - 0.58, at))
        join = RELATION_AT - SIDE / 2 - 0.22
        start = (ROLES + 0.58, at)
        arrow(axes, start, (join, at), (join, row), (RELATION_AT - SIDE / 2 - 0.06, row))
    _square(axes, RELATION_AT, row, _roles)
    formula = r"$S_i$ on the diagonal, $E_{ij}-\lambda_\ell\,\log\,i$ below"
    words(axes, (RELATION_AT, row - 0.6), formula, SMALL)
    arrow(
        axes,
        (RELATION_AT + SIDE / 2 + 0.06, row),
        (FLOW - SIDE / 2 - 0.06, row),
        colour=RELATION,
    )
    words(axes, ((RELATION_AT + FLOW) / 2, row + 0.13), "Softmax", SMALL + 1, RELATION)
    _square(axes, FLOW, row, shades(flow, RELATION))
    words(axes, (FLOW, row - 0.6), r"$F_i=\mathrm{Softmax}(R_i)$", SMALL + 1)
    arrow(axes, (FLOW + SIDE / 2 + 0.06, row), (ANSWER - 0.55, row))
    words(axes, (ANSWER, row + 0.02), r"$Y_i=(1-g_i)\widetilde{I}_i+g_i\bar{I}_i^{\,E}$", 9)
    words(axes, (ANSWER, row - 0.22), r"$g_i=\sum_{j<i}F_{ij}$", SMALL)


def _forms(axes: Axes, flow: np.ndarray) -> None:
    """The four forms of Section 5, a column each."""
    lines = {
        "Full Relation": ("every earlier token, explicitly", r"time $O(T^2d)$, state $O(Td)$"),
        "FlashRelation": ("the same operator, tile by tile;", r"$R$ and $F$ never in memory"),
        "Linear Relation": ("Others in a recurrent state", r"time $O(Td^2/H)$, state $O(d^2/H)$"),
        "Hybrid Relation": ("Linear and Full in one decoder", r"$(LLLF)^3$: 9 Linear, 3 Full"),
    }
    draw = {
        "Full Relation": _full,
        "FlashRelation": _flash,
        "Linear Relation": _linear,
        "Hybrid Relation": _hybrid,
    }
    for place, (name, (first, second)) in enumerate(lines.items()):
        centre = 1.13 + 2.05 * place
        words(axes, (centre, 1.87), name, 10, INK, weight="bold")
        draw[name](axes, centre, 1.17, flow)
        words(axes, (centre, 0.47), first, SMALL + 0.5)
        words(axes, (centre, 0.27), second, SMALL + 0.5, MUTED)


def _full(axes: Axes, centre: float, row: float, flow: np.ndarray) -> None:
    _square(axes, centre, row, shades(flow, RELATION))


def _flash(axes: Axes, centre: float, row: float, flow: np.ndarray) -> None:
    """Tiles of two tokens; the scan of the last row of tiles carries (m, l, z)."""
    _square(axes, centre - 0.3, row, lambda i, j: _tile(i, j))
    left, top = centre - 0.3 - SIDE / 2, row + SIDE / 2
    for line in range(1, TOKENS // 2):
        step = 2 * line * CELL[0]
        axes.plot((left, left + SIDE), (top - step, top - step), color=INK, linewidth=0.7)
        axes.plot((left + step, left + step), (top, top - SIDE), color=INK, linewidth=0.7)
    scan = top - SIDE + CELL[1]
    arrow(axes, (left + 0.06, scan), (left + SIDE - 0.33, scan), colour=INK)
    beside = left + SIDE + 0.1
    words(axes, (beside, row + 0.3), "scan Others:", SMALL, MUTED, "left")
    words(axes, (beside, row + 0.12), r"$(m,\,l,\,z)$", SMALL + 1, INK, "left")
    words(axes, (beside, row - 0.16), "then Self:", SMALL, MUTED, "left")
    words(axes, (beside, row - 0.34), r"$g_i=\sigma(A_i-S_i)$", SMALL, INK, "left")


def _tile(row: int, column: int) -> tuple[str, float] | None:
    if column > row:
        return None
    return RELATION, SELF_TINT if row == column else (0.45 if row // 2 == 2 else EXCHANGE_TINT / 2)


def _linear(axes: Axes, centre: float, row: float, flow: np.ndarray) -> None:
    """The read before the write: C_{t-1} is retained, asked, answered, and then written."""
    left, right, high = centre - 0.7, centre + 0.7, row + 0.12
    for x, name in ((left, r"$C_{t-1}$"), (right, r"$C_t$")):
        box(axes, (x, high), (0.42, 0.34), name, LINEAR, 0.22)
    arrow(axes, (left + 0.21, high), (right - 0.21, high), colour=LINEAR)
    words(axes, (centre - 0.24, high + 0.13), r"$\mathrm{Diag}(\alpha_t)$", SMALL)
    read, write = centre + 0.04, centre + 0.32
    arrow(axes, (read, high), (read, row - 0.28), colour=RELATION)
    arrow(axes, (write, row - 0.28), (write, high), colour=RELATION)
    words(axes, (read - 0.06, row - 0.15), r"read by $S_t$", SMALL, INK, "right")
    words(axes, (write + 0.06, row - 0.15), r"written by $S_t$", SMALL, INK, "left")
    words(axes, (read, row - 0.39), r"$E_t$", 9)
    words(axes, (write + 0.02, row - 0.39), r"$\widetilde{I}_t$", 9)
    words(axes, (centre, row + 0.47), "read before the write", SMALL, MUTED)


def _hybrid(axes: Axes, centre: float, row: float, flow: np.ndarray) -> None:
    width, height, gap = 0.122, 0.5, 0.026
    left = centre - 6 * (width + gap) + gap / 2
    for layer, kind in enumerate("LLLF" * 3):
        colour = LINEAR if kind == "L" else RELATION
        x = left + layer * (width + gap) + width / 2
        box(axes, (x, row), (width, height), "", colour, 0.3)
        words(axes, (x, row), kind, SMALL)
    for block in range(3):
        start = left + block * 4 * (width + gap)
        brace(axes, (start, row - 0.36), (start + 4 * width + 3 * gap, row - 0.36))
    words(axes, (centre, row + 0.4), "12 layers", SMALL, MUTED)


DRAWING = Drawing(
    "overview",
    "Overview of Relation. Attention normalises pairwise scores into flow at once; Relation first "
    "gives every pair a role, Self or Exchange, and derives flow from the relation. Below, the "
    "four forms. The matrices are a worked example of six tokens, not measurements.",
    "Two rows of small matrices. Attention: evidence U, an arrow named Softmax, flow F, output. "
    "Relation: evidence U, then Ask Self and Ask Others side by side, the relation matrix R with "
    "Self on its diagonal and Exchange below, Softmax, flow F, output. Beneath: Full Relation, "
    "FlashRelation by tiles, Linear Relation with its recurrent state, and Hybrid Relation, three "
    "times three Linear layers and a Full one.",
    overview,
    outlined=True,
)
