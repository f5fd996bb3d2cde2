"""Triton kernels of the paper's operators. Importing this package needs no Triton and no GPU."""

from kernels.flash_relation import flash_relation, why_unavailable
from kernels.linear_relation import linear_relation

__all__ = ["flash_relation", "linear_relation", "why_unavailable"]
