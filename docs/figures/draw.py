"""Draw figures 1 and 2: run `python -m docs.figures.draw` in the project's folder.

They show no campaign's data. The SVG and PDF beside this file are kept, and every report copies
them. Flow and head pairs are computed by the operators, from invented evidence.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from docs.figures.sheet import PLAIN, SMALL, Fill, Sheet, by_role, shades
from relation.ops import full_flow, givens_mix
from report.values.style import INK, LINEAR, MHA, MUTED, RELATION, save, styled

HERE = Path(__file__).parent
LAM = 0.5  # as a layer starts with
TAU = 2.0  # as in all formal experiments
HEADS = 8
# Formulas are outlines, as a reader's fonts may lack their signs; they are set in Times, like the
# paper's.
TYPE: dict[str, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "figure.constrained_layout.use": False,
    "svg.fonttype": "path",
}


class Example:
    """Evidence U (T, T) in float64, drawn by a fixed seed, and the flow of either operator."""

    def __init__(self, tokens: int, seed: int) -> None:
        drawn = torch.from_numpy(np.random.default_rng(seed).normal(0.3, 1.6, (tokens, tokens)))
        future = torch.ones_like(drawn).triu(1).bool()
        # P_1 = U sqrt(d_h) and P_2 = 1 give U back.
        p1, p2 = (drawn * tokens**0.5)[None, None], torch.eye(tokens).double()[None, None]
        self.evidence = drawn.tril().numpy()
        self.attention = drawn.masked_fill(future, -torch.inf).softmax(-1).numpy()
        self.flow = full_flow(p1, p2, torch.tensor(LAM).double(), TAU)[0, 0].numpy()


def pairing(layer: int) -> list[tuple[int, int]]:
    """The pairs of heads, counted from one, that Givens mixing rotates together in a layer."""
    # A quarter turn sends (a, b) to (-b, a).
    info = torch.arange(1.0, HEADS + 1).view(1, HEADS, 1, 1)
    turned = givens_mix(info, torch.full((HEADS // 2,), torch.pi / 2), layer).flatten().tolist()
    return [(head, round(-value)) for head, value in enumerate(turned, 1) if value < -0.5]


# Figure 1: centres of the stages, from the evidence to the output; side of a matrix.
TOKENS, CELL = 6, 0.15
SIDE = TOKENS * CELL
EVIDENCE, ROLES, RELATION_AT, FLOW, OUTPUT = 2.05, 3.42, 4.87, 6.35, 7.72
BESIDE = SIDE / 2 + 0.06  # from a matrix' centre to the arrow beside it
SELF_TINT, EXCHANGE_TINT = 0.85, 0.3


def overview() -> Figure:
    """Attention above Relation, stage under stage; below, the four forms of Section 5."""
    sheet, example = Sheet(8.4, 5.35), Example(TOKENS, seed=5)
    stages = {EVIDENCE: "Pairwise evidence", RELATION_AT: "Relation", FLOW: "Flow"}
    for centre, name in {**stages, OUTPUT: "Output"}.items():
        sheet.words((centre, 5.17), name, SMALL + 1, MUTED)

    row = 4.42
    _operator(
        sheet, row, "Attention", "score becomes flow", MHA, example, r"$X \rightarrow Q,\ K,\ V$"
    )
    sheet.words((EVIDENCE, row - 0.6), r"$U_{ij}=q_i^{\top}k_j/\sqrt{d_h}$", SMALL + 1)
    middle = (EVIDENCE + FLOW) / 2
    sheet.arrow((EVIDENCE + BESIDE, row), (FLOW - BESIDE, row), colour=MHA)
    sheet.words((middle, row + 0.13), "Softmax", SMALL + 1, MHA)
    sheet.words((middle, row - 0.15), "one step, no relation between", SMALL, MUTED)
    sheet.words((FLOW, row - 0.6), r"$F_i=\mathrm{Softmax}(U_i)$", SMALL + 1)
    sheet.words((OUTPUT, row), r"$Y_i=\sum_{j\leq i}F_{ij}\,v_j$", 9)

    row = 3.0
    inputs = r"$X \rightarrow P_1,\ P_2,\ I$"
    _operator(sheet, row, "Relation", "flow follows relation", RELATION, example, inputs)
    sheet.words((EVIDENCE, row - 0.6), r"$U_{ij}=p_{1,i}^{\top}p_{2,j}/\sqrt{d_h}$", SMALL + 1)
    fork, join = EVIDENCE + SIDE / 2 + 0.14, RELATION_AT - SIDE / 2 - 0.22
    places = (EVIDENCE + BESIDE, fork, ROLES, join, RELATION_AT - BESIDE)
    sheet.roles(places, row, (1.16, 0.44), 0.29)
    _square(sheet, RELATION_AT, row, by_role(SELF_TINT, EXCHANGE_TINT))
    formula = r"$S_i$ on the diagonal, $E_{ij}-\lambda_\ell\,\log\,i$ below"
    sheet.words((RELATION_AT, row - 0.6), formula, SMALL)
    sheet.arrow((RELATION_AT + BESIDE, row), (FLOW - BESIDE, row), colour=RELATION)
    sheet.words(((RELATION_AT + FLOW) / 2, row + 0.13), "Softmax", SMALL + 1, RELATION)
    sheet.words((FLOW, row - 0.6), r"$F_i=\mathrm{Softmax}(R_i)$", SMALL + 1)
    sheet.words((OUTPUT, row + 0.02), r"$Y_i=(1-g_i)\widetilde{I}_i+g_i\bar{I}_i^{\,E}$", 9)
    sheet.words((OUTPUT, row - 0.22), r"$g_i=\sum_{j<i}F_{ij}$", SMALL)

    sheet.line((0.1, 2.07), (8.3, 2.07))
    for place, (name, first, second, form) in enumerate(FORMS):
        centre = 1.13 + 2.05 * place
        sheet.words((centre, 1.87), name, 10, weight="bold")
        form(sheet, centre, 1.17, example)
        sheet.words((centre, 0.47), first, SMALL + 0.5)
        sheet.words((centre, 0.27), second, SMALL + 0.5, MUTED)
    return sheet.figure


def _square(sheet: Sheet, centre: float, row: float, fill: Fill) -> None:
    sheet.matrix((centre - SIDE / 2, row + SIDE / 2), (CELL, CELL), TOKENS, fill)


def _operator(
    sheet: Sheet, row: float, name: str, motto: str, colour: str, example: Example, inputs: str
) -> None:
    """The stages that both operators have: inputs, evidence, flow, and the way to the output."""
    sheet.words((0.1, row + 0.3), name, 12, colour, "left", weight="bold")
    sheet.words((0.1, row + 0.08), motto, SMALL + 0.5, MUTED, "left", style="italic")
    sheet.words((0.1, row - 0.18), inputs, 9, INK, "left")
    sheet.arrow((1.27, row), (EVIDENCE - BESIDE, row))
    # Evidence has either sign: shaded from its least, which shows the whole causal triangle.
    evidence = example.evidence - example.evidence.min()
    _square(sheet, EVIDENCE, row, shades(evidence, MUTED, least=0.04))
    flow = example.attention if colour == MHA else example.flow
    _square(sheet, FLOW, row, shades(flow, colour))
    sheet.arrow((FLOW + BESIDE, row), (OUTPUT - 0.55, row))


def _full(sheet: Sheet, centre: float, row: float, example: Example) -> None:
    _square(sheet, centre, row, shades(example.flow, RELATION))


def _flash(sheet: Sheet, centre: float, row: float, example: Example) -> None:
    """Tiles of two tokens; the scan of the last row of tiles carries (m, l, z)."""
    seen, scanned = by_role(SELF_TINT, EXCHANGE_TINT / 2), by_role(SELF_TINT, 0.45)
    _square(sheet, centre - 0.3, row, lambda i, j: (scanned if i // 2 == 2 else seen)(i, j))
    left, top = centre - 0.3 - SIDE / 2, row + SIDE / 2
    for step in (2 * CELL, 4 * CELL):
        sheet.line((left, top - step), (left + SIDE, top - step), colour=INK, width=0.7)
        sheet.line((left + step, top), (left + step, top - SIDE), colour=INK, width=0.7)
    scan = top - SIDE + CELL
    sheet.arrow((left + 0.06, scan), (left + SIDE - 0.33, scan))
    beside = left + SIDE + 0.1
    sheet.words((beside, row + 0.3), "scan Others:", SMALL, MUTED, "left")
    sheet.words((beside, row + 0.12), r"$(m,\,l,\,z)$", SMALL + 1, INK, "left")
    sheet.words((beside, row - 0.16), "then Self:", SMALL, MUTED, "left")
    sheet.words((beside, row - 0.34), r"$g_i=\sigma(A_i-S_i)$", SMALL, INK, "left")


def _linear(sheet: Sheet, centre: float, row: float, example: Example) -> None:
    """The read before the write: C_{t-1} is retained, asked, answered, and then written."""
    left, right, high = centre - 0.7, centre + 0.7, row + 0.12
    sheet.box((left, high), (0.42, 0.34), r"$C_{t-1}$", LINEAR, 0.22)
    sheet.box((right, high), (0.42, 0.34), r"$C_t$", LINEAR, 0.22)
    sheet.arrow((left + 0.21, high), (right - 0.21, high), colour=LINEAR)
    sheet.words((centre - 0.24, high + 0.13), r"$\mathrm{Diag}(\alpha_t)$", SMALL)
    read, write = centre + 0.04, centre + 0.32
    sheet.arrow((read, high), (read, row - 0.28), colour=RELATION)
    sheet.arrow((write, row - 0.28), (write, high), colour=RELATION)
    sheet.words((read - 0.06, row - 0.15), r"read by $S_t$", SMALL, INK, "right")
    sheet.words((write + 0.06, row - 0.15), r"written by $S_t$", SMALL, INK, "left")
    sheet.words((read, row - 0.39), r"$E_t$", 9)
    sheet.words((write + 0.02, row - 0.39), r"$\widetilde{I}_t$", 9)
    sheet.words((centre, row + 0.47), "read before the write", SMALL, MUTED)


def _hybrid(sheet: Sheet, centre: float, row: float, example: Example) -> None:
    width, step = 0.122, 0.148
    left = centre - 6 * step + (step - width) / 2
    for layer, kind in enumerate("LLLF" * 3):
        colour = LINEAR if kind == "L" else RELATION
        sheet.box((left + layer * step + width / 2, row), (width, 0.5), kind, colour, 0.3, SMALL)
    foot = row - 0.36
    for start in left + 4 * step * np.arange(3):
        end = start + 3 * step + width
        bracket = ((start, foot + 0.06), (start, foot), (end, foot), (end, foot + 0.06))
        sheet.line(*bracket, width=0.7)
    sheet.words((centre, row + 0.4), "12 layers", SMALL, MUTED)


FORMS = (
    ("Full Relation", "every earlier token, explicitly", "time $O(T^2d)$, state $O(Td)$", _full),
    ("FlashRelation", "the same operator, tile by tile;", "$R$ and $F$ never in memory", _flash),
    ("Linear Relation", "Others in a recurrent state", "time $O(Td^2/H)$, state $O(d^2/H)$",
     _linear),
    ("Hybrid Relation", "Linear and Full in one decoder", "$(LLLF)^3$: 9 Linear, 3 Full", _hybrid),
)  # fmt: skip

# Figure 2: tokens of the example, and rows of one head, from the two relation spaces down.
FEW = 4
P1_ROW, MIDDLE, P2_ROW, INFO_ROW = 6.12, 5.8, 5.48, 4.42
LANE, HEAD = 0.45, 0.35
NOTE = "each head builds its own $R^{(h)}$ and $F^{(h)}$ as in (a); $G$ mixes information only"
ROTATION = (
    r"$G(\theta):\ \widetilde{I}^{(a)}=\cos\theta\,I^{(a)}-\sin\theta\,I^{(b)},\ \ "
    r"\widetilde{I}^{(b)}=\sin\theta\,I^{(a)}+\cos\theta\,I^{(b)}$"
)


def self_exchange() -> Figure:
    """One head above, two layers of eight heads below."""
    sheet = Sheet(8.4, 6.85)
    sheet.words((0.1, 6.67), "(a) Self–Exchange Relation", 11, INK, "left", weight="bold")
    _evidence(sheet)
    sheet.roles((2.9, 2.99, 3.64, 4.27, 4.42), MIDDLE, (1.08, 0.46), 0.38)
    _relation_and_flow(sheet, Example(FEW, seed=30))
    _transport(sheet)
    sheet.line((0.1, 3.87), (8.3, 3.87))
    sheet.words((0.1, 3.66), "(b) Multi-Head Relation", 11, INK, "left", weight="bold")
    sheet.words((8.3, 3.7), NOTE, SMALL, MUTED, "right")
    sheet.words((8.3, 3.5), ROTATION, SMALL + 0.5, RELATION, "right")
    _layer(sheet, 0.4, 0, r"layer $\ell$, pairs $\mathcal{M}_A$", (r"$X_\ell$", r"$X_{\ell+1}$"))
    following = (r"$X_{\ell+1}$", r"$X_{\ell+2}$")
    _layer(sheet, 4.65, 1, r"layer $\ell+1$, pairs $\mathcal{M}_B$", following)
    return sheet.figure


def _evidence(sheet: Sheet) -> None:
    """Three projections of the input; two of them are rotated and compared."""
    sheet.box((0.3, MIDDLE), (0.36, 0.34), r"$X_\ell$")
    for row, weight, state in (
        (P1_ROW, "$W_1$", "$P_1$"),
        (P2_ROW, "$W_2$", "$P_2$"),
        (INFO_ROW, "$W_I$", "$I$"),
    ):
        sheet.arrow((0.48, MIDDLE), (0.58, MIDDLE), (0.58, row), (0.7, row))
        sheet.box((0.88, row), (0.36, 0.3), weight)
        sheet.words((1.16, row + 0.12), state, SMALL + 1)
    for row in (P1_ROW, P2_ROW):
        sheet.arrow((1.06, row), (1.27, row))
        sheet.box((1.48, row), (0.42, 0.24), "RoPE", MUTED, font=SMALL)
        sheet.arrow((1.69, row), (1.78, row), (1.78, MIDDLE), (1.9, MIDDLE))
    sheet.box((2.4, MIDDLE), (1.0, 0.5), r"$U=P_1P_2^{\top}/\sqrt{d_h}$", font=SMALL + 0.5)


def _relation_and_flow(sheet: Sheet, example: Example) -> None:
    wide, cell = 0.57, 0.26
    left, top = 4.46, MIDDLE + 2 * cell
    below = top - FEW * cell - 0.15
    roles = by_role(0.6, 0.22)
    sheet.matrix((left, top), (wide, cell), FEW, roles, _entry, font=6.6)
    middle = left + FEW * wide / 2
    sheet.words((middle, top + 0.16), "Relation $R$", PLAIN, RELATION)
    substitute = r"below the diagonal, Exchange less its count: $E_{ij}-\lambda_\ell\,\log\,i$"
    sheet.words((middle, below), substitute, SMALL)
    flow = left + FEW * wide + 0.31
    sheet.arrow((flow - 0.27, MIDDLE), (flow - 0.04, MIDDLE), colour=RELATION)

    def number(row: int, column: int) -> str:
        return f"{example.flow[row, column]:.2f}".removeprefix("0") if column <= row else "0"

    sheet.matrix((flow, top), (cell, cell), FEW, shades(example.flow, RELATION), number, 6.2)
    middle, edge = flow + FEW * cell / 2, flow + FEW * cell
    sheet.words((middle, top + 0.16), "Flow $F$", PLAIN, RELATION)
    sheet.words((middle, below), r"$F_i=\mathrm{Softmax}(R_i)$", SMALL)
    sheet.words((middle, below - 0.2), r"$F_{ii}+g_i=1$", SMALL, MUTED)
    corner, down = edge + 0.13, INFO_ROW + 0.37
    path = ((edge + 0.02, MIDDLE), (corner, MIDDLE), (corner, down), (5.6, down))
    sheet.arrow(*path, (5.6, INFO_ROW + 0.19), colour=RELATION)


def _entry(row: int, column: int) -> str:
    if column > row:
        return r"$-\infty$"
    if column == row:
        return f"$S_{row + 1}$"
    return rf"$E_{{{row + 1}{column + 1}}}\!-\!\lambda_\ell\log{row + 1}$"


def _transport(sheet: Sheet) -> None:
    """Information passes below, is summed by the flow, projected, and added to the stream."""
    row = INFO_ROW
    sheet.arrow((1.06, row), (4.96, row))
    sheet.words((3.0, row + 0.11), "information, not rotated by position", SMALL, MUTED)
    sheet.box((5.6, row), (1.28, 0.38), r"$Y_i=\sum_{j\leq i}F_{ij}\,I_j$", font=SMALL + 1)
    sheet.arrow((6.24, row), (6.5, row))
    sheet.box((6.7, row), (0.4, 0.3), "$W_O$")
    sheet.arrow((6.9, row), (7.25, row))
    sheet.plus((7.34, row))
    sheet.arrow((7.43, row), (7.78, row))
    sheet.words((8.0, row), r"$X_{\ell+1}$", PLAIN)
    # The residual stream passes under everything.
    sheet.arrow((0.3, MIDDLE - 0.17), (0.3, 4.06), (7.34, 4.06), (7.34, row - 0.09))


def _layer(sheet: Sheet, left: float, layer: int, title: str, streams: tuple[str, str]) -> None:
    """One layer from its information at the bottom to its output on top."""
    lanes = {head: left + LANE * (head - 1) + HEAD / 2 for head in range(1, HEADS + 1)}
    middle, width = (lanes[1] + lanes[HEADS]) / 2, lanes[HEADS] - lanes[1] + HEAD
    sheet.words((middle, 0.13), title, PLAIN)
    source = f"{streams[0]}$W_I$, split into heads"
    sheet.box((middle, 0.42), (width, 0.2), source, font=SMALL + 0.5)
    slices, mixed, flow, out, concat = 0.76, 1.5, 1.98, 2.46, 2.83
    for head, x in lanes.items():
        sheet.arrow((x, 0.52), (x, slices - 0.11), head=False)
        sheet.box((x, slices), (HEAD, 0.22), f"$I^{{({head})}}$", font=7.4)
        sheet.box((x, mixed), (HEAD, 0.24), rf"$\widetilde{{I}}^{{({head})}}$", font=7.4)
        size = 0.062
        fill = shades(Example(FEW, seed=10 * layer + head).flow, RELATION)
        sheet.matrix((x - 2 * size, flow + 2 * size), (size, size), FEW, fill)
        sheet.arrow((x, slices + 0.11), (x, 1.02), head=False)
        sheet.arrow((x, 1.24), (x, mixed - 0.12))
        sheet.arrow((x, mixed + 0.12), (x, flow - 0.13))
        sheet.arrow((x, flow + 0.13), (x, out - 0.11))
        sheet.box((x, out), (HEAD, 0.22), f"$Y^{{({head})}}$", RELATION, 0.15, 7.4)
        sheet.arrow((x, out + 0.11), (x, concat - 0.1), head=False)
    for a, b in pairing(layer):
        _rotation(sheet, rf"$G(\theta_{{{a}{b}}})$", lanes[a], lanes[b])
    sheet.words((left - 0.04, flow), r"$F^{(h)}$", SMALL, RELATION, "right")
    sheet.box((middle, concat), (width, 0.2), "Concat, then $W_O$", font=SMALL + 0.5)
    sheet.arrow((middle, concat + 0.1), (middle, 3.07))
    sheet.plus((middle, 3.16))
    sheet.arrow((middle - 1.2, 3.16), (middle - 0.09, 3.16))
    sheet.words((middle - 1.26, 3.16), streams[0], PLAIN, align="right")
    sheet.arrow((middle + 0.09, 3.16), (middle + 1.2, 3.16))
    sheet.words((middle + 1.26, 3.16), streams[1], PLAIN, align="left")


def _rotation(sheet: Sheet, name: str, first: float, second: float) -> None:
    """A box over a pair of lanes; that of the last and the first head is cut at the two sides."""
    row, height = 1.13, 0.22
    if first < second:
        size = (LANE + 0.26, height)
        sheet.box(((first + second) / 2, row), size, name, RELATION, 0.15, 7.4)
        return
    for x, outwards in ((first, 1), (second, -1)):
        inner, outer = x - 0.13 * outwards, x + 0.32 * outwards
        low, high = row - height / 2, row + height / 2
        corners = ((outer, high), (inner, high), (inner, low), (outer, low))
        sheet.axes.fill(*zip(*corners, strict=True), color=RELATION, alpha=0.15, linewidth=0)
        sheet.line(*corners, colour=RELATION, width=0.8)
        sheet.line((outer, low), (outer, high), colour=RELATION, width=0.8, style=":")
        sheet.words(((inner + outer) / 2, row), name, 7.4)


def draw(folder: Path) -> None:
    """Write both figures under ``folder``, as SVG for pages and as PDF for print."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled(**TYPE):
        save(overview(), folder / "overview.svg")
        save(self_exchange(), folder / "self-exchange.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
