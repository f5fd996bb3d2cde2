"""Cosines and sines computed once, not once for every number they turn."""

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("relation::cos_sin", mutates_args=())
def cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of `angle`, of its shape and dtype; no gradient passes.

    An operator of its own, because torch.compile would otherwise compute them anew inside the
    kernel that multiplies by them, for each of B x H x T x D numbers.
    """
    return angle.cos(), angle.sin()


@cos_sin.register_fake
def _(angle: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(angle), torch.empty_like(angle)
