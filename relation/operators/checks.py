"""Shared by the operators: argument checks, so that each mistake gets one clear line, and FP32."""

import math

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
    if not 0 < tau < math.inf:
        raise InputError(f"tau is {tau}; the Self temperature must be positive (the paper: 2)")


def check_lambda(lam: torch.Tensor) -> None:
    """Raise InputError unless the count calibration is one number, shape () or (1,)."""
    if tuple(lam.shape) not in ((), (1,)):
        raise InputError(f"lam has shape {tuple(lam.shape)}; it is one number a layer: give ()")


def without_autocast(x: torch.Tensor) -> torch.autocast:
    """A context in which FP32 products stay FP32 although the model runs under BF16 autocast."""
    return torch.autocast(x.device.type, enabled=False)
