"""The scores U that Relation and attention start from."""

import math

import torch
from torch import Tensor

from relation.kernels.checks import without_autocast


def scores(p1: Tensor, p2: Tensor) -> Tensor:
    """U_ij = p1_i . p2_j / sqrt(D) of Section 3.1; q and k take the coordinates' places in MHA.

    p1: (B, H, n, D), p2: (B, H, T, D), one floating dtype. Returns (B, H, n, T), FP32 at least. The
    product has the inputs' dtype, except for FP16: it ends at 65504, which p1_i . p2_j may pass.
    """
    wide = torch.promote_types(p1.dtype, torch.float32)
    if p1.dtype == torch.float16:
        p1, p2 = p1.to(wide), p2.to(wide)
    with without_autocast(p1):
        return (p1 @ p2.transpose(-1, -2)).to(wide) / math.sqrt(p1.shape[-1])
