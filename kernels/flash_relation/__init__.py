"""FlashRelation: Full Relation, exact, by tiles (the paper's Sections 3.1 and 5.1)."""

from relation.kernels.flash_relation.op import (
    DTYPES,
    NARROWEST,
    WIDEST,
    flash_relation,
    is_eager,
    why_unavailable,
)

__all__ = ["DTYPES", "NARROWEST", "WIDEST", "flash_relation", "is_eager", "why_unavailable"]
