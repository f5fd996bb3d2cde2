"""The seventeen tables in the paper’s order and layout."""

from report.tables.architecture import CONFIGURATIONS, TOKEN_MIXING
from report.tables.quality import (
    ABLATION_SEEDS,
    HYBRID,
    MAIN_RESULTS,
    PAIRED_NLL,
    STRUCTURAL_ABLATIONS,
    TOKEN_EFFICIENCY,
)
from report.tables.structure import INTERNAL, LAYERWISE, ROUTING, SINK_PROFILE, SPECTRUM
from report.tables.systems import EFFICIENT, LINEAR_LONG, LINEAR_STEADY, PRODUCTION

TABLES = (
    TOKEN_MIXING,
    MAIN_RESULTS,
    STRUCTURAL_ABLATIONS,
    INTERNAL,
    EFFICIENT,
    CONFIGURATIONS,
    LAYERWISE,
    ROUTING,
    SINK_PROFILE,
    SPECTRUM,
    PAIRED_NLL,
    TOKEN_EFFICIENCY,
    ABLATION_SEEDS,
    HYBRID,
    PRODUCTION,
    LINEAR_STEADY,
    LINEAR_LONG,
)

__all__ = ["TABLES"]
