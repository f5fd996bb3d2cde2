"""The parts of a token mixer that can be taken away while a model is evaluated."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# What each token carries to itself, what it receives, lambda log i, the Givens angles.
PARTS = ("self", "exchange", "count", "mixing")


def counting(mixer: nn.Module) -> bool:
    """Whether a mixer has a count correction: Full Relation whose lambda is learned."""
    return isinstance(getattr(mixer, "lam", None), nn.Parameter)


def parts_of(mixer: nn.Module) -> tuple[str, ...]:
    """Those of PARTS that a mixer has; MHA's Self is its diagonal flow."""
    lacks = {"count": not counting(mixer), "mixing": not hasattr(mixer, "theta")}
    return tuple(part for part in PARTS if not lacks.get(part))


@contextmanager
def without(mixer: nn.Module, part: str) -> Iterator[None]:
    """Run a mixer without one of its parts; what is left is not scaled up for it.

    Of the output Y = F I, "self" drops the terms F_ii I_i and "exchange" the others; Linear
    Relation's Self is the I_t that it adds to the exchanged state. "count" and "mixing" set
    lambda and the angles to 0.
    """
    if part in ("count", "mixing"):
        parameter = mixer.lam if part == "count" else mixer.theta
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
        try:
            yield
        finally:
            with torch.no_grad():
                parameter.copy_(kept)
        return
    hook = mixer.register_forward_hook(_OUTPUT[part])
    try:
        yield
    finally:
        hook.remove()


def _own(mixer: nn.Module, inputs: tuple) -> Tensor:
    """What a mixer's output (B, T, d) holds of what tokens carry to themselves."""
    x, _, rope, _, documents = inputs
    if not hasattr(mixer, "flow"):
        return mixer.output(mixer.information(x))
    own = mixer.flow(x, rope, documents).diagonal(dim1=-2, dim2=-1)
    return mixer.transport(x, own.diag_embed())


def _without_self(mixer: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    return output - _own(mixer, inputs)


def _without_exchange(mixer: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    return _own(mixer, inputs).to(output.dtype)


_OUTPUT = {"self": _without_self, "exchange": _without_exchange}
