"""Complexity of the operators and configurations of the models."""

from report.compute.complexity import OPERATORS, complexity
from report.compute.configurations import configurations
from report.layout import SCALE_ROWS, Column, Number, Panel, Part, Row, Table, Words, value
from report.style import OPERATOR_NAME
from report.tables.systems import settings

FORMULA = Words("formula")
EXPONENT = Number(2)
TOKEN_TIME = Number(1, significant=2)

TOKEN_MIXING = Table(
    label="token-mixing-complexity",
    number="1",
    title="Token-mixing complexity",
    summary="What each operator costs, stores and waits for, with the measured powers of T.",
    caption=(
        "Cost of the token-mixing core, the sequential operations of its direct form, and the "
        "history it keeps while decoding. The campaign’s lines give the power of $T$ fitted to its "
        "own points, those whose time is at least five times that of the smallest $T$; timed are "
        "forward and backward of one layer’s operator on one sequence. (b) adds "
        "the 95% interval of the fit of log time on log $T$. A power of fewer than three such "
        "points, or with an interval wider than 1, is undetermined. Decode state is the size of "
        "the tensors that the next token needs; a token is decoded by the whole model, batch 1, "
        "at the first and the last $T$."
    ),
    stubs=("Layer type",),
    rows=(
        Row("mha", ("MHA / FlashAttention",)),
        Row("full", ("Full / FlashRelation",)),
        Row("linear", ("Linear Relation",)),
    ),
    panels=(
        Panel(
            "(a) Asymptotic cost",
            (
                value("Token-mixing\ncomplexity", "complexity", FORMULA),
                value("Sequential ops.", "sequential", FORMULA),
                value("Decode history\nstate", "state", FORMULA),
            ),
        ),
        Panel(
            "(b) Fitted powers of $T$",
            (
                value("Time: exponent\n[95% interval]", "time_exponent", EXPONENT),
                value("Fitted to\n$T$", "contexts", Words()),
                value("Decode state:\nexponent", "state_exponent", EXPONENT),
                Column(
                    "Decoding a token,\nms",
                    (Part("decode_first", TOKEN_TIME), Part("decode_last", TOKEN_TIME)),
                    "{} → {}",
                ),
                value("at $T$", "decoded", Words()),
            ),
            rows=tuple(Row(operator, (OPERATOR_NAME[operator],)) for operator in OPERATORS),
            measured=True,
        ),
    ),
    measure=complexity,
    systems=True,
    notes=settings,
)

CONFIGURATIONS = Table(
    label="app-configs",
    number="6",
    title="Model configurations",
    summary="Parameters, geometry, data and budget of every pair.",
    caption=(
        "Decoder configurations. The campaign’s parameters are counted on the models it builds. "
        "An update of the paper takes 131,072 tokens at every scale."
    ),
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(
        Panel(
            "",
            (
                Column(
                    "Params\nMHA/Rel.",
                    tuple(
                        Part(f"params.{variant}", Number(grouped=True))
                        for variant in ("mha", "full")
                    ),
                    "{}/{}",
                    operator="both",
                ),
                value("$L/d/H×d_h/d_{ff}$", "geometry", Words("geometry")),
                value("Vocab", "vocab", Words()),
                value("Data", "data", Words()),
                value("$T$", "context", Number()),
                value("Train", "tokens", Words()),
                Column(
                    "Micro/GA",
                    tuple(Part(f"micro_ga.{variant}", Words()) for variant in ("mha", "full")),
                    "MHA {}; Rel. {}",
                    merged=True,
                ),
            ),
        ),
    ),
    measure=configurations,
)
