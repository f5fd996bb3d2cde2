"""Figures 1 and 2, the same in every report: docs/figures/draw.py draws the files."""

from pathlib import Path

from report.figures.drawing import Drawing

# Through links, as a sandbox links this package.
DRAWN = Path(__file__).resolve().parents[2] / "docs" / "figures"

OVERVIEW = Drawing(
    "overview",
    "Overview of Relation. Attention normalises pairwise scores into flow at once; Relation first "
    "gives every pair a role, Self or Exchange, and derives flow from the relation. Below, the "
    "four forms. The matrices are a worked example of six tokens, not measurements.",
    "Two rows of small matrices. Attention: evidence U, an arrow named Softmax, flow F, output. "
    "Relation: evidence U, then Ask Self and Ask Others side by side, the relation matrix R with "
    "Self on its diagonal and Exchange below, Softmax, flow F, output. Beneath: Full Relation, "
    "FlashRelation by tiles, Linear Relation with its recurrent state, and Hybrid Relation, three "
    "times three Linear layers and a Full one.",
    DRAWN / "overview.svg",
    heading="Overview of Relation",
)
SELF_EXCHANGE = Drawing(
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
    DRAWN / "self-exchange.svg",
    heading="Self–Exchange and Multi-Head Relation",
)
