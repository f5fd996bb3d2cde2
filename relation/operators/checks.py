"""Argument checks shared by the operators, so that each mistake gets the same one clear line."""

import torch

from relation.errors import InputError


def check_relation_inputs(
    p1: torch.Tensor, p2: torch.Tensor, info: torch.Tensor, tau: float, *others: torch.Tensor
) -> None:
    """Raise InputError unless p1, p2 and info are (B, H, T, D) alike on one device and tau > 0."""
    if p1.ndim != 4:
        raise InputError(f"p1 has shape {tuple(p1.shape)}; give (B, H, T, D)")
    for name, tensor in (("p2", p2), ("info", info)):
        if tensor.shape != p1.shape:
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)} and p1 {tuple(p1.shape)}; make them equal"
            )
    devices = {str(t.device) for t in (p1, p2, info, *others)}
    if len(devices) > 1:
        raise InputError(f"inputs lie on {', '.join(sorted(devices))}; move them to one device")
    if not tau > 0:
        raise InputError(f"tau is {tau}; the Self temperature must be positive (the paper: 2)")
