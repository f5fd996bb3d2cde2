"""Cosines and sines computed once, not once for every number they turn."""

import torch
from torch import Tensor
from torch.library import define, impl, register_fake

_NAME = "relation::cos_sin"

# Not by `custom_op`, whose operators import torch._dynamo when they are first called: in
# every process, whether it compiles anything or not.
define(_NAME, "(Tensor angle) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))


@impl(_NAME, "default")
def _cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    return angle.cos(), angle.sin()


@register_fake(_NAME)
def _(angle: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(angle), torch.empty_like(angle)


def cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of `angle`, of its shape and dtype; no gradient passes.

    An operator of its own, because torch.compile would otherwise compute them anew inside the
    kernel that multiplies by them, for each of B x H x T x D numbers.
    """
    return torch.ops.relation.cos_sin(angle)
