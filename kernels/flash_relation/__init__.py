"""FlashRelation: Full Relation, exact, by tiles (the paper's Sections 3.1 and 5.1)."""

from relation.kernels.flash_relation.op import flash_relation

__all__ = ["flash_relation"]
