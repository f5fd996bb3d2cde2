"""Beyond the paper: the pairs of scales that the paper has not, as 100M on less tokens."""

from relation.variants import PAIRED
from report.values.architecture import geometry, tokens, worded_models
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Needs, Number, Panel, Row, Table, Words, value
from report.values.measured import Measured, Measurements, no_counterpart
from report.values.quality import final_nll, mean_reduction, nll_difference
from report.values.structure import FINE_PERCENT, PERCENT, RANK, Flow

# (column, metric, variant, first layer, last layer or None for the last)
_FLOW = (
    ("l0_self.full", "self_flow", "full", 0, 0),
    ("l0_self.mha", "self_flow", "mha", 0, 0),
    ("l0_effrank.full", "effective_rank", "full", 0, 0),
    ("l0_effrank.mha", "effective_rank", "mha", 0, 0),
    ("l1_self.full", "self_flow", "full", 1, 1),
    ("l2_exchange.full", "exchange_flow", "full", 2, None),
)


def own_scales(records: CampaignRecords) -> Measurements:
    """A row a scale of the campaign's pairs that is none of the paper's, or one that says so."""
    own = [scale for scale in records.page["scales"] if scale not in SCALES]
    found = Measurements()
    if not own:
        found.put("none", {"pairs": no_counterpart("this campaign has the paper’s scales alone")})
    for scale in own:
        for column, wording in (("geometry", geometry), ("tokens", tokens)):
            found.put(scale, {column: worded_models(records, scale, PAIRED, wording)})
        difference = nll_difference(records, scale, "full", "mha")
        whole = difference.value is not None
        pairs = Measured(float(difference.n), n=difference.n) if whole else difference
        found.put(scale, {"pairs": pairs})
        found.put_with_interval(scale, "delta", difference)
        found.put_with_interval(scale, "reduction", mean_reduction(records, scale))
        for variant in PAIRED:
            found.put(scale, {variant: final_nll(records, scale, variant)})
        flow = records.made(Flow)
        for column, metric, variant, first, last in _FLOW:
            mean = flow.mean(scale, variant, metric, first, last)
            found.put_with_interval(scale, column, mean)
    return found


_NLL = Number(4)
OWN_SCALES = Table(
    label="beyond-scales",
    number="B7",
    title="Other scales than the paper’s",
    summary="Pairs at scales that the paper has not: loss, and the flow of the first layers.",
    caption=(
        "Pairs whose geometry or budget is none of the paper’s. Self flow is Relation’s, the "
        "diagonal MHA’s; layers count from 0. Brackets hold 95% t intervals over seeds."
    ),
    panels=(
        Panel(
            "(a) Loss",
            (
                value("$L/d/H×d_h/d_{ff}$", "geometry", Words("geometry"), setting=True),
                value("Tokens", "tokens", Words(), setting=True),
                value("Pairs", "pairs", Number()),
                value("MHA\nNLL", "mha", _NLL, "mha"),
                value("Relation\nNLL", "full", _NLL, "full"),
                value("Full−MHA", "delta", Number(4, signed=True)),
                value("Tokens\nspared", "reduction", Number(1, "%")),
            ),
            measured=True,
        ),
        Panel(
            "(b) Flow",
            (
                value("Layer 0:\nSelf flow", "l0_self.full", PERCENT, "full"),
                value("diagonal", "l0_self.mha", PERCENT, "mha"),
                value("effective\nrank", "l0_effrank.full", RANK, "full"),
                value("MHA’s", "l0_effrank.mha", RANK, "mha"),
                value("Layer 1:\nSelf flow", "l1_self.full", FINE_PERCENT, "full"),
                value("Exchange\nfrom layer 2", "l2_exchange.full", PERCENT, "full"),
            ),
            measured=True,
        ),
    ),
    measure=own_scales,
    needs=Needs(lambda run: run.scale not in SCALES and run.variant in PAIRED, flow=True),
    rows=(),
    extra_row=lambda scale: Row(scale, (scale,)),
)
