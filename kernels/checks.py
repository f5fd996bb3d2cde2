"""Argument checks of the operators, which report one clear line."""

import math

import torch

from relation.errors import InputError


def check_states(**states: torch.Tensor) -> None:
    """Raise InputError unless the named states are (B, H, T, D) tensors of the same kind.

    They must have one shape without an empty dimension, one floating dtype and one device.
    """
    check_floating(**states)
    first, model = next(iter(states.items()))
    shape = model.shape
    if len(shape) != 4:
        raise InputError(f"{first} has shape {tuple(shape)}; give (B, H, T, D)")
    if 0 in shape:
        raise InputError(f"{first} has shape {tuple(shape)}; every dimension must be at least 1")
    for name, state in states.items():
        if state.shape != shape:
            raise InputError(
                f"{name} has shape {tuple(state.shape)} and {first} {tuple(shape)}; make them equal"
            )
    dtypes = [state.dtype for state in states.values()]
    if len(set(dtypes)) > 1:
        listed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise InputError(
            f"{', '.join(states)}: dtypes are {listed}; give every one in the same floating dtype"
        )
    check_device(*states.values())


def check_groups(**states: torch.Tensor) -> None:
    """Raise InputError unless `check_states` holds, but the first state may have n times the heads.

    The first state is (B, H, T, D), all others are (B, H / n, T, D). Head h of the first reads head
    h // n of the others (grouped queries).
    """
    check_floating(**states)
    (name, first), (other, shared), *_ = states.items()
    if first.ndim == shared.ndim == 4 and first.shape[1] != shared.shape[1]:
        heads, fewer = first.shape[1], shared.shape[1]
        if not fewer or heads % fewer:
            raise InputError(
                f"{other} has {fewer} heads and {name} {heads}; make {name}'s a multiple of "
                f"{other}'s"
            )
        states[name] = first[:, :fewer]  # all else must be equal
    check_states(**states)


def check_device(*tensors: torch.Tensor) -> None:
    """Raise InputError unless the tensors are on one device."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise InputError(f"inputs lie on {names}; move them all to one device")


def check_tau(tau: float) -> None:
    """Raise InputError unless the Self temperature is a positive, finite number, not a tensor."""
    if isinstance(tau, torch.Tensor) or not 0 < tau < math.inf:
        given = "a tensor" if isinstance(tau, torch.Tensor) else tau
        raise InputError(
            f"tau is {given}; the Self temperature is a number, positive and finite (the paper: 2)"
        )


def check_floating(**tensors: torch.Tensor) -> None:
    """Raise InputError unless each named argument is a tensor of a floating dtype."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name} is a {type(tensor).__name__}; give a floating tensor")
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{name} has dtype {dtype}; give it in a floating dtype")


def check_lambda(lam: torch.Tensor) -> None:
    """Raise InputError unless the count calibration is one floating number, shape () or (1,)."""
    check_floating(lam=lam)
    if tuple(lam.shape) not in ((), (1,)):
        raise InputError(f"lam has shape {tuple(lam.shape)}; it is one number per layer: give ()")
